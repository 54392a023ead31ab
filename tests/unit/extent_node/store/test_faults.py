"""The store on a machine that fails: full and broken disks, failed syncs, lost journals, power cuts (T12, T23-T26)."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable

import pytest

from neve.extent_node.disk.attributes import SEAL, Meta
from neve.extent_node.disk.disk import Disk
from neve.extent_node.journal.folder import JournalRefused, format_journal, slot_path
from neve.extent_node.store.checkpoint import free_segments
from neve.extent_node.store.replica import make_replica
from neve.extent_node.store.start import NoUsableDisk
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import (
    DiskFailed,
    DiskFull,
    ExtentFenced,
    ExtentSealed,
    Overloaded,
    ReplicaDamaged,
    ReplicaDoubtful,
    ReplicaMissing,
    ReplicaReadOnly,
)
from tests.sim.disks.disk import SimulatedCrash
from tests.unit.extent_node.store.rig import (
    CLUSTER,
    JOURNAL,
    NODE_ID,
    TOKEN,
    Machine,
    append,
    append_all,
    block_of,
    create,
    delete,
    describe,
    disk_uuid,
    error_of,
    fence,
    raise_token,
    read,
    read_bytes,
    seal,
    segment,
    tell_committed,
)

A, B, C = block_of("a", 100), block_of("b", 300), block_of("c", 50)

Kind = pb.LengthAnswer


def path_of(extent_id: int, disk: int = 0) -> str:
    return f"/disk{disk}/extents/{extent_id & 0xFF:02x}/{extent_id:016x}.ext"


def on(operation: str, fragment: str) -> Callable[[str, str], bool]:
    return lambda called, path: called == operation and fragment in path


async def fill_two(store: Storage) -> None:
    """Extents 1 and 2, on disks 0 and 1 if there are two, each with A in place and B in the journal."""
    disks = len(store.inventory.disks())
    for extent_id in (1, 2):
        await create(store, extent_id, disk=(extent_id - 1) % disks)
        await append(store, extent_id, 0, A)
    await append_all(store, segment(1, len(A), [B]), segment(2, len(A), [B]))
    assert store.state.counters.journal_entries == 2


def test_a_seal_whose_last_attribute_cannot_be_removed_keeps_no_descriptor() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await fence(store, 1, token=TOKEN)
        machine.fs.fail(errno.ENOSPC, match=on("remove_xattr", f"{1:016x}"))
        assert await error_of(seal(store, 1, len(A))) is DiskFull
        assert not [path for path in machine.fs.opened().values() if f"{1:016x}" in path]

    machine.run(work)
    machine.restart(check_sealed)


async def check_sealed(store: Storage) -> None:
    assert describe(store, 1).seal.length == len(A)
    assert await read_bytes(store, 1) == A


# --- fences and doubts ---------------------------------------------------------------------------------------


def test_t12_a_fence_survives_a_power_cut_and_the_old_writer_is_refused() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert (await fence(store, 1)).fenced

    async def after(store: Storage) -> None:
        assert await error_of(append(store, 1, len(A), B)) is ExtentFenced
        assert await error_of(append(store, 1, len(A), B, token=TOKEN + 9)) is ExtentFenced
        assert (await fence(store, 1)).length == len(A)

    machine.run(work)
    machine.fs.power_cut()
    machine.run(after)


def test_a_power_cut_makes_unsynced_replicas_doubtful_and_no_restart_forgets_it() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        await append(store, 1, len(A), B, no_sync=True)

    async def look(store: Storage) -> list[pb.LengthAnswer]:
        assert await error_of(append(store, 1, len(A), B)) is ReplicaDoubtful
        return [await raise_token(store, extent_id, TOKEN) for extent_id in (1, 2)]

    machine.run(work)
    machine.fs.power_cut()
    for ending in (machine.fs.crash, machine.fs.power_cut, machine.fs.crash):
        first, second = machine.run(look)
        assert (first.kind, first.valid_length) == (Kind.DOUBTFUL, len(A + B))  # `unsynced` was fsynced with its data
        assert (second.kind, second.length) == (Kind.LENGTH, len(A))
        ending()

    async def settle(store: Storage) -> None:
        assert (await seal(store, 1, len(A))).confirmed
        assert await read_bytes(store, 1) == A

    machine.run(settle)


@pytest.mark.parametrize("what", ["fence", "seal"])
def test_attributes_that_are_durable_before_the_data_promise_nothing(what: str) -> None:
    """The power goes at each step, and of what was not synced the disk kept all attributes and no byte: `unsynced` must
    not be gone before the bytes that it warns of are there, nor a seal be there without them."""
    fresh = Machine()

    async def prepared(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await append(store, 1, len(A), B, no_sync=True)  # synced with the mark, which is set for it
        await append(store, 1, len(A + B), C, no_sync=True)

    async def change(store: Storage) -> None:
        await prepared(store)
        first.append(fresh_copy.fs.steps + 1)
        await (fence(store, 1) if what == "fence" else seal(store, 1, len(A + B + C)))
        last.append(fresh_copy.fs.steps)

    first: list[int] = []
    last: list[int] = []
    fresh_copy = fresh.clone()
    fresh_copy.run(change)
    ends = set()
    for step in range(first[0], last[0] + 1):
        machine = fresh.clone()
        machine.fs.stop_at(step)
        with pytest.raises(SimulatedCrash):
            machine.run(change)
        machine.fs.power_cut("attributes")

        async def look(store: Storage) -> None:
            await store.verified()
            info = describe(store, 1)
            if info.kind == Kind.LENGTH:
                assert info.length == len(A + B + C)
            ends.add((info.kind, info.HasField("seal")))

        machine.run(look)
    assert {kind for kind, _ in ends} == {Kind.DOUBTFUL, Kind.LENGTH}


def test_a_stop_before_every_replica_was_looked_at_is_not_clean() -> None:
    """A torn block at the end: who believes the file's size without looking answers half a block as a length."""
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        machine.fs.stop_at(machine.fs.steps + 1, "torn")
        await append(store, 1, len(A), B)

    with pytest.raises(SimulatedCrash):
        machine.run(work)
    machine.fs.crash()

    async def stop_at_once(store: Storage) -> None:
        await store.stop(clean=True)

    machine.run(stop_at_once)
    machine.fs.crash()

    async def look(store: Storage) -> None:
        answer = await raise_token(store, 1, 99)
        assert (answer.kind, answer.length) == (Kind.LENGTH, len(A))

    machine.run(look)


def test_a_kill_makes_nothing_doubtful() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        for number in range(3):
            await append(store, 1, number * len(A), A, no_sync=True)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).length == 3 * len(A)

    machine.run(work)
    machine.restart(after)


def killed_before_its_seal_was_synced() -> Machine:
    """Extent 1 has all its bytes, and a seal that only the page cache knows."""
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)

        def ends_here(operation: str, path: str) -> bool:
            if operation == "fsync" and SEAL in machine.fs._tree.file(path_of(1)).xattrs:
                raise SimulatedCrash("after the seal was set, before it was synced")
            return False

        machine.fs.fail(0, match=ends_here)
        await seal(store, 1, len(A))

    with pytest.raises(SimulatedCrash):
        machine.run(work)
    machine.fs._faults._faults.clear()
    return machine


def test_a_seal_that_a_killed_process_left_unsynced_is_made_durable_by_the_next_one() -> None:
    machine = killed_before_its_seal_was_synced()

    async def look(store: Storage) -> bool:
        await store.verified()
        return describe(store, 1).HasField("seal")

    assert SEAL not in machine.fs._tree.file(path_of(1)).durable_xattrs
    assert machine.restart(look)
    machine.fs.power_cut()
    assert machine.run(look)


def test_a_stop_before_the_verifier_came_to_a_seal_is_not_clean() -> None:
    """A seal that a killed process set and did not sync is not durable because the next process stopped in order."""
    machine = killed_before_its_seal_was_synced()

    async def stop_at_once(store: Storage) -> None:
        await store.stop(clean=True)

    async def confirm(store: Storage) -> bool:
        return (await seal(store, 1, len(A))).confirmed

    async def look(store: Storage) -> bool:
        return describe(store, 1).HasField("seal")

    machine.restart(stop_at_once)
    assert machine.restart(confirm)
    machine.fs.power_cut()
    assert machine.run(look)


def test_a_sync_that_ends_after_its_replica_was_deleted_leaves_no_dirty_bytes_behind() -> None:
    machine = Machine(journal_extents_min=1000, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, no_sync=True)
        await append(store, 1, len(A), A, no_sync=True)  # the first one was synced with its attribute
        found = store.state.replicas[1]
        assert store.state.dirty.bytes_now > 0
        await delete(store, 1)
        assert store.state.dirty.bytes_now == 0
        store.state.dirty.update(found)  # as at the end of a sync that was under way
        assert store.state.dirty.bytes_now == 0

    machine.run(work)


# --- T23: a failed sync --------------------------------------------------------------------------------------


def test_t23_an_append_whose_sync_failed_is_not_acknowledged_now_or_later() -> None:
    machine = Machine(2)

    async def work(store: Storage) -> None:
        await fill_two(store)
        machine.fs.fail(errno.EIO, match=on("fdatasync", f"{1:016x}"))
        assert await error_of(append(store, 1, len(A + B), C)) is DiskFailed
        for _ in range(3):  # the second fdatasync would succeed, and prove nothing
            assert await error_of(append(store, 1, len(A + B), C)) in (ReplicaReadOnly, DiskFailed, ReplicaDoubtful)
        assert await error_of(fence(store, 1)) is not None
        states = {info.disk_uuid: info.state for info in store.inventory.disks()}
        assert states == {disk_uuid(0): pb.DiskInfo.OFFLINE, disk_uuid(1): pb.DiskInfo.WRITABLE}
        assert (await append(store, 2, len(A + B), C)).end == len(A + B + C)  # the other disk lives on
        await asyncio.sleep(1)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).kind == Kind.DOUBTFUL
        assert (await raise_token(store, 2, 99)).length == len(A + B + C)

    machine.run(work)
    machine.restart(after)  # the same boot: the page cache shows C, and calls it clean
    machine.fs.power_cut()
    machine.run(after)


def test_t23_a_failed_sync_for_lack_of_room_stops_that_file_only() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await fill_two(store)
        machine.fs.fail(errno.ENOSPC, match=on("fdatasync", f"{1:016x}"))
        assert await error_of(append(store, 1, len(A + B), C)) is ReplicaReadOnly
        await asyncio.sleep(6)
        assert await error_of(append(store, 1, len(A + B), C)) is not None
        assert (await append(store, 2, len(A + B), C)).end == len(A + B + C)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).kind == Kind.DOUBTFUL
        assert (await raise_token(store, 2, 99)).kind == Kind.LENGTH

    machine.run(work)
    machine.restart(after)


def test_t23_a_failed_sync_of_the_journal_fails_its_appends_and_what_it_held_goes_in_place() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await fill_two(store)
        machine.fs.fail(errno.EIO, match=on("fdatasync", ".seg"))
        results = await append_all(store, segment(1, len(A + B), [C]), segment(2, len(A + B), [C]))
        assert [result.error.code for result in results] == [DiskFailed.code, DiskFailed.code]
        assert store.state.journal.failed
        # Sent again, they are durable by the extents' own files, which nothing is wrong with.
        results = await append_all(store, segment(1, len(A + B), [C]), segment(2, len(A + B), [C]))
        assert [result.error.code for result in results] == [0, 0]
        assert store.state.counters.journal_rounds == 2

    async def after(store: Storage) -> None:
        for extent_id in (1, 2):
            assert (await raise_token(store, extent_id, 99)).length == len(A + B + C)

    machine.run(work)
    machine.fs.power_cut()
    machine.run(after)


def test_t23_journaled_bytes_whose_own_sync_failed_unseen_are_written_again_by_the_replay() -> None:
    """The kernel reported the error to nobody who could write it down: the process was killed at that moment."""
    machine = Machine()

    async def work(store: Storage) -> None:
        await fill_two(store)

    machine.run(work)
    machine.fs.fail(errno.EIO, match=on("fdatasync", f"{1:016x}"))
    descriptor = machine.fs.open(path_of(1))
    with pytest.raises(OSError, match="Input"):
        machine.fs.fdatasync(descriptor)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).length == len(A + B)

    machine.restart(after)
    machine.fs.power_cut()
    machine.run(after)


# --- T24: a full disk ----------------------------------------------------------------------------------------


def test_t24_a_full_disk_refuses_appends_keeps_what_is_acknowledged_and_recovers() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        machine.fs.short_write_chance = 1.0  # a part is written, then there is no room
        fault = machine.fs.fail(errno.ENOSPC, match=_after_first_write(), times=None)
        assert await error_of(append(store, 1, len(A), B)) is DiskFull
        machine.fs.short_write_chance = 0.0
        assert machine.fs.content(path_of(1)) == A
        assert await error_of(append(store, 1, len(A), B)) is ReplicaReadOnly
        assert await error_of(create(store, 2)) is DiskFull
        assert (await raise_token(store, 1, TOKEN)).length == len(A)
        fault.clear()
        await asyncio.sleep(6)  # the housekeeper sees the room
        assert (await append(store, 1, len(A), B)).end == len(A + B)

    machine.run(work)


def _after_first_write() -> Callable[[str, str], bool]:
    writes = 0

    def match(operation: str, path: str) -> bool:
        nonlocal writes
        writes += operation == "pwrite" and path.endswith(".ext")
        return operation == "pwrite" and path.endswith(".ext") and writes > 1

    return match


def test_t24_what_a_failed_write_left_and_cannot_be_removed_stops_the_replica() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        machine.fs.short_write_chance = 1.0
        machine.fs.fail(errno.ENOSPC, match=_after_first_write())
        machine.fs.fail(errno.ENOSPC, match=on("truncate", ".ext"))
        assert await error_of(append(store, 1, len(A), B)) is DiskFull
        machine.fs.short_write_chance = 0.0
        await asyncio.sleep(6)
        assert await error_of(append(store, 1, len(A), B)) is ReplicaReadOnly

    async def after(store: Storage) -> None:
        assert (await append(store, 1, len(A), B)).end == len(A + B)

    machine.run(work)
    assert len(machine.fs.content(path_of(1))) > len(A)
    machine.restart(after)


def test_t24_a_seal_finishes_on_a_full_disk_and_its_index_is_made_later() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, B)
        machine.fs.fail(errno.ENOSPC, match=on("pwrite", ".idx"), times=1)
        assert (await seal(store, 1, len(A + B))).confirmed
        assert machine.fs.stat(path_of(1).replace(".ext", ".idx")) is None
        assert await read_bytes(store, 1) == A + B
        assert machine.fs.stat(path_of(1).replace(".ext", ".idx")) is not None

    machine.run(work)


def test_t24_without_room_for_another_segment_appends_are_synced_in_place() -> None:
    machine = Machine(segment_bytes=8 << 10)

    async def work(store: Storage) -> None:
        machine.fs.fail(errno.ENOSPC, match=lambda op, path: op == "open" and "0002.seg" in path, times=None)
        for extent_id in (1, 2):
            await create(store, extent_id)
        for number in range(12):
            big = block_of(f"{number}", 1500)
            offset = number * len(big)
            results = await append_all(store, segment(1, offset, [big]), segment(2, offset, [big]))
            assert [result.error.code for result in results] == [0, 0]
        assert store.state.counters.journal_full > 0

    machine.run(work)


# --- T25 and T26: what the journal may forget, and what it may not bring back --------------------------------


def test_t25_the_checkpoint_of_one_disk_does_not_drop_what_another_one_needs() -> None:
    machine = Machine(2, segment_bytes=8 << 10, journal_segments_max=2)

    async def work(store: Storage) -> int:
        await fill_two(store)
        shared = store.state
        length = len(A + B)
        for daemon in store._daemons:
            daemon.cancel()  # nobody syncs disk 1
        while store.state.counters.journal_full == 0:
            big = block_of("x", 900)
            results = await append_all(store, segment(1, length, [big]), segment(2, length, [big]))
            assert [result.error.code for result in results] == [0, 0]
            length += len(big)
            assert await shared.committer.sync_in_place(shared.replicas[1])  # disk 0 is always up to date
            if store.state.counters.journal_full == 0:  # then, and only then, both were synced in place
                await free_segments(shared)
                assert store.state.counters.segments_recycled == 0
        return length

    length = machine.run(work)
    machine.fs.power_cut()

    async def after(store: Storage) -> None:
        for extent_id in (1, 2):
            assert (await raise_token(store, extent_id, 99)).length == length

    machine.run(after)


def test_t26_the_replay_adds_nothing_to_a_sealed_a_deleted_or_a_new_replica() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        for extent_id in (1, 2, 3):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        await append_all(store, *(segment(extent_id, len(A), [B]) for extent_id in (1, 2, 3)))
        await seal(store, 1, len(A))
        await delete(store, 2)

    machine.run(work)
    machine.fs.crash()
    # Extent 3 is made anew, as a copy would: the same name, another incarnation.
    machine.fs.unlink(path_of(3))
    disk = Disk.open(machine.fs, "/disk0", cluster=CLUSTER, node_id=NODE_ID)
    meta = Meta(3, 1, 4242, 0, 0, 1 << 20, NODE_ID, disk.uuid)
    make_replica(disk, meta, preallocate_bytes=0)
    machine.fs.crash()

    async def after(store: Storage) -> None:
        assert store.state.counters.skipped_records == 3
        assert await read_bytes(store, 1) == A
        assert (await fence(store, 2)).kind == Kind.DELETED
        assert (await fence(store, 3)).length == 0
        assert await error_of(append(store, 1, len(A), B)) is ExtentSealed

    machine.run(after)
    assert machine.fs.content(path_of(1)) == A


def test_t26_a_gap_below_a_record_is_not_jumped_over() -> None:
    machine = Machine()
    machine.run(fill_two)
    machine.fs.crash()
    descriptor = machine.fs.open(path_of(1))
    machine.fs.truncate(descriptor, 0)  # bytes that were durable are gone
    machine.fs.fsync(descriptor)

    async def after(store: Storage) -> None:
        answer = await raise_token(store, 1, 99)
        assert (answer.kind, answer.valid_length) == (Kind.DOUBTFUL, 0)
        assert (await raise_token(store, 2, 99)).length == len(A + B)

    machine.restart(after)


def test_other_valid_bytes_than_the_journals_are_damage_and_stay() -> None:
    machine = Machine()
    machine.run(fill_two)
    machine.fs.crash()
    other = block_of("other", 300)
    assert len(other) == len(B)
    descriptor = machine.fs.open(path_of(1))
    machine.fs.pwrite(descriptor, [other], len(A))
    machine.fs.fsync(descriptor)

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).kind == Kind.DOUBTFUL

    machine.restart(after)
    assert machine.fs.content(path_of(1)) == A + other


def test_bytes_that_a_power_cut_left_as_zeros_are_healed_from_the_journal() -> None:
    machine = Machine()
    machine.run(fill_two)
    machine.fs.power_cut()
    descriptor = machine.fs.open(path_of(1))
    machine.fs.pwrite(descriptor, [bytes(len(B) + 20)], len(A))  # the size came through, the bytes did not
    machine.fs.fsync(descriptor)
    machine.fs.crash()

    async def after(store: Storage) -> None:
        answer = await raise_token(store, 1, 99)
        assert (answer.kind, answer.valid_length) == (Kind.DOUBTFUL, len(A + B))  # zeros above are damage (rule 13)
        assert (await seal(store, 1, len(A + B))).confirmed
        assert await read_bytes(store, 1) == A + B

    machine.run(after)


# --- the journal as a whole ----------------------------------------------------------------------------------


def test_a_hole_in_the_journal_makes_open_replicas_doubtful_and_sealed_ones_not() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 3)
        await seal(store, 3, 0)
        await fill_two(store)
        await append_all(store, segment(1, len(A + B), [C]), segment(2, len(A + B), [C]))

    machine.run(work)
    machine.fs.power_cut()
    machine.fs.flip(slot_path(JOURNAL, 0), 4096 + 90, 2)

    async def after(store: Storage) -> None:
        for extent_id in (1, 2):
            assert (await raise_token(store, extent_id, 99)).kind == Kind.DOUBTFUL
        assert (await raise_token(store, 3, 99)).kind == Kind.LENGTH
        await create(store, 4)
        assert (await append(store, 4, 0, A)).end == len(A)

    machine.run(after)

    async def later(store: Storage) -> None:  # the hole is dealt with: what was made since is not touched by it
        assert (await raise_token(store, 4, 99)).kind == Kind.LENGTH
        assert (await raise_token(store, 1, 99)).kind == Kind.DOUBTFUL

    machine.restart(later)


@pytest.mark.parametrize("clean", [False, True])
def test_a_lost_journal_is_refused_and_a_new_one_leaves_doubt_unless_the_stop_was_clean(clean: bool) -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await fill_two(store)
        if clean:
            await store.stop(clean=True)

    machine.run(work)
    machine.fs.power_cut()
    machine.fs.wipe(JOURNAL)
    with pytest.raises(JournalRefused, match="format a new one"):
        machine.run(fill_two)
    machine.fs.crash()
    format_journal(
        machine.fs,
        JOURNAL,
        cluster=CLUSTER,
        node_id=NODE_ID,
        journal_uuid=uuid.UUID(int=1234),
        segment_bytes=32 << 10,
    )

    async def after(store: Storage) -> None:
        for extent_id in (1, 2):
            answer = await raise_token(store, extent_id, 99)
            assert answer.kind == (Kind.LENGTH if clean else Kind.DOUBTFUL)
            assert (answer.length or answer.valid_length) == len(A + B if clean else A)

    machine.run(after)
    machine.restart(after)


# --- disks that fail or are not there ------------------------------------------------------------------------


def test_a_disk_that_fails_goes_offline_and_the_node_lives_on() -> None:
    machine = Machine(2)

    async def work(store: Storage) -> None:
        await fill_two(store)
        machine.fs.fail(errno.EIO, match=on("pwrite", f"{1:016x}"))
        assert await error_of(append(store, 1, len(A + B), C)) is DiskFailed
        assert await error_of(append(store, 1, len(A + B), C)) is not None
        assert await error_of(read_bytes(store, 1)) is DiskFailed
        assert await error_of(create(store, 9, disk=0)) is DiskFailed
        await create(store, 10)  # the node chooses the disk that works
        assert describe(store, 10).replica.disk_uuid == disk_uuid(1)
        assert (await append(store, 2, len(A + B), C)).end == len(A + B + C)
        await asyncio.sleep(60)  # the journal goes round without the disk
        for number in range(40):
            big = block_of("y", 1500)
            offset, other = len(A + B + C) + number * len(big), number * len(big)
            results = await append_all(store, segment(2, offset, [big]), segment(10, other, [big]))
            assert [result.error.code for result in results] == [0, 0]

    async def after(store: Storage) -> None:
        assert (await raise_token(store, 1, 99)).kind == Kind.DOUBTFUL
        assert (await raise_token(store, 10, 99)).kind == Kind.LENGTH

    machine.run(work)
    machine.restart(after)


def test_a_node_without_any_usable_disk_says_why_each_is_refused() -> None:
    machine = Machine(2)
    machine.fs.wipe("/disk0")
    machine.fs.flip("/disk1/disk.json", 30, 1)
    with pytest.raises(NoUsableDisk, match=r"/disk0: .*wiped.*; /disk1: .*damaged"):
        machine.run(fill_two)


def test_t32_a_file_of_another_extent_or_another_disk_is_no_replica() -> None:
    machine = Machine(2)
    machine.run(fill_two)
    machine.fs.crash()
    machine.fs.rename(path_of(1), path_of(5))
    machine.fs.rename(path_of(2, disk=1), path_of(2))

    async def after(store: Storage) -> None:
        assert (await fence(store, 1)).kind == Kind.NEVER_EXISTED
        for extent_id in (2, 5):  # a file with that name was here, and nobody knows what it was
            assert (await fence(store, extent_id)).kind == Kind.DAMAGED
            assert await error_of(create(store, extent_id)) is ReplicaDamaged

    machine.run(after)
    assert len(machine.fs.list_dir("/disk0/quarantine")) == 2


def test_a_read_error_is_not_answered_as_data() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await seal(store, 1, len(A))
        machine.fs.fail(errno.EIO, match=on("pread", ".ext"))
        assert await error_of(read_bytes(store, 1)) is DiskFailed

    machine.run(work)


def test_a_range_that_a_transport_could_not_read_is_looked_at_again_and_not_answered_as_data() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await seal(store, 1, len(A))
        part = (await read(store, 1)).file
        assert part is not None
        machine.fs.fail(errno.EIO, match=on("pread", ".ext"))
        assert await read_bytes(store, 1) == A  # from the mapping
        part.unreadable("an error of the disk")
        assert await error_of(read_bytes(store, 1)) is DiskFailed

    machine.run(work)


@pytest.mark.parametrize("resident", [True, False])
def test_a_range_is_read_from_the_disk_first_unless_it_is_in_memory(
    resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    asked: list[tuple[int, int]] = []

    def is_resident(mapped: memoryview, start: int, end: int) -> bool:
        asked.append((start, end))
        return resident

    monkeypatch.setattr(machine.fs, "is_resident", is_resident)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, B)
        await seal(store, 1, len(A + B))
        machine.fs.fail(errno.EIO, match=on("pread", ".ext"))
        if resident:
            assert await read_bytes(store, 1, len(A)) == B
            assert await read_bytes(store, 1) == A + B
        else:
            assert await error_of(read_bytes(store, 1, len(A))) is DiskFailed
        assert asked == [(0, len(A + B))]  # as much as is noted as being in memory

    machine.run(work)


def test_the_descriptor_of_a_range_is_given_out_only_while_its_file_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(sealed_files_max=1)
    monkeypatch.setattr(machine.fs, "kernel_fd", lambda fd: fd)

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
            await seal(store, extent_id, len(A))
        first = (await read(store, 1)).file
        assert first is not None
        assert first.descriptor() is not None
        second = (await read(store, 2)).file  # closes the first
        assert second is not None
        assert (first.descriptor(), bytes(first.view)) == (None, A)
        assert second.descriptor() is not None
        await delete(store, 2)
        assert (second.descriptor(), bytes(second.view)) == (None, A)

    machine.run(work)


# --- bounds --------------------------------------------------------------------------------------------------


def test_appends_wait_while_too_many_bytes_are_dirty_and_all_of_them_come_through() -> None:
    machine = Machine(dirty_bytes_soft=2_000, dirty_bytes_hard=4_000)

    async def work(store: Storage) -> None:
        big = block_of("x", 1000)
        for extent_id in range(1, 5):
            await create(store, extent_id)
        tasks = []
        for number in range(20):
            for extent_id in range(1, 5):
                message, body = segment(extent_id, number * len(big), [big], no_sync=True)
                tasks.append(asyncio.ensure_future(append_all(store, (message, body))))
        peak = 0
        while not all(task.done() for task in tasks):
            peak = max(peak, store.state.dirty.bytes_now)
            await asyncio.sleep(0.0001)  # 0 would let no time pass, and threads need some
        assert [result.error.code for task in tasks for result in task.result()] == [0] * 80
        assert peak < 4_000 + 80 * len(big)
        assert store.state.counters.checkpoint_syncs > 0

    machine.run(work)


def test_requests_beyond_the_bound_for_one_replica_are_refused_before_anything_is_done() -> None:
    machine = Machine(append_waiters_max=5, followers_max=2)

    async def work(store: Storage) -> None:
        await create(store, 1)
        tasks = [asyncio.ensure_future(append(store, 1, n * len(A), A, no_sync=True)) for n in range(20)]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [isinstance(result, Overloaded) for result in done]
        assert refused[:6] == [False] * 6
        assert any(refused)
        assert describe(store, 1).length == refused.index(True) * len(A)
        follow = {"follow": True, "wait_ms": 1000}
        readers = [asyncio.ensure_future(read_bytes(store, 1, **follow)) for _ in range(4)]
        answers = await asyncio.gather(*readers, return_exceptions=True)
        assert [isinstance(answer, Overloaded) for answer in answers] == [False, False, True, True]

    machine.run(work)


def test_sealed_extents_beyond_the_bound_are_closed_and_opened_again() -> None:
    machine = Machine(sealed_files_max=2)

    async def work(store: Storage) -> None:
        for extent_id in range(1, 6):
            await create(store, extent_id)
            await append(store, extent_id, 0, A, block_of(str(extent_id)))
            await seal(store, extent_id, len(A) + len(block_of("1")))
        for _ in range(2):
            for extent_id in range(1, 6):
                assert await read_bytes(store, extent_id) == A + block_of(str(extent_id))
                assert len(store.state.sealed_files._open) <= 2

    machine.run(work)


def test_an_append_whose_caller_gives_up_is_finished_and_blocks_nobody() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        task = asyncio.ensure_future(append(store, 1, 0, A))
        await asyncio.sleep(0)
        task.cancel()
        assert (await append(store, 1, len(A), B)).end == len(A + B)
        await tell_committed(store, 1, len(A + B))
        assert await read_bytes(store, 1) == A + B

    Machine().run(work)


def test_pipelined_appends_of_one_writer_keep_their_order_whatever_each_needs() -> None:
    """The first needs a token made durable, some are no_sync, some come again: none overtakes another."""

    async def work(store: Storage) -> None:
        await create(store, 1)
        made = [block_of(f"{number}", 50 + number) for number in range(40)]
        tasks, offset = [], 0
        for number, block in enumerate(made):
            token = TOKEN + number // 10
            how = {"no_sync": number % 3 == 1, "token": token}
            tasks.append(asyncio.ensure_future(append(store, 1, offset, block, **how)))
            if number % 7 == 3:
                tasks.append(asyncio.ensure_future(append(store, 1, offset, block, **how)))
            offset += len(block)
        await asyncio.gather(*tasks)
        assert (await fence(store, 1)).length == offset
        await seal(store, 1, offset)
        assert await read_bytes(store, 1) == b"".join(made)

    Machine().run(work)


def test_a_replica_that_is_deleted_while_others_wait_for_it_is_missing_to_them() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        deleting = asyncio.ensure_future(delete(store, 1))
        while not store.state.replicas[1].lock.held:
            await asyncio.sleep(0)
        late = [append(store, 1, len(A), B), seal(store, 1, len(A)), append(store, 1, 0, A, no_sync=True)]
        assert await asyncio.gather(*(error_of(work) for work in late)) == [ReplicaMissing] * 3
        assert await deleting

    Machine().run(work)


def test_a_removed_file_is_damage_of_that_replica_and_not_of_the_disk() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
            await seal(store, extent_id, len(A))
        machine.fs.unlink(path_of(1))
        assert await error_of(read_bytes(store, 1)) is ReplicaDamaged
        assert await read_bytes(store, 2) == A

    machine.run(work)


@pytest.mark.parametrize(("label", "clean"), [("/disk0/boot", [False, True]), (f"{JOURNAL}/", [False, False])])
def test_a_stop_that_cannot_write_a_label_ends_all_the_same_and_other_disks_are_clean(
    label: str, clean: list[bool]
) -> None:
    machine = Machine(2)

    async def work(store: Storage) -> None:
        await fill_two(store)
        fault = machine.fs.fail(errno.EIO, match=on("pwrite", label), times=None)
        await store.stop()
        fault.clear()
        boots = [disk.last_boot() for disk in store.state.disks.values()]
        assert [boot is not None and boot.clean for boot in boots] == clean

    async def after(store: Storage) -> None:
        for extent_id in (1, 2):
            assert (await raise_token(store, extent_id, TOKEN)).length == len(A + B)

    machine.run(work)
    machine.run(after)  # in the same process: the locks were given back
