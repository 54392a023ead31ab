"""The confirmations of a roll: recorded soon, once, and never from an answer to an order that is too old."""

from __future__ import annotations

import asyncio

from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.records import EXTENTS
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, simulated


async def keys(cluster: Cluster) -> list[int]:
    listing = await cluster.store.range_all(KeyRange.prefix(ROOT + EXTENTS))
    return [int(kv.key[-16:], 16) for kv in listing.kvs]


@simulated
async def test_the_confirmations_of_a_roll_are_recorded_soon_and_nobody_is_asked_twice() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        committed = cluster.term.batcher.counters.committed
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: not cluster.term.state.unconfirmed_extents)
        assert cluster.term.batcher.counters.committed == committed + 2  # the roll, and all confirmations together
        assert await keys(cluster) == [tail.extent_id]
        assert cluster.term.state.extents[tail.extent_id].all_confirmed
        assert len([call for call in cluster.nodes.calls if call[0] == "seal"]) == 3
        cluster.term.state.validate()


@simulated
async def test_a_reply_to_a_roll_does_not_wait_for_confirmations() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        answer = asyncio.Event()

        async def slow_seals(what: str, extent_id: int, node_id: int) -> None:
            if what == "seal":
                await answer.wait()

        cluster.nodes.trouble = slow_seals
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert not cluster.term.state.extents[tail.extent_id].confirmed
        request = sm.WaitConfirmedRequest(stream_id=stream.stream_id, extent_id=tail.extent_id, owner=owner)
        waiting = asyncio.ensure_future(cluster.call(methods.STREAM_MANAGER_WAIT_CONFIRMED, request))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        answer.set()
        assert all(replica.confirmed for replica in (await waiting).extent.replicas)


@simulated
async def test_a_replica_that_is_found_bad_after_the_order_was_sent_is_not_confirmed_by_its_answer() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        bad_id = tail.replicas[0].replica.node_id

        async def found_bad(what: str, extent_id: int, node_id: int) -> None:
            if what == "seal" and node_id == bad_id:
                cluster.term.ctx.revoked.note(extent_id, bad_id)

        cluster.nodes.trouble = found_bad
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: len(cluster.term.state.extents[tail.extent_id].confirmed) == 2)
        assert bad_id not in cluster.term.state.extents[tail.extent_id].confirmed
        assert cluster.part.unconfirmed == [tail.extent_id]


@simulated
async def test_a_bug_while_confirmations_are_recorded_leaves_no_lock_and_the_extent_to_the_reconciler() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        ctx = cluster.term.ctx
        changes, made = ctx.changes, 0

        def raising() -> Changes:
            nonlocal made
            made += 1
            if made == 2:  # the first is the roll's
                raise ZeroDivisionError("a bug")
            return changes()

        ctx.changes = raising  # type: ignore[method-assign]
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: made == 2)
        assert cluster.part.unconfirmed == [tail.extent_id]
        assert not ctx.locks.waiters
        await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0)
