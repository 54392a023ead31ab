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

from neve.extent_node import kernel_sync as module
from neve.extent_node.fs import RealFileSystem
from neve.extent_node.kernel_sync import KernelSync, kernel_sync_or_none
from neve.extent_node.store import Store
from neve.extent_node.threads import Threads
from neve.proto.errors import DiskFailed, NeveError
from tests.unit.extent_node import store_rig as rig

ORDERS_MAX = 4

K = TypeVar("K", bound=KernelSync)


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)


class Failing(KernelSync):
    """The kernel's answers are turned into failed writes."""

    def _call(self, number: int, *arguments: object) -> int:
        result = super()._call(number, *arguments)
        if number == self._numbers.getevents:
            for event in range(result):
                order_id, order, *_ = module._EVENT.unpack_from(self._events, module._EVENT.size * event)
                module._EVENT.pack_into(self._events, module._EVENT.size * event, order_id, order, -errno.EIO, 0)
        return result


class Watched(KernelSync):
    begun = 0

    def begin(self, fd: int) -> asyncio.Future[None] | None:
        self.begun += 1
        return super().begin(fd)


def made(kind: type[K]) -> K:
    try:
        return kind(ORDERS_MAX)
    except OSError as error:
        pytest.skip(f"this kernel does not have it: {error}")


async def test_every_order_is_answered_once(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        for round_number in range(20):
            os.pwrite(descriptor, b"x" * 100, 100 * round_number)
            orders = [kernel.begin(descriptor) for _ in range(4)]
            assert None not in orders
            assert kernel.under_way == 4
            assert await asyncio.gather(*(order for order in orders if order is not None)) == [None] * 4
            assert kernel.under_way == 0


async def test_what_is_more_than_the_bound_is_not_taken(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        orders = [kernel.begin(descriptor) for _ in range(6)]  # none is taken back before the loop's next turn
        assert [order is not None for order in orders] == [True] * 4 + [False] * 2
        await asyncio.gather(*(order for order in orders if order is not None))
        last = kernel.begin(descriptor)
        assert last is not None
        await last


async def test_what_the_kernel_cannot_sync_is_refused_and_takes_no_place(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        reading, writing = os.pipe()
        os.close(descriptor)
        assert kernel.begin(descriptor) is None
        assert kernel.begin(writing) is None
        assert kernel.under_way == 0
        os.close(reading)
        os.close(writing)


async def test_a_waiter_that_has_gone_is_passed_over(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        gone, stays = kernel.begin(descriptor), kernel.begin(descriptor)
        assert gone is not None
        assert stays is not None
        gone.cancel()
        await stays
        while kernel.under_way:
            await asyncio.sleep(0.001)
        assert gone.cancelled()


async def test_a_file_may_be_closed_while_it_is_synced(descriptor: int) -> None:
    with contextlib.closing(made(KernelSync)) as kernel:
        os.pwrite(descriptor, b"x" * 4096, 0)
        order = kernel.begin(descriptor)
        os.close(descriptor)
        assert order is not None
        await order


async def test_none_is_made_where_none_is_wanted_or_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_sync_or_none(0) is None
    monkeypatch.setattr(module, "_NUMBERS", {})
    assert kernel_sync_or_none(4) is None


# --- a store with it -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def store_with(folder: Path, kernel: KernelSync) -> AsyncIterator[Store]:
    fs, root, threads = RealFileSystem(), str(folder), Threads(2, name="test")
    for name in ("disk0", "journal"):
        (folder / name).mkdir()
    rig.format_all(fs, root=root)
    store = Store(
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
            assert store._state.replicas[1].state.durable_end == offset
        assert kernel.begun == 5


async def test_t23_a_sync_that_fails_in_the_kernel_is_answered_with_its_error_and_ends_the_file(tmp_path: Path) -> None:
    async with store_with(tmp_path, made(Failing)) as store:
        block = rig.block_of("lost")
        with pytest.raises(DiskFailed, match="Input/output error"):
            await rig.append(store, 1, 0, block)
        assert store.counters.sync_failures == 1
        state = store._state.replicas[1].state
        assert state.durable_end == 0
        assert state.read_only is not None
        with pytest.raises(NeveError):  # nobody is acknowledged by trying again
            await rig.append(store, 1, 0, block)


async def test_a_thread_syncs_what_the_kernel_does_not_take(tmp_path: Path) -> None:
    class Full(Watched):
        def begin(self, fd: int) -> asyncio.Future[None] | None:
            self.begun += 1
            return None

    kernel = made(Full)
    async with store_with(tmp_path, kernel) as store:
        block = rig.block_of("by a thread")
        assert (await rig.append(store, 1, 0, block)).end == len(block)
        assert kernel.begun == 1
        assert store._state.replicas[1].state.durable_end == len(block)
