"""T23 where it is easy to miss: a failed sync that somebody else's success would hide, or that nobody is left to hear.

The kernel reports a failed write-back once. Whoever syncs the same file next is told that all is well.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neve.extent_node.servicer import ExtentNodeServicer
from neve.extent_node.store.checkpoint import free_segments
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import InvalidArgument, NeveError
from tests.sim import loop as sim_loop
from tests.sim.disks.disk import SimFileSystem
from tests.unit.extent_node.store.rig import (
    Machine,
    append,
    append_all,
    block_of,
    config_for,
    create,
    error_of,
    fence,
    format_all,
    make_store,
    raise_token,
    segment,
)


def sync_of_an_extent(operation: str, path: str) -> bool:
    return operation == "fdatasync" and path.endswith(".ext")


@pytest.mark.parametrize("wait_s", [0.0, 0.0002, 0.0004, 0.0008, 0.0012, 0.0016])
@pytest.mark.parametrize("order", ["raise", "fence"])
def test_t23_a_length_is_not_answered_over_a_sync_that_failed_meanwhile(order: str, wait_s: float) -> None:
    """An append's fdatasync fails while Raise or Fence wait to fsync the same file."""
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        first = await append(store, 1, 0, block_of("durable", 100))
        machine.fs.fail(errno.EIO, match=sync_of_an_extent, times=1)
        appending = asyncio.ensure_future(error_of(append(store, 1, first.end, block_of("lost", 100))))
        await asyncio.sleep(wait_s)
        try:
            answer = await (raise_token(store, 1, 11) if order == "raise" else fence(store, 1))
        except NeveError:
            answer = pb.LengthAnswer()
        failed = await appending is not None
        durable_bytes = len(machine.fs.durable_content(f"/disk0/extents/01/{1:016x}.ext"))
        if answer.kind == pb.LengthAnswer.LENGTH:
            assert answer.length <= durable_bytes
        if not failed:
            assert durable_bytes > first.end

    machine.run(work)


def test_t23_a_stop_does_not_say_clean_over_a_sync_that_fails_while_it_stops() -> None:
    fs = SimFileSystem(random.Random(0))
    format_all(fs, 1)
    inside, release = threading.Event(), threading.Event()
    armed = False
    real_fdatasync = fs.fdatasync

    def slow_to_fail(fd: int) -> None:
        nonlocal armed
        if not armed or not fs._path(fd).endswith(".ext"):
            real_fdatasync(fd)
            return
        armed = False
        try:
            real_fdatasync(fd)
        finally:
            inside.set()
            release.wait(1.0)

    fs.fdatasync = slow_to_fail  # type: ignore[method-assign]
    config = config_for(1, journal_extents_min=1, checkpoint_interval_s=0.1)

    async def until_stopped() -> int:
        nonlocal armed
        with ThreadPoolExecutor(4) as pool:
            store = Storage(config, fs, pool=pool, rng=random.Random(1), wall_clock_ms=lambda: 1)
            await store.start()
            await create(store, 1)
            acknowledged = (await append(store, 1, 0, block_of("by the journal", 100))).end
            fs.fail(errno.EIO, match=sync_of_an_extent, times=1)
            armed = True
            while not inside.is_set():  # the checkpointer syncs the extent
                await asyncio.sleep(0.005)
            await store.stop(clean=True)
            release.set()
        return acknowledged

    acknowledged = asyncio.run(until_stopped())
    assert not json.loads(fs.content("/disk0/boot.json"))["clean"]
    assert json.loads(fs.content("/journal/journal.json"))["in_use"]
    fs.fdatasync = real_fdatasync  # type: ignore[method-assign]
    fs.power_cut()

    async def after_the_power_cut() -> None:
        store = make_store(fs, config)
        await store.start()
        await store.verified()
        answer = await raise_token(store, 1, 11)
        assert answer.kind == pb.LengthAnswer.DOUBTFUL or answer.length >= acknowledged
        await store.stop(clean=False)

    sim_loop.run(after_the_power_cut())


def test_t23_a_segment_whose_header_may_not_be_durable_ends_the_journal() -> None:
    """Its number is given to no other segment and skipped by none: a gap would end the chain for a replay."""
    machine = Machine(1, journal_extents_min=1, in_place_bytes_min=1 << 20, checkpoint_interval_s=1e9)
    ends = dict.fromkeys((1, 2, 3), 0)

    async def work(store: Storage) -> None:
        state = store.state
        journal = state.journal
        for extent_id in ends:
            await create(store, extent_id)

        async def append_to_all() -> None:
            block = block_of("x", 700)
            segments = [segment(extent_id, end, [block]) for extent_id, end in ends.items()]
            for extent_id, result in zip(ends, await append_all(store, *segments), strict=True):
                assert not result.HasField("error"), result
                ends[extent_id] = result.end

        state.committer.rounds._wake_checkpointer = lambda: None
        while journal.ready_count or not journal._filled:
            await append_to_all()
        machine.fs.fail(errno.EIO, match=lambda op, path: op == "fdatasync" and path.endswith("0002.seg"), times=1)
        await free_segments(state)
        assert journal.failed
        await free_segments(state)
        for _ in range(30):  # in place from now on
            await append_to_all()

    machine.run(work)
    machine.fs.power_cut("lose_all")

    async def after(store: Storage) -> None:
        await store.verified()
        for extent_id, end in ends.items():
            answer = await raise_token(store, extent_id, 11)
            assert answer.kind == pb.LengthAnswer.DOUBTFUL or answer.length >= end, (extent_id, answer)

    machine.run(after)


def test_blocks_are_checked_where_the_transport_has_no_checksum() -> None:
    async def work(store: Storage) -> None:
        servicer = ExtentNodeServicer(
            store, cast(Any, None), cast(Any, _no_metrics()), cluster="c", node_id=1, read_bytes_max=1 << 20
        )
        await create(store, 1)
        message, body = segment(1, 0, [block_of("fine", 100)])
        damaged = bytearray(body)
        damaged[50] ^= 1
        request = pb.AppendBlockRequest(segments=[message])
        for checksummed, content, refused in ((False, damaged, True), (False, body, False)):
            call = cast(Any, SimpleNamespace(attachment=memoryview(bytes(content)), checksummed=checksummed))
            if refused:
                with pytest.raises(InvalidArgument, match="damaged on the way"):
                    servicer.append_block(request, call)
            else:
                begun = servicer.append_block(request, call)
                reply = begun if isinstance(begun, pb.AppendBlockReply) else await begun
                assert reply.results[0].end == len(body)

    Machine().run(work)


def _no_metrics() -> Any:
    ignore = SimpleNamespace(observe=lambda value: None)
    return SimpleNamespace(append_s=ignore, read_s=ignore)
