"""fdatasync by the kernel's workers: outcomes and errors come back to whoever waits, the rest is the threads'."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from neve.extent_node.disk import kernel_sync as module
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.disk.kernel_sync import KernelSync, OnDone, kernel_sync_or_none
from neve.extent_node.disk.threads import Threads
from neve.extent_node.store.storage import Storage
from neve.proto.errors import DiskFailed, NeveError
from tests.unit.extent_node.store import rig

ORDERS_MAX = 4

K = TypeVar("K", bound=KernelSync)


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)


class Failing(KernelSync):
    """The kernel's answers are turned into failed writes."""

    failing = True

    def _call(self, number: int, *arguments: object) -> int:
        result = super()._call(number, *arguments)
        if number == self._numbers.getevents and self.failing:
            for event in range(result):
                order_id, order, *_ = module._EVENT.unpack_from(self._events, module._EVENT.size * event)
                module._EVENT.pack_into(self._events, module._EVENT.size * event, order_id, order, -errno.EIO, 0)
        return result


class FailingWhenTold(Failing):
    failing = False


class Watched(KernelSync):
    begun = 0

    def begin(self, fd: int, on_done: OnDone) -> bool:
        self.begun += 1
        return super().begin(fd, on_done)


class Full(Watched):
    def begin(self, fd: int, on_done: OnDone) -> bool:
        self.begun += 1
        return False


class Told:
    """What orders were told, in the order of their ends."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, OSError | None]] = []

    def __call__(self, name: str = "") -> OnDone:
        return lambda error: self.outcomes.append((name, error))


def made(kind: type[K]) -> K:
    try:
        return kind(ORDERS_MAX)
    except OSError as error:
        pytest.skip(f"this kernel does not have it: {error}")


async def test_every_order_is_answered_once(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        for round_number in range(20):
            os.pwrite(descriptor, b"x" * 100, 100 * round_number)
            told = Told()
            assert [kernel.begin(descriptor, told(f"{order}")) for order in range(4)] == [True] * 4
            assert kernel.under_way == 4
            await kernel.drained()
            assert sorted(told.outcomes) == [(f"{order}", None) for order in range(4)]
            assert kernel.under_way == 0


async def test_what_is_more_than_the_bound_is_not_taken(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        told = Told()
        # None is taken back before the loop's next turn.
        assert [kernel.begin(descriptor, told()) for _ in range(6)] == [True] * 4 + [False] * 2
        await kernel.drained()
        assert kernel.begin(descriptor, told())
        await kernel.drained()
        assert len(told.outcomes) == 5


async def test_what_the_kernel_cannot_sync_is_refused_and_takes_no_place(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        told = Told()
        reading, writing = os.pipe()
        os.close(descriptor)
        assert not kernel.begin(descriptor, told())
        assert not kernel.begin(writing, told())
        assert (kernel.under_way, told.outcomes) == (0, [])
        os.close(reading)
        os.close(writing)


async def test_one_that_fails_over_its_outcome_does_not_keep_it_from_the_others(descriptor: int) -> None:
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail(_: OSError | None) -> None:
        raise ZeroDivisionError

    with contextlib.closing(made(KernelSync)) as kernel:
        told = Told()
        assert kernel.begin(descriptor, fail)
        assert kernel.begin(descriptor, told("other"))
        await kernel.drained()
    assert told.outcomes == [("other", None)]
    assert [type(context["exception"]) for context in failures] == [ZeroDivisionError]


async def test_a_file_may_be_closed_while_it_is_synced(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        told = Told()
        os.pwrite(descriptor, b"x" * 4096, 0)
        assert kernel.begin(descriptor, told())
        os.close(descriptor)
        await kernel.drained()
        assert told.outcomes == [("", None)]


async def test_none_is_made_where_none_is_wanted_or_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_sync_or_none(0) is None
    monkeypatch.setattr(module, "_NUMBERS", {})
    assert kernel_sync_or_none(4) is None


# --- a store with it -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def store_with(folder: Path, kernel: KernelSync) -> AsyncIterator[Storage]:
    fs, root, threads = RealFileSystem(), str(folder), Threads(2, name="test")
    for name in ("disk0", "journal"):
        (folder / name).mkdir()
    rig.format_all(fs, root=root)
    store = Storage(
        rig.config_for(root=root),
        fs,
        pool=threads,
        rng=random.Random(1),
        wall_clock_ms=lambda: 0,
        kernel_sync=kernel,
    )
    await store.start()
    await rig.create(store, 1)
    await rig.raise_token(store, 1, rig.TOKEN)
    try:
        yield store
    finally:
        await store.stop()
        threads.shutdown()
        kernel.close()


async def test_appends_are_answered_when_the_kernel_has_synced_them(tmp_path: Path) -> None:
    kernel = made(Watched)
    async with store_with(tmp_path, kernel) as store:
        offset = 0
        for number in range(5):
            block = rig.block_of(f"block {number}")
            result = await rig.append(store, 1, offset, block)
            offset += len(block)
            assert result.end == offset
            assert store.state.replicas[1].state.durable_end == offset
        assert kernel.begun == 5


async def test_t23_a_sync_that_fails_in_the_kernel_is_answered_with_its_error_and_ends_the_file(tmp_path: Path) -> None:
    async with store_with(tmp_path, made(Failing)) as store:
        block = rig.block_of("lost")
        with pytest.raises(DiskFailed, match="Input/output error"):
            await rig.append(store, 1, 0, block)
        assert store.state.counters.sync_failures == 1
        state = store.state.replicas[1].state
        assert state.durable_end == 0
        assert state.read_only is not None
        with pytest.raises(NeveError):  # nobody is acknowledged by trying again
            await rig.append(store, 1, 0, block)


async def test_a_thread_syncs_what_the_kernel_does_not_take(tmp_path: Path) -> None:
    kernel = made(Full)
    async with store_with(tmp_path, kernel) as store:
        block = rig.block_of("by a thread")
        assert (await rig.append(store, 1, 0, block)).end == len(block)
        assert kernel.begun == 1
        assert store.state.replicas[1].state.durable_end == len(block)


async def begun_on_two(store: Storage) -> list[tuple[int, int, bytes]]:
    """A second extent; both have a token and a block. Extent, offset and block of what is appended to each next."""
    await rig.create(store, 2)
    await rig.raise_token(store, 2, rig.TOKEN)
    appends = []
    for extent_id in (1, 2):
        first = rig.block_of(f"first of {extent_id}")
        await rig.append(store, extent_id, 0, first)
        appends.append((extent_id, len(first), rig.block_of(f"second of {extent_id}")))
    return appends


async def test_a_round_of_the_journal_is_synced_by_the_kernel(tmp_path: Path) -> None:
    kernel = made(Watched)
    async with store_with(tmp_path, kernel) as store:
        appends = await begun_on_two(store)
        rounds, begun = store.state.counters.journal_rounds, kernel.begun
        results = await rig.append_all(store, *(rig.segment(extent, at, [block]) for extent, at, block in appends))
        assert (store.state.counters.journal_rounds - rounds, kernel.begun - begun) == (1, 1)
        for (extent_id, offset, block), result in zip(appends, results, strict=True):
            assert result.end == offset + len(block)
            assert store.state.replicas[extent_id].state.durable_end == result.end


async def test_t23_a_round_whose_sync_fails_in_the_kernel_acknowledges_nobody(tmp_path: Path) -> None:
    kernel = made(FailingWhenTold)
    async with store_with(tmp_path, kernel) as store:
        appends = await begun_on_two(store)
        kernel.failing = True
        results = await rig.append_all(store, *(rig.segment(extent, at, [block]) for extent, at, block in appends))
        kernel.failing = False
        assert [result.error.code for result in results] == [DiskFailed.code] * 2
        assert store.state.journal.failed
        for extent_id, offset, block in appends:  # the files themselves are as good as before
            assert (await rig.append(store, extent_id, offset, block)).end == offset + len(block)
