"""Confirmations that come at once wait for their stream's next write, and not for long."""

from __future__ import annotations

import asyncio

from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager.changes import Changes
from neve.stream_manager.heard import HEARD_MAX, KEPT_S, Heard, HeardTable
from neve.stream_manager.records import EXTENTS
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, simulated


def heard(extent_id: int, heard_s: float = 0.0) -> Heard:
    return Heard(extent_id, (), [], 0, heard_s)


def test_one_extent_of_a_stream_at_a_time_and_the_oldest_first() -> None:
    table = HeardTable()
    assert table.add(1, heard(10, 1.0)) is None
    assert table.add(2, heard(20, 2.0)) is None
    assert table.add(1, heard(11, 3.0)) == heard(10, 1.0)
    assert table.take_older(2.5) == [heard(20, 2.0)]
    assert table.take(2) is None
    assert table.take_older(2.5) == []
    assert table.take(1) == heard(11, 3.0)
    assert not len(table)


def test_the_table_is_bounded() -> None:
    table = HeardTable()
    for number in range(HEARD_MAX):
        assert table.add(number, heard(number)) is None
    assert table.add(HEARD_MAX, heard(HEARD_MAX)) == heard(HEARD_MAX)
    assert len(table) == HEARD_MAX


async def keys(cluster: Cluster) -> list[int]:
    listing = await cluster.store.range_all(KeyRange.prefix(ROOT + EXTENTS))
    return [int(kv.key[-16:], 16) for kv in listing.kvs]


@simulated
async def test_a_roll_takes_the_confirmation_of_the_last_one_along() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        committed = cluster.term.batcher.counters.committed
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert await keys(cluster) == []
        assert not cluster.term.state.extents[tail.extent_id].confirmed  # heard, but no transaction says so
        second = await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0)
        assert cluster.term.batcher.counters.committed == committed + 2
        assert await keys(cluster) == [tail.extent_id]
        assert cluster.term.state.extents[tail.extent_id].all_confirmed
        assert not cluster.term.state.extents[first.tail.extent_id].confirmed
        assert second.tail.extent_id == cluster.term.state.streams[stream.stream_id].tail_id
        cluster.term.state.validate()


@simulated
async def test_without_another_roll_it_is_recorded_soon() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await asyncio.sleep(3 * KEPT_S)
        assert await keys(cluster) == [tail.extent_id]
        assert not cluster.term.state.unconfirmed_extents
        assert not cluster.term.ctx.heard.recording
        calls = [call for call in cluster.nodes.calls if call[0] == "seal"]
        assert len(calls) == 3  # nobody asked twice


@simulated
async def test_who_waits_for_it_has_it_recorded_at_once() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        begun_s = asyncio.get_running_loop().time()
        request = sm.WaitConfirmedRequest(stream_id=stream.stream_id, extent_id=tail.extent_id, owner=owner)
        reply = await cluster.call(methods.STREAM_MANAGER_WAIT_CONFIRMED, request)
        assert all(replica.confirmed for replica in reply.extent.replicas)
        assert asyncio.get_running_loop().time() - begun_s < KEPT_S  # of the simulation


@simulated
async def test_a_replica_that_was_found_bad_meanwhile_is_not_confirmed_by_it() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        node_id = tail.replicas[0].replica.node_id
        cluster.term.ctx.condemned.note(tail.extent_id, node_id)
        await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0)
        assert node_id not in cluster.term.state.extents[tail.extent_id].confirmed
        assert len(cluster.term.state.extents[tail.extent_id].confirmed) == 2


@simulated
async def test_a_roll_that_fails_leaves_its_confirmation_to_the_reconciler() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        noted: list[int] = []
        cluster.term.ctx.part.note_unconfirmed = noted.append  # type: ignore[method-assign, assignment]
        await cluster.store.delete(ROOT + b"locks/" + owner.lock.encode())
        reply = await asyncio.gather(
            cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0), return_exceptions=True
        )
        assert isinstance(reply[0], Exception)
        assert noted == [tail.extent_id]


@simulated
async def test_a_bug_while_it_is_recorded_leaves_no_lock_behind() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        noted: list[int] = []
        ctx = cluster.term.ctx
        ctx.part.note_unconfirmed = noted.append  # type: ignore[method-assign, assignment]
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        changes, ctx.changes = ctx.changes, raising  # type: ignore[method-assign]
        await asyncio.sleep(3 * KEPT_S)
        assert noted == [tail.extent_id]
        assert not ctx.locks.waiters
        ctx.changes = changes  # type: ignore[method-assign]
        await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0)


def raising() -> Changes:
    raise ZeroDivisionError("a bug")
