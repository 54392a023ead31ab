"""Opening a stream for a new owner: rules 14 and 15."""

from __future__ import annotations

import asyncio

from neve.meta.lock import lock_key
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, LockedByOther, NotOwner, StreamSealed
from neve.stream_manager.streams.seal_tail import seal_open_extent
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, error_of, simulated


@simulated
async def test_equal_durable_lengths_are_gone_on_with() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 70, token=owner.token)
        successor = await cluster.own(stream, takeover=True)
        reply = await cluster.open(stream.stream_id, successor)
        assert (reply.tail.extent_id, reply.length) == (tail.extent_id, 70)
        assert not reply.HasField("sealed")
        try:
            cluster.nodes.append(tail, 80, token=owner.token)
        except LockedByOther:
            return
        raise AssertionError("an older owner appended")


@simulated
async def test_different_lengths_are_sealed_at_the_shortest() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 70, token=owner.token)
        cluster.nodes.append(tail, 90, nodes=[2], token=owner.token)
        successor = await cluster.own(stream, takeover=True)
        reply = await cluster.open(stream.stream_id, successor)
        assert reply.sealed.extent_id == tail.extent_id
        assert reply.sealed.seal.length == 70
        assert reply.tail.extent_id != tail.extent_id
        assert reply.length == 0
        assert list(reply.stream.extent_ids) == [tail.extent_id, reply.tail.extent_id]


@simulated
async def test_a_fenced_doubtful_silent_or_dead_replica_makes_the_tail_sealed() -> None:
    for trouble in ("fenced", "doubtful", "silent", "dead"):
        async with Cluster() as cluster:
            await cluster.start_managers(1, nodes=(1, 2, 3, 4))
            stream, tail, owner = await cluster.opened()
            cluster.nodes.append(tail, 70, token=owner.token)
            replica = cluster.nodes.of(tail.extent_id)[2]
            if trouble == "fenced":
                replica.fenced = True
            elif trouble == "doubtful":
                replica.kind = en.LengthAnswer.DOUBTFUL
            elif trouble == "dead":
                await cluster.declare_dead(2)
            else:

                async def silent(what: str, extent_id: int, node_id: int) -> None:
                    if node_id == 2:
                        raise ConnectFailed(address="node2")

                cluster.nodes.trouble = silent
            successor = await cluster.own(stream, takeover=True)
            reply = await cluster.open(stream.stream_id, successor)
            assert reply.sealed.seal.length == 70, trouble
            assert reply.tail.extent_id != tail.extent_id, trouble


@simulated
async def test_a_deposed_manager_hands_out_no_old_tail() -> None:
    """Rule 15: the transaction after the answers proves leader, stream and lock. Here the lock changes in between."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, _ = await cluster.opened()
        second = await cluster.own(stream, takeover=True)

        async def taken_over(what: str, extent_id: int, node_id: int) -> None:
            if what == "raise" and node_id == 3:
                cluster.nodes.trouble = None
                await cluster.store.put(lock_key(ROOT, stream.lock), b"a third one")

        cluster.nodes.trouble = taken_over
        await error_of(cluster.open(stream.stream_id, second), NotOwner)
        assert list((await cluster.describe(stream.stream_id)).streams[0].extent_ids) == [tail.extent_id]


@simulated
async def test_t18_an_owner_whose_lease_ended_in_between_opens_nothing() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        created = await cluster.create()
        lock = await cluster.lock(created.stream.lock, ttl_s=60)
        owner = common_pb2.Owner(lock=created.stream.lock, token=lock.token)
        await cluster.store.revoke(lock.lease.lease_id)
        await error_of(cluster.open(created.stream.stream_id, owner), NotOwner)
        replicas = cluster.nodes.of(created.tail.extent_id).values()
        assert all(replica.token == 0 for replica in replicas)


@simulated
async def test_repeating_an_open_that_sealed_gives_the_same_answer() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 90, nodes=[2], token=owner.token)
        successor = await cluster.own(stream, takeover=True)
        call = cluster.call_id()
        first = await cluster.open(stream.stream_id, successor, call=call)
        (await cluster.leader()).kill()
        again = await cluster.open(stream.stream_id, successor, call=call)
        assert again.tail.extent_id == first.tail.extent_id
        assert again.sealed.extent_id == tail.extent_id
        assert again.length == 0
        assert len(again.stream.extent_ids) == 2


@simulated
async def test_a_sealed_stream_is_not_opened() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, _, owner = await cluster.opened()
        await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, sm.SealStreamRequest(stream_id=stream.stream_id))
        await error_of(cluster.open(stream.stream_id, owner), StreamSealed)


@simulated
async def test_a_stream_whose_tail_was_sealed_for_it_gets_a_new_one() -> None:
    """The manager seals tails that lost a replica and links nothing: the next opening does."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 30, token=owner.token)
        await seal_open_extent(cluster.term.ctx, tail.extent_id)
        assert (await cluster.describe(stream.stream_id)).streams[0].extent_ids == [tail.extent_id]
        successor = await cluster.own(stream, takeover=True)
        reply = await cluster.open(stream.stream_id, successor)
        assert list(reply.stream.extent_ids) == [tail.extent_id, reply.tail.extent_id]
        assert reply.length == 0


@simulated
async def test_opening_and_rolling_on_real_nodes_with_one_lost() -> None:
    async with Cluster(real_nodes=True) as cluster:
        await cluster.start_managers(1)
        await cluster.start_nodes(1, 2, 3, 4)
        stream, tail, _ = await cluster.opened()
        lost = tail.replicas[0].replica.node_id
        cluster.sim_nodes[lost].kill()
        successor = await cluster.own(stream, takeover=True)
        reply = await cluster.open(stream.stream_id, successor)
        assert reply.sealed.seal.length == 0
        assert lost not in [replica.replica.node_id for replica in reply.tail.replicas]
        await asyncio.sleep(1)
        confirmed = cluster.term.state.extents[tail.extent_id].confirmed
        assert len(confirmed) == 2
        assert lost not in confirmed
