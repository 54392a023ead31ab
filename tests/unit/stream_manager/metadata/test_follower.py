"""Managers that do not lead: ids and reads from a state that a watch feeds."""

from __future__ import annotations

import asyncio

import pytest

from neve.meta.txn import KeyRange
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import MetaUnavailable, NotFound
from neve.stream_manager.metadata.follower import StateFollower
from neve.stream_manager.term.leader import REPLAY_KEPT_S
from neve.stream_manager.term.pipeline import request_checksum
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, error_of, simulated

DESCRIBE = methods.STREAM_MANAGER_DESCRIBE_STREAMS


@simulated
async def test_a_follower_answers_reads_at_the_revision_that_is_asked_for() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        follower = cluster.managers[2]
        follower.store.plan.delay_s_min = follower.store.plan.delay_s_max = 0.5  # its news is late
        created = await cluster.create(name="events")
        request = sm.DescribeStreamsRequest(names=["events"], revision_min=created.stream.mod_revision)
        reply = await cluster.ask(follower, DESCRIBE, request)
        assert reply.streams[0] == created.stream
        assert reply.revision >= created.stream.mod_revision
        ahead = sm.DescribeStreamsRequest(names=["events"], revision_min=reply.revision + 1_000)
        await error_of(cluster.ask(follower, DESCRIBE, ahead, timeout_s=2.0), MetaUnavailable)


@simulated
async def test_a_follower_does_not_deny_what_it_has_not_heard_of() -> None:
    """Found by short story 870: its watch was down, and the leader did not answer."""
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        follower = cluster.managers[2]
        created = await cluster.create(name="known")
        await asyncio.sleep(1)
        news = follower.store.plan
        news.delay_s_min = news.delay_s_max = 0.3
        late = await cluster.create(name="late")
        ids, names = [created.stream.stream_id, late.stream.stream_id], ["known", "late"]
        for request in (
            sm.DescribeStreamsRequest(names=["late"]),
            sm.DescribeStreamsRequest(stream_ids=[late.stream.stream_id]),
            sm.DescribeStreamsRequest(stream_ids=ids[:1], names=names[1:]),
        ):
            reply = await cluster.ask(follower, DESCRIBE, request)
            assert reply.streams[-1] == late.stream
        for unknown in (sm.DescribeStreamsRequest(names=["none"]), sm.DescribeStreamsRequest(stream_ids=[999])):
            error = await error_of(cluster.ask(follower, DESCRIBE, unknown), NotFound)
            assert str(error).startswith("no such stream")
        last = await cluster.create()
        for extent_ids in ([last.tail.extent_id], [999, late.tail.extent_id, last.tail.extent_id]):
            extents = sm.DescribeExtentsRequest(extent_ids=extent_ids)
            described = await cluster.ask(follower, methods.STREAM_MANAGER_DESCRIBE_EXTENTS, extents)
            assert described.extents[-1] == last.tail


@simulated
async def test_a_follower_without_news_says_so_instead_of_denying_a_stream() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        follower = cluster.managers[2]
        await asyncio.sleep(1)
        follower.store.interrupt_watches(30.0)
        await cluster.create(name="late")
        request = sm.DescribeStreamsRequest(names=["late"])
        error = await error_of(cluster.ask(follower, DESCRIBE, request, timeout_s=10.0), MetaUnavailable)
        assert "is wanted" in error.detail


@simulated
async def test_leader_and_follower_hold_the_same_state() -> None:
    """What the leader applies from its own changes is what a watch makes of etcd's keys."""
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened(name="a", labels={"x": "y"})
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        other = await cluster.create(name="b")
        delete = sm.DeleteStreamRequest(stream_id=other.stream.stream_id)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        quota = sm.SetQuotaRequest(quota=sm.Quota(prefix="x=", streams_max=5))
        await cluster.call(methods.STREAM_MANAGER_SET_QUOTA, quota)
        await asyncio.sleep(2)
        led, followed = cluster.term.state, cluster.managers[2].manager.follower.state
        assert followed is not None
        loaded = await StateFollower(cluster.store, ROOT).read()
        for state in (followed, loaded):
            state.validate()
            assert state.streams == led.streams
            assert state.extents == led.extents
            assert state.nodes == led.nodes
            assert state.names == led.names
            assert state.quotas == led.quotas


@simulated
async def test_ids_are_never_handed_out_twice_whichever_manager_is_asked() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2, 3)
        taken: list[int] = []

        async def take(number: int, count: int) -> None:
            request = sm.AllocIdRequest(count=count)
            reply = await cluster.ask(cluster.managers[number], methods.STREAM_MANAGER_ALLOC_ID, request)
            assert reply.count == count
            taken.extend(range(reply.first_id, reply.first_id + reply.count))

        for manager in cluster.managers.values():
            manager.store.plan.lost_after_apply_share = 0.1
            manager.store.plan.delay_s_min = manager.store.plan.delay_s_max = 0.05  # so that they meet
        await asyncio.gather(*(take(1 + number % 3, 1 + number % 5) for number in range(60)))
        for manager in cluster.managers.values():
            manager.store.plan.lost_after_apply_share = 0.0
        created = await cluster.create()
        taken += [created.stream.stream_id, created.tail.extent_id]
        assert len(set(taken)) == len(taken)
        assert 0 not in taken


@simulated
async def test_a_follower_that_missed_compacted_history_reads_everything_anew() -> None:
    """T17."""
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        kept, gone = await cluster.create(name="kept"), await cluster.create(name="gone")
        await asyncio.sleep(1)
        follower = cluster.managers[2]
        follower.store.stall()
        await cluster.call(
            methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=gone.stream.stream_id)
        )
        late = await cluster.create(name="late")
        await cluster.store.compact(cluster.etcd.key_space.revision)
        await asyncio.sleep(0.5)
        follower.store.resume()
        await asyncio.sleep(3)
        state = follower.manager.follower.state
        assert state is not None
        state.validate()
        assert sorted(state.streams) == sorted([kept.stream.stream_id, late.stream.stream_id])


@simulated
async def test_reads_of_nodes_and_extents() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await asyncio.sleep(1)
        for manager in cluster.managers.values():
            nodes = await cluster.ask(manager, methods.STREAM_MANAGER_LIST_NODES, sm.ListNodesRequest())
            assert [node.node_id for node in nodes.nodes] == [1, 2, 3]
            request = sm.DescribeExtentsRequest(extent_ids=[tail.extent_id, 999], with_streams=True)
            described = await cluster.ask(manager, methods.STREAM_MANAGER_DESCRIBE_EXTENTS, request)
            assert [list(extent.stream_ids) for extent in described.extents] == [[stream.stream_id]]
            listing = sm.ListExtentsRequest(open_only=True)
            found = await cluster.ask(manager, methods.STREAM_MANAGER_LIST_EXTENTS, listing)
            assert [extent.extent_id for extent in found.extents] == [reply.tail.extent_id]
            status = await cluster.ask(manager, methods.STREAM_MANAGER_CLUSTER_STATUS, sm.ClusterStatusRequest())
            assert (status.streams, status.extents, status.open_extents) == (1, 2, 1)
            assert status.leader.address == cluster.managers[1].address
            assert (status.under_replicated, status.unconfirmed, status.one_loss_from_danger) == (0, 0, 0)
        await cluster.declare_dead(1)
        await cluster.declare_dead(2)
        status = await cluster.call(methods.STREAM_MANAGER_CLUSTER_STATUS, sm.ClusterStatusRequest())
        assert (status.under_replicated, status.one_loss_from_danger) == (2, 2)
        request2 = sm.ListExtentsRequest(under_replicated=True)
        assert len((await cluster.call(methods.STREAM_MANAGER_LIST_EXTENTS, request2)).extents) == 2


@simulated
async def test_old_replay_records_are_deleted_and_young_ones_kept() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        for _ in range(5):
            await seal(cluster, cluster.call_id())
        await asyncio.sleep(REPLAY_KEPT_S - 60)
        call = cluster.call_id()
        sealed = await seal(cluster, call)
        await asyncio.sleep(120)
        keys = KeyRange.prefix(ROOT + b"replay/")
        assert len((await cluster.store.range_all(keys)).kvs) == 1
        assert cluster.term.replay.count == 1
        found = cluster.term.replay.find(
            (call.client_id, call.call_id),
            method_id=methods.STREAM_MANAGER_SEAL_STREAM.method_id,
            request_crc32c=request_checksum(sealed),
        )
        assert found is not None
        assert found.stream_ids == (sealed.stream_id,)


async def seal(cluster: Cluster, call: common_pb2.CallId) -> sm.SealStreamRequest:
    created = await cluster.create()
    request = sm.SealStreamRequest(call=call, stream_id=created.stream.stream_id)
    await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, request)
    return request


@simulated
async def test_the_calls_that_streams_remember_survive_a_fail_over_for_as_long_as_others() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        old_call, call = cluster.call_id(), cluster.call_id()
        old = await cluster.create(call=old_call)
        await asyncio.sleep(REPLAY_KEPT_S - 60)
        created = await cluster.create(call=call)
        await asyncio.sleep(120)
        assert not (await cluster.store.range_all(KeyRange.prefix(ROOT + b"replay/"))).kvs
        assert (await cluster.create(call=call)).stream.stream_id == created.stream.stream_id
        (await cluster.leader()).kill()
        await cluster.start_managers(2, nodes=())
        assert (await cluster.create(call=call)).stream.stream_id == created.stream.stream_id
        assert (await cluster.create(call=old_call)).stream.stream_id != old.stream.stream_id  # it is too old


@simulated
async def test_a_creation_is_remembered_also_after_its_stream_was_deleted() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        call = cluster.call_id()
        created = await cluster.create(call=call)
        request = sm.DeleteStreamRequest(call=cluster.call_id(), stream_id=created.stream.stream_id)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, request)
        with pytest.raises(NotFound):
            await cluster.create(call=call)
        (await cluster.leader()).kill()
        await cluster.start_managers(2, nodes=())
        with pytest.raises(NotFound):
            await cluster.create(call=call)
        assert not cluster.term.state.streams


@simulated
async def test_replicas_are_described_in_the_order_in_which_readers_should_try_them() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        created = await cluster.create()
        first, second, third = (replica.replica.node_id for replica in created.tail.replicas)
        cluster.part.failed = {first: 3.0, second: 1.0}
        described = await cluster.describe(created.stream.stream_id)
        assert [replica.replica.node_id for replica in described.extents[0].replicas] == [third, second, first]
        request = sm.DescribeExtentsRequest(extent_ids=[created.tail.extent_id])
        told = await cluster.call(methods.STREAM_MANAGER_DESCRIBE_EXTENTS, request)
        assert [replica.replica.node_id for replica in told.extents[0].replicas] == [third, second, first]
