"""Copies between simulated nodes: whole or not at all, from whichever source is good (T7, T24, T31, T34, T35)."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from neve.extent_node.disk import attributes
from neve.extent_node.disk.disk import Marks
from neve.extent_node.store import control as store_control
from neve.extent_node.store import copier
from neve.extent_node.store.copier import Copier
from neve.extent_node.store.storage import Storage
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_block, extent_digest
from tests.sim import loop as sim_loop
from tests.sim.disks.disk import SimulatedCrash
from tests.unit.extent_node.store import rig
from tests.unit.extent_node.store.copy_rig import BLOCKS, BYTES, EXTENT, INDEX_PATH, PATH, Cluster, Node, fill, order
from tests.unit.extent_node.store.rig import EVERSION, Machine, block_of, describe, read_bytes

State = pb.CopyStatusReply


async def run_copy(made: Copier, request: pb.StartCopyRequest) -> pb.CopyStatusReply:
    made.start(request)
    return await made.wait(request.task_id)


async def check_whole(node: Node, status: pb.CopyStatusReply, blocks: bytes = BYTES) -> None:
    """Done, and what is here is the extent: for readers, on the disk, and by all that is said of it."""
    assert status.state == State.DONE, errors.from_message(status.error)
    info = describe(node.store, EXTENT)
    assert info.kind == pb.LengthAnswer.LENGTH
    assert info.replica == status.replica
    assert (info.seal.length, info.seal.digest) == (len(blocks), extent_digest([blocks]))
    assert (status.seal.length, status.seal.digest) == (info.seal.length, info.seal.digest)
    assert await read_bytes(node.store, EXTENT) == blocks
    check_clean(node)


def check_clean(node: Node) -> None:
    for number in range(len(node.machine.config.disks)):
        assert node.files("tmp", number) == []


# --- the good way --------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_copy_is_the_same_extent_and_a_replica_of_its_own() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    status = await run_copy(cluster.copier(target), order(source))
    await check_whole(target, status)
    assert status.copied_bytes == len(BYTES)
    assert status.replica.incarnation not in (0, source.source().replica.incarnation)
    assert describe(target.store, EXTENT).stream_id == 5
    assert target.fs.durable_content(PATH) == BYTES
    assert target.fs.durable_content(INDEX_PATH) == source.fs.content(INDEX_PATH)


def test_a_copy_that_is_done_outlives_a_power_cut() -> None:
    target = Machine()

    async def process() -> None:
        cluster = Cluster()
        source, node = await cluster.sealed_node(), await cluster.node(target)
        await check_whole(node, await run_copy(cluster.copier(node), order(source)))

    sim_loop.run(process())
    target.fs.power_cut()

    async def look(store: Storage) -> None:
        assert await read_bytes(store, EXTENT) == BYTES
        assert describe(store, EXTENT).seal.length == len(BYTES)

    target.run(look)


@pytest.mark.sim(seed=2)
async def test_blocks_of_any_size_go_through_ranges_of_any_size() -> None:
    rng = random.Random(5)
    for _ in range(25):
        cluster = Cluster()
        sizes = [rng.choice((0, 1, rng.randrange(50), rng.randrange(5000))) for _ in range(rng.randrange(12))]
        blocks = [encode_block(rng.randbytes(size)) for size in sizes]
        source, target = await cluster.sealed_node(blocks), await cluster.node()
        made = cluster.copier(target, range_bytes=rng.choice((1, 7, 8, 9, 100, 1000, 100_000)))
        await check_whole(target, await run_copy(made, order(source)), b"".join(blocks))


@pytest.mark.sim(seed=3)
async def test_an_order_without_a_digest_takes_the_sources_digest() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    request = order(source)
    request.seal.digest = b""
    await check_whole(target, await run_copy(cluster.copier(target), request))


# --- sources -------------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=4)
async def test_t31_a_corrupt_block_is_taken_from_another_source_and_told() -> None:
    for byte in range(0, len(BYTES), 131):
        cluster = Cluster()
        bad, good, target = await cluster.sealed_node(), await cluster.sealed_node(), await cluster.node()
        bad.fs.flip(PATH, byte, byte % 8)
        status = await run_copy(cluster.copier(target), order(bad, good))
        await check_whole(target, status)
        assert [told.replica for told in cluster.bad] == [bad.source().replica]
        assert cluster.bad[0].offset <= byte < cluster.bad[0].offset + max(map(len, BLOCKS))


@pytest.mark.sim(seed=5)
async def test_t31_every_block_from_whichever_source_is_good() -> None:
    cluster = Cluster()
    nodes = [await cluster.sealed_node() for _ in range(3)]
    target = await cluster.node()
    starts = [sum(map(len, BLOCKS[:number])) for number in range(len(BLOCKS))]
    for number, start in enumerate(starts):  # each block is bad on two of the three
        for node in nodes:
            if node is not nodes[number % 3]:
                node.fs.flip(PATH, start + 20, 0)
    await check_whole(target, await run_copy(cluster.copier(target), order(*nodes)))
    assert len(cluster.bad) == 3  # each source is told once


@pytest.mark.sim(seed=6)
async def test_bytes_changed_on_the_way_are_asked_for_again_and_blame_nobody() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    spoiled = [3, 1]
    source.servicer.spoil = lambda payload: payload[:-1] + b"?" if spoiled and spoiled.pop() else payload
    await check_whole(target, await run_copy(cluster.copier(target), order(source)))
    assert cluster.bad == []


@pytest.mark.sim(seed=7)
async def test_when_all_sources_are_bad_the_task_fails_by_name_and_leaves_nothing() -> None:
    cluster = Cluster()
    one, other, target = await cluster.sealed_node(), await cluster.sealed_node(), await cluster.node()
    for node in (one, other):
        node.fs.flip(PATH, len(BYTES) - 3, 0)
    made = cluster.copier(target)
    status = await run_copy(made, order(one, other))
    assert status.state == State.FAILED
    error = errors.from_message(status.error)
    assert isinstance(error, errors.ReplicaDamaged)
    assert error.offset == len(BYTES) - len(BLOCKS[-1])
    assert one.address in error.detail
    assert other.address in error.detail
    assert await rig.error_of(read_bytes(target.store, EXTENT)) is errors.ReplicaMissing
    assert target.fs.stat(PATH) is None
    check_clean(target)
    # The same task may be tried again when a source is good again.
    one.fs.flip(PATH, len(BYTES) - 3, 0)
    await check_whole(target, await run_copy(made, order(one, other)))


@pytest.mark.sim(seed=8)
async def test_right_blocks_that_are_not_the_extents_are_caught_by_the_digest() -> None:
    """A source whose file holds valid blocks of something else, under the right seal."""
    cluster = Cluster()
    wrong, good, target = await cluster.sealed_node(), await cluster.sealed_node(), await cluster.node()
    fd = wrong.fs.open(PATH)
    wrong.fs.pwrite(fd, [block_of("other bytes", 90)], 0)
    await check_whole(target, await run_copy(cluster.copier(target), order(wrong, good)))
    assert [told.replica for told in cluster.bad] == [wrong.source().replica]

    lonely = await cluster.node()
    status = await run_copy(cluster.copier(lonely), order(wrong))
    assert status.state == State.FAILED
    assert "digest" in errors.from_message(status.error).detail
    assert lonely.fs.stat(PATH) is None
    check_clean(lonely)


@pytest.mark.sim(seed=9)
async def test_a_source_with_another_seal_is_not_copied_from() -> None:
    cluster = Cluster()
    other_bytes = await cluster.sealed_node([block_of("x", len(BYTES) - 8)])
    shorter = await cluster.sealed_node(BLOCKS[:3])
    good, target = await cluster.sealed_node(), await cluster.node()
    request = order(good, other_bytes, shorter)
    sources = list(request.sources)
    del request.sources[:]
    request.sources.extend([sources[1], sources[2], sources[0]])
    await check_whole(target, await run_copy(cluster.copier(target), request))


@pytest.mark.sim(seed=10)
async def test_a_source_that_dies_is_replaced_by_the_next_one_from_there_on() -> None:
    cluster = Cluster()
    one, other, target = await cluster.sealed_node(), await cluster.sealed_node(), await cluster.node()

    def die(request: pb.ReadRangeRequest) -> None:
        if request.offset > 500:
            cluster.network.crash("node1")

    one.servicer.before = die
    await check_whole(target, await run_copy(cluster.copier(target), order(one, other)))
    assert min(request.offset for request in other.servicer.requests) > 0


@pytest.mark.sim(seed=11)
async def test_a_lone_source_that_is_away_for_a_moment_does_not_cost_the_copy() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    overloads = [1, 2]

    def refuse(request: pb.ReadRangeRequest) -> None:
        if request.offset > 0 and overloads:
            overloads.pop()
            raise errors.Overloaded(what="reads")

    source.servicer.before = refuse
    await check_whole(target, await run_copy(cluster.copier(target), order(source)))
    assert sum(request.offset == 0 for request in source.servicer.requests) == 1


@pytest.mark.sim(seed=12)
async def test_sources_that_stay_away_end_the_task_with_an_error_that_says_try_again() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    request = order(source)
    cluster.network.crash("node1")
    status = await run_copy(cluster.copier(target), request)
    assert status.state == State.FAILED
    assert errors.from_message(status.error).retriable
    check_clean(target)


# --- what is here already ------------------------------------------------------------------------------------


@pytest.mark.sim(seed=13)
async def test_t07_a_short_replica_is_filled() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    await fill(target.store, BLOCKS[:2])
    short = describe(target.store, EXTENT).replica
    assert not (await rig.seal(target.store, EXTENT, len(BYTES))).confirmed
    status = await run_copy(cluster.copier(target), order(source))
    await check_whole(target, status)
    assert status.replica.incarnation != short.incarnation
    assert len(target.files("trash")) == 1
    assert target.files("quarantine") == []
    # The manager's repeated Seal is now confirmed, and no append gets in.
    assert (await rig.seal(target.store, EXTENT, len(BYTES), digest=status.seal.digest)).confirmed
    assert await rig.error_of(rig.append(target.store, EXTENT, len(BYTES), BLOCKS[0])) is errors.ExtentSealed


@pytest.mark.sim(seed=14)
async def test_appends_that_wait_on_a_replaced_replica_are_told_and_nothing_hangs() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    await fill(target.store, BLOCKS[:2])
    made = cluster.copier(target)
    made.start(order(source))
    offset = len(BLOCKS[0] + BLOCKS[1])
    ends = []
    while made.status(1).state == State.RUNNING:
        ends.append(await rig.error_of(rig.append(target.store, EXTENT, offset, BLOCKS[2])))
        await asyncio.sleep(1e-5)
    await check_whole(target, await made.wait(1))
    assert set(ends) <= {None, errors.ExtentSealed, errors.ReplicaMissing}
    await target.store.stop(clean=True)


@pytest.mark.sim(seed=15)
async def test_t35_a_replica_that_is_here_is_done_only_after_every_byte_was_read() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.sealed_node()
    here = describe(target.store, EXTENT).replica
    made = cluster.copier(target, bytes_per_s_max=len(BYTES))
    begun_s = asyncio.get_running_loop().time()
    status = await run_copy(made, order(source))
    await check_whole(target, status)
    assert status.replica == here
    assert source.servicer.requests == []
    assert asyncio.get_running_loop().time() - begun_s > 0.5  # it was read, at the copier's pace


@pytest.mark.sim(seed=16)
async def test_t35_a_replica_that_is_here_and_damaged_is_replaced() -> None:
    cluster = Cluster()
    for byte in range(0, len(BYTES), 97):
        source, target = await cluster.sealed_node(), await cluster.sealed_node()
        assert await read_bytes(target.store, EXTENT) == BYTES  # it is open and mapped
        target.fs.flip(PATH, byte, 3)
        here = describe(target.store, EXTENT).replica
        status = await run_copy(cluster.copier(target), order(source))
        await check_whole(target, status)
        assert status.replica.incarnation != here.incarnation
        assert len(target.files("quarantine")) == 1


@pytest.mark.sim(seed=17)
async def test_sealed_bytes_that_the_others_do_not_have_are_quarantined_before_the_copy() -> None:
    cluster = Cluster()
    source = await cluster.sealed_node()
    target = await cluster.sealed_node([block_of("x", len(BYTES) - 8)])
    seen: list[type[BaseException] | None] = []

    def look(request: pb.ReadRangeRequest) -> None:
        missing = EXTENT not in {info.extent_id for info in target.store.inventory.list(
            after_extent_id=0, limit=9, unsealed_only=False)[0]}  # fmt: skip
        seen.append(errors.ReplicaMissing if missing else None)

    source.servicer.before = look
    await check_whole(target, await run_copy(cluster.copier(target), order(source)))
    assert set(seen) == {errors.ReplicaMissing}
    assert len(target.files("quarantine")) == 1


@pytest.mark.sim(seed=18)
async def test_a_seal_at_another_length_refuses_and_keeps_what_is_here() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(BLOCKS[:4]), await cluster.sealed_node()
    with pytest.raises(errors.Conflict):
        cluster.copier(target).start(order(source))
    assert await read_bytes(target.store, EXTENT) == BYTES


@pytest.mark.sim(seed=19)
async def test_a_seal_that_is_confirmed_while_the_copy_runs_keeps_its_replica() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    await fill(target.store, BLOCKS)
    here = describe(target.store, EXTENT).replica
    made = cluster.copier(target, bytes_per_s_max=100)
    made.start(order(source))
    await asyncio.sleep(1)
    assert (await rig.seal(target.store, EXTENT, len(BYTES))).confirmed
    status = await made.wait(1)
    await check_whole(target, status)
    assert status.replica == here
    assert target.files("trash") == []


@pytest.mark.sim(seed=20)
async def test_a_tombstone_refuses_late_orders_and_lets_newer_ones_in() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.sealed_node()
    await rig.delete(target.store, EXTENT, eversion=6)
    made = cluster.copier(target)
    for eversion in (5, 6):
        with pytest.raises(errors.ReplicaDeleted):
            made.start(order(source, eversion=eversion))
    await check_whole(target, await run_copy(made, order(source, eversion=7)))
    assert await rig.error_of(rig.delete(target.store, EXTENT, eversion=6)) is errors.EversionMismatch
    again = await cluster.node(_restarted(target))
    assert await read_bytes(again.store, EXTENT) == BYTES
    # Should it be quarantined, a Create from before the delete still finds the tombstone.
    incarnation = describe(again.store, EXTENT).replica.incarnation
    assert await store_control.quarantine(again.store.state, EXTENT, incarnation=incarnation, reason="a test")
    assert await rig.error_of(rig.create(again.store, EXTENT)) is errors.ReplicaDeleted


@pytest.mark.sim(seed=33)
async def test_a_delete_order_from_before_the_copy_order_does_not_take_the_copy() -> None:
    """The node leaves the list (its delete is on its way) and is put on it again at a higher eversion."""
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.sealed_node()
    await check_whole(target, await run_copy(cluster.copier(target), order(source, eversion=7)))
    assert describe(target.store, EXTENT).eversion == 7
    assert await rig.error_of(rig.delete(target.store, EXTENT, eversion=6)) is errors.EversionMismatch
    again = await cluster.node(_restarted(target))
    assert await read_bytes(again.store, EXTENT) == BYTES
    # Ordered once more, it is verified and stays.
    asked, here = len(source.servicer.requests), describe(again.store, EXTENT).replica
    status = await run_copy(cluster.copier(again), order(source, eversion=7))
    assert (status.state, status.replica) == (State.DONE, here)
    assert len(source.servicer.requests) == asked
    assert await rig.delete(again.store, EXTENT, eversion=7)


def _restarted(node: Node) -> Machine:
    node.fs.power_cut()
    return node.machine


@pytest.mark.sim(seed=21)
async def test_a_delete_that_comes_while_the_copy_runs_wins() -> None:
    for delay_s in (0.0, 0.5, 2.0, 5.0):
        cluster = Cluster()
        source, target = await cluster.sealed_node(), await cluster.node()
        made = cluster.copier(target, bytes_per_s_max=300)
        made.start(order(source))
        await asyncio.sleep(delay_s)
        await rig.delete(target.store, EXTENT)
        status = await made.wait(1)
        assert (status.state, status.error.code) == (State.FAILED, errors.ReplicaDeleted.code)
        assert target.fs.stat(PATH) is None
        check_clean(target)


@pytest.mark.sim(seed=22)
async def test_at_any_moment_a_delete_a_create_and_a_copy_leave_one_outcome() -> None:
    for ticks in range(0, 120, 4):
        cluster = Cluster(ticks)
        source, target = await cluster.sealed_node(BLOCKS[:2]), await cluster.node()
        await fill(target.store, BLOCKS[:1])
        made = cluster.copier(target, range_bytes=1 << 20)
        made.start(order(source))
        for _ in range(ticks):
            await asyncio.sleep(2e-5)
        await asyncio.gather(
            rig.error_of(rig.delete(target.store, EXTENT, eversion=EVERSION + 1)),
            rig.error_of(rig.create(target.store, EXTENT)),
        )
        status = await made.wait(1)
        assert (status.state, status.error.code) in {(State.FAILED, errors.ReplicaDeleted.code), (State.DONE, 0)}
        assert await rig.error_of(read_bytes(target.store, EXTENT)) is errors.ReplicaDeleted
        assert target.fs.stat(PATH) is None
        assert target.fs.stat(INDEX_PATH) is None
        check_clean(target)


@pytest.mark.sim(seed=23)
async def test_there_is_one_live_replica_also_over_two_disks() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node(disks=2)
    await rig.create(target.store, EXTENT, disk=0)
    request = order(source, replica=common_pb2.Replica(node_id=rig.NODE_ID, disk_uuid=rig.disk_uuid(1)))
    status = await run_copy(cluster.copier(target), request)
    await check_whole(target, status)
    assert status.replica.disk_uuid == rig.disk_uuid(1)
    assert target.fs.stat(PATH) is None
    assert [disk.extents for disk in target.store.inventory.disks()] == [0, 1]
    # The other disk fails: the extent is copied to the one that is left, though the old file cannot be moved.
    fault = target.fs.fail(errno.EIO, match=lambda operation, path: path.startswith("/disk1"), times=None)
    assert await rig.error_of(rig.create(target.store, 3, disk=1)) is errors.DiskFailed
    status = await run_copy(cluster.copier(target), order(source, task_id=2))
    fault.clear()
    await check_whole(target, status)
    assert status.replica.disk_uuid == rig.disk_uuid(0)
    # When the disk is back, one of the two is ignored.
    again = await cluster.node(_restarted(target))
    assert await read_bytes(again.store, EXTENT) == BYTES
    assert sum(disk.extents for disk in again.store.inventory.disks()) == 1


# --- orders --------------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=24)
async def test_an_order_is_carried_out_once_and_extents_have_one_task() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    made = cluster.copier(target, tasks_max=1)
    request = order(source)
    made.start(request)
    made.start(request)
    with pytest.raises(errors.AlreadyExists):
        made.start(order(source, task_id=2))
    with pytest.raises(errors.Overloaded):
        made.start(order(source, task_id=3, extent_id=EXTENT + 1))
    with pytest.raises(errors.InvalidArgument):
        made.start(order(source, task_id=1, extent_id=EXTENT + 1))
    assert made.status(1).state == State.RUNNING
    assert made.status(2).state == State.UNKNOWN
    await check_whole(target, await made.wait(1))
    asked = len(source.servicer.requests)
    made.start(request)
    assert made.status(1).state == State.DONE
    assert made.counters.tasks_started == 1
    assert len(source.servicer.requests) == asked
    assert [status.task_id for status in made.statuses()] == [1]
    # Done once is not done for ever: without its replica the task runs again.
    incarnation = made.status(1).replica.incarnation
    assert await store_control.quarantine(target.store.state, EXTENT, incarnation=incarnation, reason="a test")
    made.start(request)
    await check_whole(target, await made.wait(1))
    assert made.counters.tasks_started == 2


@pytest.mark.sim(seed=25)
async def test_an_order_that_cannot_be_carried_out_is_refused_at_once() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    made = cluster.copier(target)
    with pytest.raises(errors.WrongReplica):
        made.start(order(source, replica=common_pb2.Replica(node_id=rig.NODE_ID + 1)))
    with pytest.raises(errors.WrongReplica):
        made.start(order(source, replica=common_pb2.Replica(disk_uuid=rig.disk_uuid(5))))
    short = common_pb2.Seal(digest=b"short")
    wrong: list[dict[str, Any]] = [{"task_id": 0}, {"sources": []}, {"seal": None}, {"seal": short}]
    for fields in wrong:
        with pytest.raises(errors.InvalidArgument):
            made.start(order(source, **fields))
    assert made.statuses() == []


@pytest.mark.sim(seed=26)
async def test_the_memory_of_finished_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "FINISHED_MAX", 3)
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    made = cluster.copier(target)
    for task_id in range(1, 9):
        await run_copy(made, order(source, task_id=task_id))
    assert [status.task_id for status in made.statuses()] == [6, 7, 8]


# --- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.sim(seed=27)
async def test_bandwidth_is_bounded_over_all_tasks_and_for_each() -> None:
    loop = asyncio.get_running_loop()
    cluster = Cluster()
    block = block_of("b", 1000 - 8)
    nodes = [await cluster.sealed_node([block] * 20) for _ in range(2)]
    target = await cluster.node()
    given: list[tuple[float, int]] = []
    for node in nodes:
        node.servicer.before = lambda request: given.append((loop.time(), request.length))
    made = cluster.copier(target, bytes_per_s_max=1000, range_bytes=500)
    begun_s = loop.time()
    made.start(order(nodes[0]))
    for number in range(1, 4):
        # Extents that the source does not have: these tasks fail, having taken from the same bucket.
        made.start(order(nodes[1], task_id=1 + number, extent_id=EXTENT + number))
    progress = []
    while len(made._running):
        await asyncio.sleep(2)
        progress.append(made.status(1).copied_bytes)
        moved = sum(size for _, size in given)
        assert moved <= 500 + 500 + 1000 * (loop.time() - begun_s)
    await check_whole(target, await made.wait(1), block * 20)
    assert progress == sorted(progress)
    assert len(set(progress)) > 5
    assert loop.time() - begun_s > 19

    slow = await cluster.node()
    made = cluster.copier(slow, range_bytes=500)
    begun_s = loop.time()
    await check_whole(slow, await run_copy(made, order(nodes[0], bytes_per_s_max=100)), block * 20)
    assert loop.time() - begun_s >= (20_000 - 500) / 100


@pytest.mark.sim(seed=28)
async def test_t24_a_full_disk_fails_the_task_and_keeps_no_bytes() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    target.fs.set_capacity("/disk0", 1 << 30)
    used = (1 << 30) - target.fs.usage("/disk0").free_bytes
    target.fs.set_capacity("/disk0", used + len(BYTES) // 2)
    status = await run_copy(cluster.copier(target), order(source))
    assert (status.state, status.error.code) == (State.FAILED, errors.DiskFull.code)
    check_clean(target)
    assert source.servicer.requests == []  # known before a byte was asked for


@pytest.mark.sim(seed=29)
async def test_t24_a_copy_may_use_the_reserve_of_a_full_disk() -> None:
    cluster = Cluster()
    source = await cluster.sealed_node()
    target = await cluster.node(marks=Marks(high=0.5, low=0.4), usage_interval_s=0.1)
    target.fs.set_capacity("/disk0", 100_000)
    await rig.create(target.store, 3)
    await rig.append(target.store, 3, 0, block_of("much", 60_000))
    await asyncio.sleep(1)
    assert target.store.inventory.disks()[0].state == pb.DiskInfo.READ_ONLY
    await check_whole(target, await run_copy(cluster.copier(target), order(source)))


@pytest.mark.sim(seed=30)
async def test_any_error_of_the_disk_fails_the_task_and_installs_nothing() -> None:
    async def copy(step: int | None, code: int) -> int:
        cluster = Cluster()
        source, target = await cluster.sealed_node(), await cluster.node()
        first_step = target.fs.steps
        if step is not None:
            target.fs.fail(code, step=first_step + step)
        made = cluster.copier(target)
        status = await run_copy(made, order(source))
        if status.state == State.DONE:
            await check_whole(target, status)
        else:
            expected = errors.DiskFull if code == errno.ENOSPC else errors.DiskFailed
            assert isinstance(errors.from_message(status.error), expected)
            assert await rig.error_of(read_bytes(target.store, EXTENT)) is errors.ReplicaMissing
        if code == errno.ENOSPC:
            check_clean(target)
            await check_whole(target, await run_copy(made, order(source)))
        return target.fs.steps - first_step

    steps = await copy(None, 0)
    for step in range(1, steps + 1):
        await copy(step, errno.ENOSPC)
        await copy(step, errno.EIO)


@pytest.mark.sim(seed=31)
async def test_stop_ends_tasks_at_any_moment_and_leaves_nothing_behind() -> None:
    for delay_ms in range(0, 60, 2):
        cluster = Cluster(delay_ms)
        source, target = await cluster.sealed_node(BLOCKS[:3]), await cluster.node()
        await fill(target.store, BLOCKS[:1])
        made = cluster.copier(target, range_bytes=200)
        made.start(order(source))
        await asyncio.sleep(delay_ms * 5e-5)
        await made.stop()
        with pytest.raises(errors.ShuttingDown):
            made.start(order(source, task_id=2))
        check_clean(target)
        length = describe(target.store, EXTENT).length
        assert length in (len(BLOCKS[0]), len(b"".join(BLOCKS[:3])))
        await target.store.stop(clean=True)


@pytest.mark.sim(seed=32)
async def test_stop_while_a_copy_is_installed_waits_for_that() -> None:
    """The old replica has gone aside, and the copy has no name yet: whoever ends the task here would lose both."""
    lengths = {await _stop_after_fsync(ticks) for ticks in range(25)}
    assert lengths == {len(BLOCKS[0]), len(BYTES)}


async def _stop_after_fsync(ticks: int) -> int:
    """The replica's length. A tick is a part of what a call in a thread takes."""
    loop = asyncio.get_running_loop()
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.node()
    await fill(target.store, BLOCKS[:1])
    made = cluster.copier(target, range_bytes=1 << 20)
    fsync, stopping = target.fs.fsync, loop.create_future()

    async def stop() -> None:
        await asyncio.sleep(ticks * 0.0003)
        await made.stop()

    def fsync_and_stop(fd: int) -> None:
        fsync(fd)
        if not stopping.done():
            stopping.set_result(loop.create_task(stop()))

    target.fs.fsync = fsync_and_stop  # type: ignore[method-assign]
    made.start(order(source))
    await (await stopping)
    check_clean(target)
    length = describe(target.store, EXTENT).length
    await target.store.stop(clean=True)
    return length


# --- the end of the process at every step --------------------------------------------------------------------


async def _nothing(store: Storage) -> None:
    pass


async def _short(store: Storage) -> None:
    await fill(store, BLOCKS[:2])
    await rig.seal(store, EXTENT, len(BYTES))


async def _sealed(store: Storage) -> None:
    await fill(store, BLOCKS)
    await rig.seal(store, EXTENT, len(BYTES))


BEFORE: dict[str, Callable[[Storage], Coroutine[Any, Any, None]]] = {
    "nothing": _nothing,
    "short": _short,
    "damaged": _sealed,
    "good": _sealed,
}


@pytest.mark.parametrize("before", BEFORE)
def test_t34_t35_the_process_ends_at_every_step_and_no_part_is_ever_taken_for_the_whole(before: str) -> None:
    """The target of a copy is killed, or loses power, at each operation on its disk. Then: no replica, the one of
    before, or a whole one; the copy is ordered again and ends; it is there after one more power cut."""
    target = Machine(seed=3)
    target.run(BEFORE[before])
    target.fs.power_cut()
    if before == "damaged":
        target.fs.flip(PATH, 333, 3)

    async def prepare() -> Machine:
        return (await Cluster().sealed_node()).machine

    source = sim_loop.run(prepare())
    source.fs.crash()
    trial = target.clone()
    trial.run(_nothing)
    first_step = trial.fs.steps  # of the copy: what a start does is the matter of other tests
    trial = target.clone()
    assert _copy_until(trial, source)
    assert trial.fs.steps >= first_step + (1 if before == "good" else 15)
    for step in range(first_step + 1, trial.fs.steps + 1):
        for when in ("before", "torn"):
            machine = target.clone()
            machine.fs.stop_at(step, when)
            was_done = _copy_until(machine, source)
            if when == "torn" and "pwrite" not in machine.fs.log[-2]:
                continue
            for ending, seed in (("kill", 0), ("lose_all", 0), ("random", 1)):
                ended = machine.clone()
                ended.fs.rng.seed(f"{before} {step} {seed}")
                try:
                    _end(ended, ending)
                    _check_after(ended, before, was_done=was_done)
                    ended.fs.crash()
                    assert _copy_until(ended, source)
                    ended.fs.power_cut()
                    _check_after(ended, "good", was_done=True)
                except BaseException:
                    print(f"{before}, stopped {when} step {step}, then {ending} with seed {seed}")
                    print("\n".join(list(ended.fs.log)[-120:]))
                    raise


def _copy_until(target: Machine, source: Machine) -> bool:
    """Whether the copy came to its end."""

    async def process() -> None:
        cluster = Cluster()
        giver = await cluster.node(source.clone())
        node = await cluster.node(target)
        status = await run_copy(cluster.copier(node, range_bytes=700), order(giver))
        await check_whole(node, status)

    try:
        sim_loop.run(target._until_stopped(process()))
    except SimulatedCrash:
        return False
    return True


def _end(machine: Machine, ending: str) -> None:
    if ending == "kill":
        machine.fs.crash()
    else:
        machine.fs.power_cut("lose_all" if ending == "lose_all" else "random")


def _check_after(machine: Machine, before: str, *, was_done: bool) -> None:
    async def look(store: Storage) -> None:
        assert machine.fs.list_dir("/disk0/tmp") == []
        infos, _ = store.inventory.list(after_extent_id=0, limit=10, unsealed_only=False)
        if not infos:
            assert not was_done
            assert before != "good"
            return
        (info,) = infos
        if info.HasField("seal"):
            assert info.seal.length == len(BYTES)
            data = machine.fs.content(PATH)
            if before != "damaged" or was_done:
                assert data == BYTES
                assert await read_bytes(store, EXTENT) == BYTES
            assert len(data) == len(BYTES)
            fd = machine.fs.open(PATH)
            assert attributes.decode_seal(machine.fs.get_xattr(fd, attributes.SEAL) or b"").length == len(BYTES)
        else:
            assert before == "short"
            assert not was_done
            assert info.length == len(BLOCKS[0] + BLOCKS[1])

    machine.run(look)
