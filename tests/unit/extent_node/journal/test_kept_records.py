"""What the journal has for a disk that is not here, fails or is full is kept until that disk has it (T25, T32)."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest

from neve.extent_node.journal.folder import read_journal_label, slot_path
from neve.extent_node.store.config import DiskConfig
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFailed, DiskFull
from tests.sim.disks import nodes as disk_nodes
from tests.unit.extent_node.store.rig import (
    JOURNAL,
    Machine,
    append,
    append_all,
    block_of,
    create,
    disk_uuid,
    error_of,
    fence,
    raise_token,
    read_bytes,
    seal,
    segment,
)

Kind = pb.LengthAnswer

A, B = block_of("a", 100), block_of("b", 300)
END = len(A + B)


async def fill_two(store: Storage) -> None:
    """Extent 1 on disk 0, extent 2 on disk 1; all of both is durable by the journal only."""
    await create(store, 1, disk=0)
    await create(store, 2, disk=1)
    for offset, block in ((0, A), (len(A), B)):
        results = await append_all(store, segment(1, offset, [block]), segment(2, offset, [block]))
        assert [result.end for result in results] == [offset + len(block)] * 2
    assert store.state.counters.journal_entries == 4


def filled(**changes: Any) -> Machine:
    machine = Machine(2, journal_extents_min=1, checkpoint_interval_s=3600.0, **changes)
    machine.run(fill_two)
    return machine


def kept_disks(machine: Machine) -> set[int]:
    label = read_journal_label(machine.fs, JOURNAL)
    return {disk for kept in label.kept for disk in kept.disks}


async def fill_the_journal(store: Storage, *, rounds: int = 60) -> None:
    """More than all segments hold, on disk 0."""
    for extent_id in (11, 12):
        await create(store, extent_id, disk=0)
    block = block_of("x", 3000)
    for number in range(rounds):
        offset = number * len(block)
        results = await append_all(store, segment(11, offset, [block]), segment(12, offset, [block]))
        assert not any(result.HasField("error") for result in results)


async def fill_two_at_once(store: Storage) -> None:
    """The same by one record each."""
    await create(store, 1, disk=0)
    await create(store, 2, disk=1)
    results = await append_all(store, segment(1, 0, [A, B]), segment(2, 0, [A, B]))
    assert [result.end for result in results] == [END, END]
    assert store.state.counters.journal_entries == 2


async def both_are_whole(store: Storage) -> None:
    await store.verified()
    for extent_id in (1, 2):
        answer = await raise_token(store, extent_id, 99)
        assert (answer.kind, answer.length) == (Kind.LENGTH, END), extent_id


def test_t32_a_node_starts_without_a_disk_and_brings_back_what_the_journal_had_for_it_when_it_returns() -> None:
    machine = filled()
    machine.fs.power_cut()
    machine.take_disk_away(1)

    async def without(store: Storage) -> None:
        assert (await raise_token(store, 1, 98)).length == END
        assert (await raise_token(store, 2, 98)).kind == Kind.NEVER_EXISTED
        (refused,) = [info for info in store.inventory.disks() if info.state == pb.DiskInfo.OFFLINE]
        assert refused.disk_uuid == disk_uuid(1)
        assert "wiped" in refused.reason
        await fill_the_journal(store)
        assert store.state.counters.segments_recycled > 0  # the ring turns on without the segments that are kept

    machine.run(without)
    machine.fs.power_cut()

    async def clean_stop(store: Storage) -> None:
        await store.verified()
        await store.stop(clean=True)

    machine.run(clean_stop)  # however often and however gently the node stops meanwhile
    machine.fs.power_cut()
    assert len(kept_disks(machine)) == 1
    machine.bring_disk_back(1)
    machine.run(both_are_whole)
    assert not kept_disks(machine)
    machine.restart(both_are_whole)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_for_a_moment_while_it_is_read_loses_nothing(code: int) -> None:
    machine = filled()
    machine.fs.power_cut()
    fault = machine.fs.fail(
        code, match=lambda operation, path: path.startswith("/disk1/boot.json") and operation == "open", times=None
    )

    async def without(store: Storage) -> None:
        await store.verified()
        assert (await raise_token(store, 2, 98)).kind == Kind.NEVER_EXISTED

    machine.run(without)
    fault.clear()
    machine.restart(both_are_whole)


def test_t24_records_that_a_full_disk_has_no_room_for_wait_and_the_replica_answers_nothing() -> None:
    machine = Machine(2, journal_extents_min=1, checkpoint_interval_s=3600.0)
    machine.run(fill_two_at_once)
    machine.fs.power_cut()
    fault = machine.fs.fail(
        errno.ENOSPC, match=lambda operation, path: operation == "pwrite" and "/disk1/extents" in path, times=None
    )

    async def while_full(store: Storage) -> None:
        await store.verified()
        assert (await raise_token(store, 1, 98)).length == END
        assert await error_of(raise_token(store, 2, 98)) is DiskFull
        assert await error_of(fence(store, 2)) is DiskFull
        assert await error_of(seal(store, 2, 0)) is DiskFull
        (result,) = await append_all(store, segment(2, 0, [A]))
        assert result.HasField("error")
        await store.stop(clean=True)

    machine.run(while_full)
    machine.fs.power_cut()
    fault.clear()
    machine.run(both_are_whole)


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_disk_that_fails_while_its_records_are_replayed_goes_offline_and_they_stay(operation: str) -> None:
    machine = filled()
    machine.fs.power_cut()
    fault = machine.fs.fail(
        errno.EIO, match=lambda called, path: called == operation and "/disk1/extents" in path, times=None
    )

    async def while_broken(store: Storage) -> None:
        await store.verified()
        assert (await raise_token(store, 1, 98)).length == END
        assert await error_of(fence(store, 2)) is DiskFailed

    machine.run(while_broken)
    fault.clear()
    machine.fs.power_cut()

    async def back(store: Storage) -> None:
        await store.verified()
        answer = await raise_token(store, 2, 99)  # it went offline, so that its length proves nothing (rule 12)
        assert (answer.kind, answer.valid_length) == (Kind.DOUBTFUL, END)
        assert (await seal(store, 2, END)).confirmed
        assert (await raise_token(store, 1, 99)).kind == Kind.LENGTH

    machine.run(back)


def test_a_disk_that_fails_under_the_node_leaves_its_records_and_the_journal_goes_on() -> None:
    machine = Machine(2, journal_extents_min=1)

    async def work(store: Storage) -> None:
        await fill_two(store)
        machine.fs.fail(errno.EIO, match=lambda operation, path: operation == "fdatasync" and "/disk1/" in path)
        await asyncio.sleep(6)  # the checkpointer meets it
        assert await error_of(fence(store, 2)) is DiskFailed
        await fill_the_journal(store)
        assert store.state.counters.segments_recycled > 0

    machine.run(work)
    assert len(kept_disks(machine)) == 1
    machine.fs.power_cut()

    async def back(store: Storage) -> None:
        await store.verified()
        answer = await raise_token(store, 2, 99)
        assert (answer.kind, answer.valid_length) == (Kind.DOUBTFUL, END)
        assert (await seal(store, 2, END)).confirmed
        assert await read_bytes(store, 2) == A + B

    machine.run(back)
    assert not kept_disks(machine)


def test_when_all_segments_are_kept_appends_are_synced_in_place() -> None:
    machine = Machine(2, journal_extents_min=1, journal_segments_max=1, segment_bytes=12 << 10)
    block = block_of("x", 3000)

    async def fill(store: Storage, disk: int) -> None:
        for extent_id in (2 * disk, 2 * disk + 1):
            await create(store, extent_id, disk=disk)
        for number in range(2):
            pair = [segment(extent_id, number * len(block), [block]) for extent_id in (2 * disk, 2 * disk + 1)]
            assert [result.end for result in await append_all(store, *pair)] == [(number + 1) * len(block)] * 2

    async def nothing(store: Storage) -> None:
        await store.verified()

    machine.run(lambda store: fill(store, 1))
    machine.fs.power_cut()
    machine.take_disk_away(1)
    machine.run(nothing)
    machine.fs.power_cut()

    async def crowded(store: Storage) -> None:
        await fill(store, 0)
        assert store.state.counters.journal_entries == 0
        assert store.state.counters.in_place_syncs > 0

    machine.run(crowded)
    label = read_journal_label(machine.fs, JOURNAL)
    assert len(label.kept) == label.slots == 2  # twice the bound, and no more
    machine.fs.power_cut()
    machine.bring_disk_back(1)

    async def after(store: Storage) -> None:
        await store.verified()
        for extent_id in range(4):
            answer = await raise_token(store, extent_id, 99)
            assert (answer.kind, answer.length) == (Kind.LENGTH, 2 * len(block)), extent_id

    machine.run(after)
    assert not kept_disks(machine)


def test_records_are_given_up_by_the_operators_word_and_the_disk_is_doubted_if_it_comes_back() -> None:
    machine = filled()
    machine.fs.power_cut()
    machine.take_disk_away(1)

    async def nothing(store: Storage) -> None:
        await store.verified()

    machine.run(nothing)
    assert kept_disks(machine)
    machine.fs.crash()
    machine.run(nothing, give_up_disks=[disk_uuid(1)])
    assert not kept_disks(machine)
    machine.fs.crash()
    machine.bring_disk_back(1)

    async def back(store: Storage) -> None:
        await store.verified()
        assert (await raise_token(store, 1, 99)).length == END
        assert (await raise_token(store, 2, 99)).kind == Kind.DOUBTFUL

    machine.run(back)


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_kept_segment_that_lost_records_makes_that_disks_replicas_doubtful_and_no_others(how: str) -> None:
    machine = filled()
    machine.fs.power_cut()
    machine.take_disk_away(1)

    async def nothing(store: Storage) -> None:
        await store.verified()

    machine.run(nothing)
    machine.fs.power_cut()
    (kept,) = read_journal_label(machine.fs, JOURNAL).kept
    if how == "missing":
        machine.fs.unlink(slot_path(JOURNAL, kept.slot))
    else:
        machine.fs.flip(slot_path(JOURNAL, kept.slot), kept.end_position - 20, 3)
    machine.bring_disk_back(1)

    async def back(store: Storage) -> None:
        await store.verified()
        assert (await raise_token(store, 1, 99)).length == END
        assert (await raise_token(store, 2, 99)).kind == Kind.DOUBTFUL

    machine.run(back)
    machine.restart(back)


def used_bytes(machine: Machine, folder: str) -> int:
    found = disk_nodes.reachable(machine.fs._tree.node(folder), durable=False)
    return sum(node.allocated_bytes for node in found if isinstance(node, disk_nodes.File))


def test_t24_a_replica_without_room_for_its_second_record_keeps_the_first_ones_segment_too() -> None:
    """The first record is written and never synced, since the replica stalls: its segment must not be used again."""
    large = [block_of("first", 20_000), block_of("second", 20_000)]  # a segment each
    machine = Machine(1, journal_extents_min=1, checkpoint_interval_s=3600.0)

    async def fill(store: Storage) -> None:
        for daemon in store._daemons:
            daemon.cancel()  # the checkpointer, which would sync the first record's bytes in place
        await create(store, 1)
        await append(store, 1, 0, large[0])
        await append(store, 1, len(large[0]), large[1])
        assert store.state.counters.journal_entries == 2

    async def stalls(store: Storage) -> None:
        await store.verified()
        assert await error_of(fence(store, 1)) is DiskFull

    async def has_room(store: Storage) -> pb.LengthAnswer:
        await store.verified()
        return await fence(store, 1)

    machine.run(fill)
    machine.fs.power_cut()
    machine.fs.set_capacity("/disk0", used_bytes(machine, "/disk0") + len(large[0]) + 4_000)
    machine.run(stalls)
    assert len(read_journal_label(machine.fs, JOURNAL).kept) == 2
    machine.fs.power_cut()
    machine.fs.set_capacity("/disk0", 1 << 30)
    answer = machine.run(has_room)
    assert (answer.kind, answer.length) == (Kind.LENGTH, len(large[0]) + len(large[1]))


def test_a_hole_in_the_journal_makes_a_refused_disk_doubtful_also_if_only_its_folder_is_configured() -> None:
    machine = filled()
    machine.config = replace(machine.config, disks=tuple(DiskConfig(f"/disk{number}") for number in range(2)))
    machine.fs.power_cut()
    content = machine.fs.content(slot_path(JOURNAL, 0))
    at = content.index(A[8:60])  # of the first round, which later records promise to be durable
    for byte in (5, 9):
        machine.fs.flip(slot_path(JOURNAL, 0), at + byte, 3)
    fault = machine.fs.fail(errno.EIO, match=lambda _, path: path.startswith("/disk1/boot"), times=None)

    async def answer(store: Storage, extent_id: int) -> pb.LengthAnswer.Kind:
        await store.verified()
        return (await fence(store, extent_id)).kind

    assert machine.run(lambda store: answer(store, 1)) == Kind.DOUBTFUL
    fault.clear()
    machine.fs.power_cut()
    assert machine.run(lambda store: answer(store, 2)) == Kind.DOUBTFUL
