"""What is deleted, and above all what is not: orphans, extra replicas, removed extents, proposals (rule 24)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from neve.extent_node.store import control as store_control
from neve.meta.txn import KeyRange
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.record_kinds import TASK
from neve.stream_manager.metadata.records import Extent, Replay, Stream, Task
from tests.unit.stream_manager.nodes_rig import Rig, error_of, mutation, simulated

ORPHAN = 0xABC
GRACE_S = 120.0  # of the rig


async def make_orphan(rig: Rig, node_id: int, extent_id: int = ORPHAN) -> en.ReplicaInfo:
    """A file that metadata does not know, as a manager leaves it that dies before it links a new extent."""
    request = en.CreateExtentRequest(extent_id=extent_id, eversion=1, extent_bytes_max=1 << 20)
    await store_control.create(rig.nodes[node_id].store.state, request)
    info = rig.on_node(node_id, extent_id)
    assert info is not None
    return info


async def start_mute(rig: Rig, *node_ids: int) -> None:
    """Nodes that do not report by themselves any more: the test does it for them."""
    await rig.start_nodes(*node_ids)
    await rig.wait(2)
    mute(rig, *node_ids)


def mute(rig: Rig, *node_ids: int) -> None:
    for node_id in node_ids:
        rig.nodes[node_id].registrar._report_due_s = float("inf")


def page(rig: Rig, node_id: int, infos: list[en.ReplicaInfo], *, number: int, last: bool, after: int = 0) -> None:
    process_id = rig.ctx.state.nodes[node_id].process_id
    request = sm.ReportReplicasRequest(
        node_id=node_id, process_id=process_id, round=number, replicas=infos, last=last, after_extent_id=after
    )
    rig.part.reports.page(request)


def record_orders(rig: Rig) -> list[tuple[int, int]]:
    """Orders go to this list in place of nodes."""
    orders: list[tuple[int, int]] = []

    async def delete(extent_id: int, replica: Any, *, eversion: int) -> bool:
        orders.append((extent_id, replica.node_id))
        return True

    rig.ctx.nodes.delete = delete  # type: ignore[method-assign]
    return orders


async def one_pass(rig: Rig, after_s: float = 0.0) -> None:
    await rig.wait(after_s)
    await rig.part.collector.run_once(rig.ctx.clock())


# --- orphans --------------------------------------------------------------------------------------------------


@simulated
async def test_an_orphan_is_deleted_after_the_grace_period_and_not_before() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2)
        extent = await rig.sealed_stream(replicas=2)
        stream_id = await rig.make_stream(replicas=2)
        begun_s = rig.ctx.clock()
        await make_orphan(rig, 1)
        await rig.wait(GRACE_S - 10)
        assert rig.holders(ORPHAN) == [1]
        await rig.until(lambda: rig.holders(ORPHAN) == [])
        assert rig.ctx.clock() - begun_s >= GRACE_S
        assert rig.holders(extent.extent_id) == [1, 2]
        assert rig.holders(rig.tail(stream_id).extent_id) == [1, 2]
        await rig.wait(300)
        assert rig.holders(extent.extent_id) == [1, 2]
        assert rig.holders(rig.tail(stream_id).extent_id) == [1, 2]


@simulated
async def test_t36_nothing_is_concluded_from_a_round_that_is_not_complete() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=False)
        await one_pass(rig, 10 * GRACE_S)
        page(rig, 1, [], number=102, last=False)  # the first one broke off
        await one_pass(rig, 10 * GRACE_S)
        assert orders == []
        assert rig.part.bad.waiting == 0


async def with_extents(rig: Rig, count: int) -> list[en.ReplicaInfo]:
    """What node 1 has to tell of; nodes do not report by themselves."""
    await start_mute(rig, 1, 2, 3)
    for _ in range(count):
        await rig.sealed_stream()
    infos, _ = rig.nodes[1].store.inventory.list(after_extent_id=0, limit=100, unsealed_only=False)
    assert len(infos) == count
    return list(infos)


@simulated
async def test_t36_the_end_of_a_round_that_began_with_another_leader_is_no_round() -> None:
    async with Rig(manual=True) as rig:
        infos = await with_extents(rig, 4)
        orphan = await make_orphan(rig, 1)
        page(rig, 1, infos[:2], number=101, last=False)
        await rig.depose()
        await rig.lead()
        page(rig, 1, [*infos[2:], orphan], number=101, last=True, after=infos[1].extent_id)
        assert rig.part.bad.waiting == 0
        assert 1 not in rig.part.collector._odd
        page(rig, 1, infos[1:], number=102, last=True)  # a whole one, in which the first is missing
        assert rig.part.bad.waiting == 1


@simulated
async def test_t36_a_page_that_was_lost_makes_no_round_and_one_that_came_twice_does() -> None:
    async with Rig(manual=True) as rig:
        infos = await with_extents(rig, 5)
        ids = [info.extent_id for info in infos]
        page(rig, 1, infos[:1], number=101, last=False)
        page(rig, 1, infos[2:], number=101, last=True, after=ids[1])
        assert rig.part.bad.waiting == 0
        page(rig, 1, infos[:2], number=102, last=False)
        page(rig, 1, infos[:2], number=102, last=False)  # its answer was lost
        page(rig, 1, infos[2:3], number=101, last=False, after=ids[1])  # late, of the round before
        page(rig, 1, infos[2:4], number=102, last=False, after=ids[1])
        page(rig, 1, infos[2:4], number=102, last=False, after=ids[1])
        page(rig, 1, [], number=102, last=True, after=ids[3])
        assert list(rig.part.bad._suspects) == [(ids[4], 1)]  # the round is whole, and the fifth is not in it


@simulated
async def test_an_orphan_must_be_seen_for_a_while_whatever_its_clock_says() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        info.created_ms = 1  # the node's clock is wrong by decades
        page(rig, 1, [info], number=101, last=True)
        await one_pass(rig, GRACE_S / 2 - 1)
        assert orders == []
        page(rig, 1, [], number=102, last=True)  # gone, and back: its time begins anew
        page(rig, 1, [info], number=103, last=True)
        await one_pass(rig, GRACE_S / 2 - 1)
        assert orders == []
        await one_pass(rig, 2)
        assert orders == [(ORPHAN, 1)]


@simulated
async def test_an_orphan_that_is_young_by_its_own_clock_is_kept_however_long_it_was_seen() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        info.created_ms = rig.ctx.wall_ms() + 10**9
        page(rig, 1, [info], number=101, last=True)
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []


@simulated
async def test_what_a_task_works_on_is_no_orphan() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        task = Task(5, ORPHAN, sm.RecoveryTask.COPY, None, None, 1, 0)
        changes = rig.ctx.changes()
        changes.put(TASK, None, task)
        await rig.ctx.commit(changes)
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []


@simulated
async def test_an_orphan_that_is_linked_just_before_the_order_is_kept() -> None:
    """Memory says unknown, etcd says linked: the transaction fails, and no order is given."""
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        await rig.manager.store.put(rig.ctx.root + b"extents/%016x" % ORPHAN, b"by somebody else")
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []


@simulated
async def test_what_a_transaction_may_still_link_is_no_orphan_however_long_its_outcome_takes() -> None:
    """A young extent has no key that the order's transaction could find: the leader itself knows what it links (24)."""
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        begun, go_on = asyncio.Event(), asyncio.Event()
        commit = rig.ctx.commit

        async def in_doubt(changes: Changes) -> int:
            begun.set()
            await go_on.wait()
            return await commit(changes)

        rig.ctx.commit = in_doubt
        linking = asyncio.create_task(rig.ctx.commit_link(rig.ctx.changes(), ORPHAN))
        await begun.wait()
        rig.ctx.commit = commit
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []
        go_on.set()
        await linking
        await one_pass(rig, 5 * GRACE_S)
        assert orders == [(ORPHAN, 1)]  # it was not linked after all


@simulated
async def test_an_extent_that_is_linked_while_its_order_is_being_allowed_is_kept() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        commit = rig.ctx.commit

        async def linked_meanwhile(changes: Changes) -> int:
            revision = await commit(changes)
            rig.ctx.linking[ORPHAN] = None
            return revision

        rig.ctx.commit = linked_meanwhile
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []


@simulated
async def test_a_manager_that_was_deposed_gives_no_order() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        await rig.wait(5 * GRACE_S)
        part, clock_s = rig.part, rig.ctx.clock()
        for key in [kv.key for kv in (await rig.manager.store.range_all(leader_keys(rig))).kvs]:
            await rig.etcd.client().delete(key)
        with suppress(NeveError):
            await part.collector.run_once(clock_s)
        assert orders == []


def leader_keys(rig: Rig) -> Any:
    return KeyRange.prefix(rig.ctx.root + b"leader")


@simulated
async def test_an_order_does_not_hit_a_file_that_was_made_later() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        info = await make_orphan(rig, 1)
        info.replica.incarnation += 1  # what was reported is not what is there now
        page(rig, 1, [info], number=101, last=True)
        await one_pass(rig, 5 * GRACE_S)
        assert rig.holders(ORPHAN) == [1]


@simulated
async def test_a_report_of_a_process_that_is_not_the_nodes_is_refused() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1)
        request = sm.ReportReplicasRequest(node_id=1, process_id=99, round=1, last=True)
        with pytest.raises(InvalidArgument, match="not registered by this process"):
            rig.part.reports.page(request)


# --- extra replicas -------------------------------------------------------------------------------------------


async def with_extra(rig: Rig) -> tuple[Extent, en.ReplicaInfo]:
    """A sealed extent on nodes 1 and 2, and a whole copy of it on node 3 that metadata does not list."""
    await rig.start_nodes(1, 2, 3)
    extent = await rig.sealed_stream(replicas=2, nodes=(1, 2))
    await rig.ctx.nodes.start_copy(
        extent,
        extent.replicas[0]._replace(node_id=3, disk_uuid="", incarnation=0),
        task_id=4711,
        sources=extent.replicas,
        bytes_per_s_max=1 << 30,
        eversion=extent.eversion + 1,
    )
    await rig.until(lambda: 3 in rig.holders(extent.extent_id))
    info = rig.on_node(3, extent.extent_id)
    assert info is not None
    return extent, info


@simulated
async def test_t33_an_extra_replica_is_removed_after_its_grace_time_and_the_extents_eversion_is_above_it() -> None:
    async with Rig() as rig:
        extent, info = await with_extra(rig)
        assert info.eversion == extent.eversion + 1
        await rig.until(lambda: rig.holders(extent.extent_id) == [1, 2])
        now = rig.extent(extent.extent_id)
        assert now.eversion == info.eversion
        assert (now.replicas, now.confirmed) == (extent.replicas, extent.confirmed)
        # A copy is wanted on node 3 after all: its tombstone does not refuse it.
        rig.nodes[2].kill()
        await rig.until(lambda: set(rig.extent(extent.extent_id).node_ids) == {1, 3})
        rig.check_equal(extent.extent_id)


@simulated
async def test_t33_an_extra_replica_is_kept_while_a_listed_one_is_not_as_it_should_be() -> None:
    async with Rig(manual=True) as rig:
        extent, info = await with_extra(rig)
        mute(rig, 1, 2, 3)
        orders = record_orders(rig)
        page(rig, 3, [info], number=101, last=True)
        changes = rig.ctx.changes()
        changes.put_extent(extent, extent._replace(confirmed=(extent.node_ids[0],)))
        await rig.ctx.commit(changes)
        await one_pass(rig, 100)
        assert orders == []
        now = rig.extent(extent.extent_id)
        changes = rig.ctx.changes()
        changes.put_extent(now, now._replace(confirmed=extent.confirmed))
        await rig.ctx.commit(changes)
        rig.part.recovery.bad[extent.extent_id, extent.node_ids[0]] = extent.replicas[0].incarnation
        await one_pass(rig)
        assert orders == []
        rig.part.recovery.bad.clear()
        await one_pass(rig)
        assert orders == [(extent.extent_id, 3)]


# --- removed extents and proposals ----------------------------------------------------------------------------


async def drop_from_stream(rig: Rig, extent: Extent) -> None:
    """The stream's list does not have it any more; the extent is still in metadata."""
    stream = rig.ctx.state.streams[extent.stream_id]
    changes = rig.ctx.changes()
    changes.put_stream(stream, _without_extents(stream))
    await rig.ctx.commit(changes)


def _without_extents(stream: Stream) -> Stream:
    return stream.changed((), sealed=True)


@simulated
async def test_replicas_of_extents_that_were_removed_are_deleted() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        other = await rig.sealed_stream()
        stream = rig.ctx.state.streams[extent.stream_id]
        changes = rig.ctx.changes()
        changes.delete_stream(stream)
        changes.delete_extent(extent)
        await rig.ctx.commit(changes)
        rig.part.collector.note_removed([extent])
        await rig.until(lambda: rig.holders(extent.extent_id) == [])
        assert rig.holders(other.extent_id) == [1, 2, 3]


@simulated
async def test_a_removed_replica_on_a_dead_node_is_deleted_when_it_returns() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        rig.nodes[3].kill()
        await rig.until(lambda: rig.ctx.state.dead_nodes() == {3})
        changes = rig.ctx.changes()
        changes.delete_stream(rig.ctx.state.streams[extent.stream_id])
        changes.delete_extent(rig.extent(extent.extent_id))
        await rig.ctx.commit(changes)
        rig.part.collector.note_removed([extent])
        await rig.until(lambda: rig.holders(extent.extent_id) == [])
        await rig.nodes[3].start()
        assert rig.holders(extent.extent_id) == [3]
        await rig.until(lambda: rig.holders(extent.extent_id) == [])


def propose(*extents: Extent, revision: int = 0, eversion_off: int = 0) -> sm.DeleteExtentsRequest:
    return sm.DeleteExtentsRequest(
        extents=[sm.ExtentVersion(extent_id=e.extent_id, eversion=e.eversion + eversion_off) for e in extents],
        revision=revision,
    )


@simulated
async def test_t37_only_proposals_that_still_stand_are_carried_out() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        used, unused, changed, late = [await rig.sealed_stream() for _ in range(4)]
        await rig.wait(GRACE_S + 1)
        young = await rig.sealed_stream()
        for extent in (unused, changed, late, young):
            await drop_from_stream(rig, extent)
        snapshot = rig.ctx.state.revision
        changes = rig.ctx.changes()
        changes.put_extent(late, late._replace(eversion=late.eversion))  # something changed after the snapshot
        await rig.ctx.commit(changes)
        request = propose(used, unused, late, young, revision=snapshot)
        request.extents.extend(propose(changed, eversion_off=-1).extents)
        request.extents.add(extent_id=999, eversion=1)
        reply = await rig.part.collector.delete_extents(request, mutation())
        assert list(reply.deleted) == [unused.extent_id]
        kept = [used.extent_id, late.extent_id, young.extent_id, changed.extent_id, 999]
        assert list(reply.kept) == kept
        assert unused.extent_id not in rig.ctx.state.extents
        await one_pass(rig)
        assert rig.holders(unused.extent_id) == []
        assert rig.holders(late.extent_id) == [1, 2, 3]


@simulated
async def test_t38_a_proposal_that_is_repeated_deletes_nothing_twice() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        await rig.wait(GRACE_S + 1)
        await drop_from_stream(rig, extent)
        request = propose(extent)
        assert list((await rig.part.collector.delete_extents(request, mutation())).deleted) == [extent.extent_id]
        assert list((await rig.part.collector.delete_extents(request, mutation())).kept) == [extent.extent_id]
        replayed = mutation(call_id=4, replayed=Replay(0, 0, 0, extent_ids=(extent.extent_id,)))
        assert list((await rig.part.collector.delete_extents(request, replayed)).deleted) == [extent.extent_id]


@simulated
async def test_many_proposals_are_carried_out_in_parts() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1)
        extents = [await rig.sealed_stream(replicas=1, blocks=[]) for _ in range(80)]
        await rig.wait(GRACE_S + 1)
        for extent in extents:
            await drop_from_stream(rig, extent)
        reply = await rig.part.collector.delete_extents(propose(*extents), mutation(call_id=6))
        assert len(reply.deleted) == 80
        too_many = sm.DeleteExtentsRequest(extents=[sm.ExtentVersion(extent_id=n) for n in range(1, 1500)])
        await error_of(rig.part.collector.delete_extents(too_many, mutation()), InvalidArgument)


@simulated
async def test_what_may_still_be_linked_is_no_orphan() -> None:
    async with Rig(manual=True) as rig:
        await start_mute(rig, 1)
        orders = record_orders(rig)
        info = await make_orphan(rig, 1)
        page(rig, 1, [info], number=101, last=True)
        rig.ctx.is_prepared = lambda extent_id: extent_id == ORPHAN
        await one_pass(rig, 5 * GRACE_S)
        assert orders == []
        rig.ctx.is_prepared = lambda extent_id: False
        await one_pass(rig)
        assert orders == [(ORPHAN, 1)]
