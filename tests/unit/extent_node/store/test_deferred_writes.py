"""Deferred writes: bytes that are in the journal and reach their file later. All who look find them, and none is lost.

Frames of three extents, each with small synced blocks, go to the journal, and later into the files.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from neve.extent_node.core import ReadOnly
from neve.extent_node.store import append as store_append
from neve.extent_node.store import control as store_control
from neve.extent_node.store.replica import DEFERRED_BYTES_MAX
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFull, ReplicaReadOnly
from tests.unit.extent_node.store.rig import (
    Machine,
    append,
    append_all,
    block_of,
    create,
    delete,
    error_of,
    fence,
    raise_token,
    read_bytes,
    seal,
    segment,
    tell_committed,
)
from tests.unit.extent_node.store.test_faults import on, path_of
from tests.unit.extent_node.store.test_hung import Hanging

EXTENTS = (1, 2, 3)
NAME = f"{1:016x}"  # of the file of extent 1, whatever folder it is in
A, B, C = block_of("a", 100), block_of("b", 300), block_of("c", 50)
TOKEN_LATER = 99


def machine(**changes: int | float) -> Machine:
    settings: dict[str, Any] = {"checkpoint_interval_s": 3600.0, "preallocate_bytes": 64 << 10, **changes}
    return Machine(segment_bytes=1 << 20, **settings)


def deferred(store: Storage) -> list[int]:
    return [store.state.replicas[extent_id].deferred_bytes for extent_id in EXTENTS]


async def frame(store: Storage, offset: int, block: bytes) -> list[pb.SegmentResult]:
    return await append_all(store, *(segment(extent_id, offset, [block]) for extent_id in EXTENTS))


async def begin(store: Storage) -> None:
    """A in the files, and B in the journal alone."""
    for extent_id in EXTENTS:
        await create(store, extent_id)
        await append(store, extent_id, 0, A)  # alone: in place
    assert deferred(store) == [0, 0, 0]
    assert [result.end for result in await frame(store, len(A), B)] == [len(A + B)] * 3
    assert deferred(store) == [len(B)] * 3


def contents(on_machine: Machine) -> list[bytes]:
    return [on_machine.fs.content(path_of(extent_id)) for extent_id in EXTENTS]


def test_appends_that_go_to_the_journal_reach_their_files_together() -> None:
    machine_ = machine()
    block = block_of("x", 1016)

    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        offset, most = len(A), 0
        while store.state.counters.appended_bytes < 3 * (len(A) + 3 * DEFERRED_BYTES_MAX):
            assert not any(result.HasField("error") for result in await frame(store, offset, block))
            offset += len(block)
            most = max(most, *deferred(store))
            for extent_id, content in zip(EXTENTS, contents(machine_), strict=True):
                assert len(content) + store.state.replicas[extent_id].deferred_bytes == offset
        assert DEFERRED_BYTES_MAX - len(block) <= most <= DEFERRED_BYTES_MAX

    machine_.run(work)


@pytest.mark.parametrize("end", ["killed", "power cut", "stopped"])
def test_what_was_deferred_is_there_after_the_process_has_ended(end: str) -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        assert contents(machine_) == [A] * 3
        if end == "stopped":
            await store.stop()
            assert contents(machine_) == [A + B] * 3

    async def after(store: Storage) -> None:
        for extent_id in EXTENTS:
            answer = await raise_token(store, extent_id, TOKEN_LATER)
            assert (answer.kind, answer.length) == (pb.LengthAnswer.LENGTH, len(A + B))
        assert contents(machine_) == [A + B] * 3

    machine_.run(work)
    machine_.fs.power_cut() if end == "power cut" else machine_.fs.crash()
    machine_.run(after)


async def _raise(store: Storage) -> None:
    assert (await raise_token(store, 1, TOKEN_LATER)).length == len(A + B)


async def _fence(store: Storage) -> None:
    assert (await fence(store, 1, token=TOKEN_LATER)).length == len(A + B)


async def _seal(store: Storage) -> None:
    reply = await seal(store, 1, len(A + B))
    assert (reply.confirmed, reply.length) == (True, len(A + B))


async def _append_without_sync(store: Storage) -> None:
    assert (await append(store, 1, len(A + B), C, no_sync=True)).end == len(A + B + C)


async def _append_alone(store: Storage) -> None:
    assert (await append(store, 1, len(A + B), C)).end == len(A + B + C)


async def _repeat(store: Storage) -> None:
    assert (await append(store, 1, len(A), B, C)).end == len(A + B + C)


async def _checkpoint(store: Storage) -> None:
    assert await store.state.committer.sync_in_place(store.state.replicas[1])
    assert store.state.replicas[1].in_place_end == len(A + B)


async def _delete(store: Storage) -> None:
    assert await delete(store, 1)


async def _quarantine(store: Storage) -> None:
    found = store.state.replicas[1]
    assert await store_control.quarantine(store.state, 1, incarnation=found.state.meta.incarnation, reason="a test")


@pytest.mark.parametrize(
    "look",
    [_raise, _fence, _seal, _append_without_sync, _append_alone, _repeat, _checkpoint, _delete, _quarantine],
)
def test_whoever_looks_at_the_file_finds_all_of_it(look: Callable[[Storage], Awaitable[None]]) -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        found = store.state.replicas[1]
        fd = machine_.fs.open(path_of(1), writable=False)  # also when it has another name
        await look(store)
        wanted = A + B + C if found.state.length > len(A + B) else A + B
        assert machine_.fs.pread(fd, 1000, 0) == wanted
        machine_.fs.close(fd)
        assert (found.deferred, found.deferred_bytes) == ([], 0)
        assert deferred(store)[1:] == [len(B)] * 2 if 1 in store.state.replicas else True

    machine_.run(work)


@pytest.mark.parametrize("may_write", [True, False])
def test_readers_are_given_deferred_bytes_from_memory(may_write: bool) -> None:
    """From wherever they begin and however many they ask for, also if the file takes no more."""
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        await frame(store, len(A + B), C)
        await tell_committed(store, 1, len(A + B + C))
        if not may_write:
            machine_.fs.fail(errno.ENOSPC, match=on("pwrite", NAME), times=None)
        for start, blocks in ((0, [A, B, C]), (len(A), [B, C]), (len(A + B), [C])):
            for count in range(1, len(blocks) + 1):
                assert await read_bytes(store, 1, start, max_blocks=count) == b"".join(blocks[:count])
                wanted = b"".join(blocks[:count])
                assert await read_bytes(store, 1, start, max_bytes=len(wanted)) == wanted
                assert await read_bytes(store, 1, start, max_bytes=1) == blocks[0]
        assert deferred(store)[0] == len(B + C)

    machine_.run(work)


async def cut_in_vain(store: Storage, machine_: Machine, offset: int) -> list[pb.SegmentResult]:
    """A frame's segment whose bytes are deferred and which waits alone, and one behind it whose write and cut fail."""

    async def fail() -> None:
        faults = [machine_.fs.fail(errno.ENOMEM, match=on(call, NAME)) for call in ("pwrite", "truncate")]
        assert await error_of(append(store, 1, offset + len(C), C)) is not None
        for fault in faults:
            fault.clear()

    refused = segment(2, offset + 999, [C])  # a gap: the other segment is alone
    results, _ = await asyncio.gather(append_all(store, segment(1, offset, [C]), refused), fail())
    assert store.state.replicas[1].state.read_only is ReadOnly.DISK_FAILED
    return results


def test_nobody_is_acknowledged_by_a_sync_of_a_file_that_takes_no_more_bytes() -> None:
    machine_ = Machine(segment_bytes=12 << 10, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        await begin(store)
        results = await cut_in_vain(store, machine_, len(A + B))
        assert results[0].HasField("error")
        found = store.state.replicas[1]
        assert found.in_place_end <= len(machine_.fs.content(path_of(1)))
        assert found in store.state.journal.holders(filled_only=False)
        ends = {2: len(A + B), 3: len(A + B)}
        for _ in range(30):  # the ring of journal segments turns
            block = block_of("x", 1500)
            frame_ = [segment(extent_id, end, [block]) for extent_id, end in ends.items()]
            assert not any(result.HasField("error") for result in await append_all(store, *frame_))
            ends = {extent_id: end + len(block) for extent_id, end in ends.items()}
            await asyncio.sleep(0.01)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, TOKEN_LATER)).length >= len(A + B)

    machine_.run(work)
    machine_.restart(after)


def test_readers_find_deferred_bytes_of_a_file_that_takes_no_more_bytes() -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        await tell_committed(store, 1, len(A + B))
        await cut_in_vain(store, machine_, len(A + B))
        assert await read_bytes(store, 1) == A + B

    machine_.run(work)


def test_what_a_cut_gave_back_is_not_reserved_though_its_reservation_is_answered_later() -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        found = store.state.replicas[1]
        hanging = Hanging(store)
        reserving = asyncio.ensure_future(store_append._preallocate_to(store.state, found, 128 << 10))
        await asyncio.sleep(0)
        reserved = await hanging.done("preallocate")
        store.state.run = hanging._run  # type: ignore[method-assign]
        machine_.fs.fail(errno.ENOSPC, match=on("pwrite", NAME))
        assert await error_of(append(store, 1, len(A + B), block_of("x", 100_000))) is DiskFull
        reserved.set_result(True)
        await reserving
        file = machine_.fs._tree.file(path_of(1))
        assert found.reserved_bytes <= file.allocated_bytes
        assert found.deferred_bytes == len(B)
        assert found.allocate_at <= len(A + B)  # the next append asks for some again

    machine_.run(work)


def test_a_seal_below_deferred_bytes_cuts_them() -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        assert (await seal(store, 1, len(A))).confirmed
        assert await read_bytes(store, 1) == A

    async def after(store: Storage) -> None:
        assert await read_bytes(store, 1) == A
        assert machine_.fs.content(path_of(1)) == A

    machine_.run(work)
    machine_.restart(after)


def test_what_is_large_or_not_synced_or_alone_or_without_reserved_blocks_is_written_at_once() -> None:
    machine_ = machine()
    large = block_of("x", 9000)

    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        await frame(store, len(A), large)
        assert deferred(store) == [0, 0, 0]
        end = len(A + large)
        await append_all(store, *(segment(extent_id, end, [B], no_sync=True) for extent_id in EXTENTS))
        assert deferred(store) == [0, 0, 0]
        assert contents(machine_) == [A + large + B] * 3
        for extent_id in EXTENTS:
            store.state.replicas[extent_id].reserved_bytes = end + len(B + C) - 1
        await frame(store, end + len(B), C)
        assert deferred(store) == [0, 0, 0]

    machine_.run(work)


def test_where_blocks_cannot_be_reserved_nothing_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_ = machine()
    monkeypatch.setattr(type(machine_.fs), "preallocate", lambda self, fd, size_bytes: False)

    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        await frame(store, len(A), B)
        assert deferred(store) == [0, 0, 0]

    machine_.run(work)


def test_t24_deferred_bytes_that_find_no_room_stay_where_they_are_until_there_is_some() -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        fault = machine_.fs.fail(errno.ENOSPC, match=on("pwrite", NAME), times=None)
        assert not await store.state.committer.sync_in_place(store.state.replicas[1])
        assert await error_of(raise_token(store, 1, TOKEN_LATER)) is DiskFull
        assert await error_of(append(store, 1, len(A + B), C)) is ReplicaReadOnly
        assert deferred(store) == [len(B)] * 3
        assert machine_.fs.content(path_of(1)) == A
        fault.clear()
        await asyncio.sleep(6)  # the housekeeper sees the room
        assert (await raise_token(store, 1, TOKEN_LATER)).length == len(A + B)
        assert (await append(store, 1, len(A + B), C, token=TOKEN_LATER)).end == len(A + B + C)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, TOKEN_LATER)).length == len(A + B + C)

    machine_.run(work)
    machine_.fs.power_cut()
    machine_.run(after)


def test_t24_after_a_checkpoint_without_room_the_next_start_has_what_was_acknowledged() -> None:
    machine_ = machine(checkpoint_interval_s=0.1)
    faults: list[Any] = []

    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        faults.append(machine_.fs.fail(errno.ENOSPC, match=on("pwrite", NAME), times=None))
        await frame(store, len(A), B)
        await asyncio.sleep(1)  # several checkpoints: none of them ends in a loop, or takes the record for done
        assert machine_.fs.content(path_of(1)) == A
        assert machine_.fs.content(path_of(2)) == A + B

    async def after(store: Storage) -> None:
        for extent_id in EXTENTS:
            assert (await raise_token(store, extent_id, TOKEN_LATER)).length == len(A + B)

    machine_.run(work)
    faults[0].clear()
    machine_.restart(after)


def test_t23_after_a_failed_sync_deferred_bytes_are_not_written_and_the_journal_has_them() -> None:
    machine_ = machine()

    async def work(store: Storage) -> None:
        await begin(store)
        found = store.state.replicas[1]
        machine_.fs.fail(errno.EIO, match=on("fdatasync", NAME))
        assert not await store.state.committer.sync_in_place(found)  # with B, which was deferred
        assert found.state.read_only is ReadOnly.SYNC_FAILED
        found.deferred, found.deferred_bytes = [C], len(C)  # as if they had come while it was synced
        found.state.length += len(C)
        found.write_deferred()
        assert (found.deferred, found.deferred_bytes) == ([C], len(C))  # for readers
        assert not await store.state.committer.sync_in_place(found)
        assert machine_.fs.content(path_of(1)) == A + B

    async def after(store: Storage) -> None:
        for extent_id in EXTENTS:  # a disk that failed proves no length, but what was acknowledged is there
            answer = await raise_token(store, extent_id, TOKEN_LATER)
            assert (answer.kind, answer.valid_length) == (pb.LengthAnswer.DOUBTFUL, len(A + B))

    machine_.run(work)
    machine_.restart(after)


def test_what_is_deleted_keeps_nothing_in_memory() -> None:
    async def work(store: Storage) -> None:
        await begin(store)
        found = store.state.replicas[1]
        assert await delete(store, 1)
        assert (found.deferred, found.deferred_bytes) == ([], 0)

    machine().run(work)
