"""What was moved aside does not come back as an empty replica, as a second one, or at all (rules 22, 24; G8)."""

from __future__ import annotations

import asyncio
import errno

import pytest

from neve.extent_node.disk import attributes
from neve.extent_node.store import control as store_control
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFull, Internal, NeveError, ReplicaDamaged, ReplicaDeleted
from tests.sim import loop as sim_loop
from tests.unit.extent_node.store.copy_rig import BLOCKS, BYTES, EXTENT, PATH, Cluster, fill, order
from tests.unit.extent_node.store.rig import (
    EVERSION,
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
    read_bytes,
    seal,
    segment,
)

Kind = pb.LengthAnswer

A = block_of("a", 50)


# --- quarantine ----------------------------------------------------------------------------------------------


def spoiled() -> Machine:
    """A replica with acknowledged bytes whose attributes cannot be read any more."""
    machine = Machine(2)

    async def work(store: Storage) -> None:
        await fill(store, BLOCKS)

    machine.run(work)
    machine.fs.crash()
    file = machine.fs._tree.file(PATH)
    value = bytearray(file.xattrs[attributes.TOKEN])
    value[2] ^= 1
    file.xattrs[attributes.TOKEN] = file.durable_xattrs[attributes.TOKEN] = bytes(value)
    return machine


def test_a_late_create_does_not_make_an_empty_replica_of_what_is_in_quarantine() -> None:
    machine = spoiled()

    async def late(store: Storage) -> None:
        await store.verified()
        assert (await fence(store, EXTENT)).kind == Kind.DAMAGED
        assert await error_of(create(store, EXTENT, disk=1)) is ReplicaDamaged  # on whatever disk
        answer = await raise_token(store, EXTENT, 20)
        assert (answer.kind, answer.length, answer.valid_length) == (Kind.DAMAGED, 0, 0)
        assert await error_of(append(store, EXTENT, 0, A)) is ReplicaDamaged
        assert await error_of(read_bytes(store, EXTENT)) is ReplicaDamaged
        assert await error_of(seal(store, EXTENT, 0)) is ReplicaDamaged
        with pytest.raises(ReplicaDamaged):
            describe(store, EXTENT)

    machine.run(late)
    machine.restart(late)
    machine.fs.power_cut()
    machine.run(late)


def test_a_replica_that_the_store_puts_in_quarantine_is_damaged_at_once_and_after_a_restart() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await fill(store, BLOCKS)
        assert (await seal(store, EXTENT, len(BYTES))).confirmed
        incarnation = describe(store, EXTENT).replica.incarnation
        assert await store_control.quarantine(store.state, EXTENT, incarnation=incarnation, reason="a test")
        await look(store)

    async def look(store: Storage) -> None:
        assert (await fence(store, EXTENT)).kind == Kind.DAMAGED
        assert await error_of(create(store, EXTENT)) is ReplicaDamaged

    machine.run(work)
    machine.restart(look)


def test_a_copy_takes_the_place_of_what_is_in_quarantine() -> None:
    machine = spoiled()

    async def process() -> None:
        cluster = Cluster()
        source, node = await cluster.sealed_node(), await cluster.node(machine)
        made = cluster.copier(node)
        request = order(source)
        made.start(request)
        assert (await made.wait(request.task_id)).state == pb.CopyStatusReply.DONE
        assert await read_bytes(node.store, EXTENT) == BYTES

    sim_loop.run(process())
    machine.fs.power_cut()

    async def after(store: Storage) -> None:
        assert (await fence(store, EXTENT)).kind == Kind.LENGTH
        assert await read_bytes(store, EXTENT) == BYTES
        # Deleted, it is deleted, and what is in quarantine says nothing more.
        assert await delete(store, EXTENT)
        assert (await fence(store, EXTENT)).kind == Kind.DELETED
        assert await error_of(create(store, EXTENT)) is ReplicaDeleted

    machine.run(after)
    assert len(machine.fs.list_dir("/disk0/quarantine")) == 1


def test_what_is_in_quarantine_can_be_deleted_by_order_and_its_file_stays_for_a_person() -> None:
    machine = spoiled()

    async def work(store: Storage) -> None:
        assert not await delete(store, EXTENT)
        await look(store)

    async def look(store: Storage) -> None:
        assert (await fence(store, EXTENT)).kind == Kind.DELETED
        assert await error_of(create(store, EXTENT)) is ReplicaDeleted

    machine.run(work)
    machine.restart(look)
    assert len(machine.fs.list_dir("/disk0/quarantine")) == 1


# --- two disks of one node -----------------------------------------------------------------------------------


def copied_while_away(*, sealed: bool) -> Machine:
    """Disk 0 has a replica and goes away; a copy is made on disk 1; disk 0 is back."""
    machine = Machine(2)

    async def work(store: Storage) -> None:
        await create(store, EXTENT, disk=0)
        await append(store, EXTENT, 0, *(BLOCKS if sealed else BLOCKS[:3]))
        if sealed:
            assert (await seal(store, EXTENT, len(BYTES))).confirmed

    machine.run(work)
    machine.fs.power_cut()
    machine.take_disk_away(0)

    async def process() -> None:
        cluster = Cluster()
        source, node = await cluster.sealed_node(), await cluster.node(machine)
        made = cluster.copier(node)
        made.start(order(source, eversion=EVERSION + 3))
        assert (await made.wait(1)).state == pb.CopyStatusReply.DONE

    sim_loop.run(process())
    machine.fs.power_cut()
    return machine


@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_old_replica_of_a_disk_that_is_back_goes_to_the_trash(is_sealed: bool) -> None:
    machine = copied_while_away(sealed=is_sealed)
    machine.bring_disk_back(0)

    async def after(store: Storage) -> None:
        await store.verified()
        assert describe(store, EXTENT).replica.disk_uuid == disk_uuid(1)
        assert await read_bytes(store, EXTENT) == BYTES
        assert sum(disk.extents for disk in store.inventory.disks()) == 1

    machine.run(after)
    assert machine.fs.stat(PATH) is None
    assert len(machine.fs.list_dir("/disk0/trash")) == 1
    machine.restart(after)


def test_of_two_replicas_the_one_with_bytes_that_the_other_may_not_have_is_kept_for_a_person() -> None:
    machine = Machine(2)

    async def empty(store: Storage) -> None:  # by a manager that named the other disk, while the first one was away
        await create(store, EXTENT, disk=1)

    async def work(store: Storage) -> None:
        await create(store, EXTENT, disk=0)
        await append(store, EXTENT, 0, *BLOCKS)

    machine.run(work)
    machine.fs.power_cut()
    machine.take_disk_away(0)
    machine.run(empty)
    machine.fs.power_cut()
    machine.bring_disk_back(0)

    async def after(store: Storage) -> None:
        await store.verified()
        answer = await raise_token(store, EXTENT, 20)
        assert (answer.kind, answer.length) == (Kind.LENGTH, len(BYTES))
        assert EXTENT in store.state.quarantined  # now, and not by the next start alone

    machine.run(after)
    assert len(machine.fs.list_dir("/disk1/quarantine")) == 1


def test_a_tombstone_counts_for_all_disks_of_the_node() -> None:
    machine = copied_while_away(sealed=True)

    async def delete_it(store: Storage) -> None:
        assert await delete(store, EXTENT, eversion=EVERSION + 3)

    machine.run(delete_it)
    machine.fs.power_cut()
    machine.bring_disk_back(0)

    async def after(store: Storage) -> None:
        await store.verified()
        assert (await fence(store, EXTENT)).kind == Kind.DELETED
        assert await error_of(read_bytes(store, EXTENT)) is ReplicaDeleted

    machine.run(after)
    assert len(machine.fs.list_dir("/disk0/trash")) == 1


# --- create --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["fence", "raise"])
def test_a_fence_that_comes_while_a_create_is_under_way_waits_for_it(ask: str) -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        creating = asyncio.ensure_future(create(store, 1))
        while 1 not in store.state.creating:
            await asyncio.sleep(0)
        answer = await (fence(store, 1) if ask == "fence" else raise_token(store, 1, 50))
        await creating
        assert (answer.kind, answer.length) == (Kind.LENGTH, 0)
        if ask == "fence":
            assert await error_of(append(store, 1, 0, A)) is not None

    machine.run(work)


@pytest.mark.parametrize("operation", ["set_xattr", "fsync", "rename", "fsync_dir"])
def test_a_create_that_fails_leaves_no_file_behind_and_can_be_repeated(operation: str) -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        machine.fs.fail(errno.ENOSPC, match=lambda called, path: called == operation and path.startswith("/disk0"))
        assert await error_of(create(store, 1)) is DiskFull
        assert machine.fs.list_dir("/disk0/tmp") == []
        assert machine.fs.list_dir("/disk0/extents/01") == []
        await asyncio.sleep(6)  # there is room again
        await create(store, 1)
        await append(store, 1, 0, A)

    machine.run(work)


# --- append --------------------------------------------------------------------------------------------------


def test_an_append_that_meets_a_bug_is_answered_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)

        async def breaks(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr("neve.extent_node.store.append.ensure_verified", breaks)
            async with asyncio.timeout(60):
                (result,) = await append_all(store, segment(1, 0, [A], token=12))  # a new token: the long way
            error = NeveError if not result.HasField("error") else _class_of(result)
            assert error is Internal
        assert (await append(store, 1, 0, A, token=12)).end == len(A)

    machine.run(work)


def _class_of(result: pb.SegmentResult) -> type[NeveError]:
    from neve.proto import errors

    return type(errors.from_message(result.error))


# --- indexes -------------------------------------------------------------------------------------------------


def test_an_index_whose_extent_was_moved_aside_when_the_process_died_is_removed_by_the_next_start() -> None:
    machine = Machine(1)
    index = PATH.replace(".ext", ".idx")

    async def killed_before_the_index_goes(store: Storage) -> None:
        await fill(store, BLOCKS)
        await seal(store, EXTENT, len(BYTES))
        machine.fs.fail(errno.EIO, match=lambda call, path: call == "unlink" and path == index)
        assert await error_of(delete(store, EXTENT))

    machine.run(killed_before_the_index_goes)
    assert machine.fs.stat(index) is not None
    assert machine.fs.stat(PATH) is None

    async def look(store: Storage) -> None:
        assert machine.fs.stat(index) is None

    machine.restart(look)


def test_an_index_beside_its_extent_stays_after_an_unclean_stop() -> None:
    machine = Machine(1)

    async def sealed(store: Storage) -> None:
        await fill(store, BLOCKS)
        await seal(store, EXTENT, len(BYTES))

    machine.run(sealed)

    async def look(store: Storage) -> None:
        assert machine.fs.stat(PATH.replace(".ext", ".idx")) is not None

    machine.restart(look)


# --- a full disk ---------------------------------------------------------------------------------------------


def test_a_start_on_a_disk_without_room_for_a_name_serves_nothing_of_what_it_cannot_move_to_the_trash() -> None:
    machine = Machine(1)

    async def killed_in_a_delete(store: Storage) -> None:
        await fill(store, BLOCKS)
        machine.fs.fail(errno.EINTR, match=lambda call, path: call == "rename" and path == PATH)
        assert await error_of(delete(store, EXTENT))

    machine.run(killed_in_a_delete)
    machine.fs.fill("/disk0", to_the_last_block=True)

    async def look(store: Storage) -> None:
        assert (await fence(store, EXTENT)).kind == Kind.DELETED
        assert machine.fs.stat(PATH) is not None

    machine.restart(look)
    machine.fs.unfill("/disk0")

    async def look_again(store: Storage) -> None:
        assert (await fence(store, EXTENT)).kind == Kind.DELETED
        assert machine.fs.stat(PATH) is None

    machine.restart(look_again)


def test_a_start_on_a_disk_without_room_for_a_name_answers_what_it_cannot_quarantine_as_damaged() -> None:
    machine = spoiled()
    machine.fs.fill("/disk0", to_the_last_block=True)

    async def look(store: Storage) -> None:
        await store.verified()
        assert (await fence(store, EXTENT)).kind == Kind.DAMAGED
        assert await error_of(create(store, EXTENT, disk=1)) is ReplicaDamaged

    machine.run(look)
