"""Extents that are made ahead: offered until they are linked, linked once and in time, kept from the collector (24)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import VersionConflict
from neve.stream_manager.config import Collecting
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.streams.seal_tail import seal_open_extent
from tests.sim.cluster import SimCluster
from tests.sim.cluster import simulated as with_cluster
from tests.unit.stream_manager.manager_rig import Cluster, error_of, simulated

GRACE_S = 120.0


async def prepare(cluster: Cluster, stream: sm.StreamInfo, owner: common_pb2.Owner) -> sm.ExtentInfo:
    request = sm.PrepareExtentRequest(stream_id=stream.stream_id, owner=owner)
    return (await cluster.call(methods.STREAM_MANAGER_PREPARE_EXTENT, request)).extent


@simulated
async def test_what_was_linked_after_the_manager_sealed_the_tail_is_not_offered_again() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        prepared = (await prepare(cluster, stream, owner)).extent_id
        await seal_open_extent(cluster.term.ctx, tail.extent_id)  # one of its nodes drains, or is dead
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared)
        assert rolled.tail.extent_id == prepared
        following = (await prepare(cluster, stream, owner)).extent_id
        assert following != prepared
        cluster.nodes.append(rolled.tail, 100, token=owner.token)
        rolled = await cluster.alloc(stream.stream_id, prepared, owner, 100, prepared_extent_id=following)
        assert (rolled.sealed.seal.length, rolled.tail.extent_id) == (100, following)


@with_cluster(nodes=6)
async def test_a_writer_goes_on_when_its_tail_is_sealed_while_the_next_extent_is_prepared(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=4000)
    writer = await (await cluster.client("writer")).writer(stream.id)
    while not cluster.term.allocator._prepared:
        await writer.append(200)
        await asyncio.sleep(0.05)
    (prepared,) = [ahead.extent.extent_id for ahead in cluster.term.allocator._prepared.values()]
    await seal_open_extent(cluster.term.ctx, cluster.tail(stream.id).extent_id)
    for _ in range(60):
        await writer.append(200)
        await asyncio.sleep(0.05)
    listed = cluster.state.streams[stream.id].extent_ids
    assert prepared in listed
    assert listed[-1] != prepared


@simulated
async def test_an_id_that_metadata_knows_is_never_the_next_extent() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        prepared = (await prepare(cluster, stream, owner)).extent_id
        allocator = cluster.term.allocator
        remembered = allocator._prepared[stream.stream_id]
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared)
        assert not allocator._prepared
        allocator._prepared[stream.stream_id] = remembered  # as if it had not been forgotten
        assert (await prepare(cluster, stream, owner)).extent_id != prepared
        allocator._prepared[stream.stream_id] = remembered
        rolled = await cluster.alloc(stream.stream_id, rolled.tail.extent_id, owner, 0, prepared_extent_id=prepared)
        assert rolled.tail.extent_id != prepared


@simulated
async def test_the_deadline_counts_when_it_is_linked_and_not_when_the_tail_is_fenced() -> None:
    async with Cluster(collecting=Collecting(grace_s=GRACE_S)) as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        prepared = (await prepare(cluster, stream, owner)).extent_id

        async def slow(what: str, extent_id: int, node_id: int) -> None:
            await asyncio.sleep(1.0 if what == "fence" else 0.0)

        cluster.nodes.trouble = slow
        await asyncio.sleep(GRACE_S / 2 - 0.5)
        request = sm.StreamAllocExtentRequest(
            call=cluster.call_id(),
            stream_id=stream.stream_id,
            extent_id=tail.extent_id,
            owner=owner,
            acknowledged_end=0,
            prepared_extent_id=prepared,
        )
        leader = await cluster.leader()
        error = await error_of(
            cluster.ask(leader, methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request), VersionConflict
        )
        assert "too long ago" in str(error)
        assert prepared not in cluster.term.state.extents
        assert cluster.term.state.extents[tail.extent_id].seal is None
        # The same request again, as clients send it after such an answer, has another extent made.
        reply = await cluster.ask(leader, methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request)
        assert reply.tail.extent_id != prepared
        assert reply.sealed.extent_id == tail.extent_id


@simulated
async def test_the_collector_is_told_what_may_still_be_linked() -> None:
    async with Cluster(collecting=Collecting(grace_s=GRACE_S)) as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        prepared = (await prepare(cluster, stream, owner)).extent_id
        is_prepared = cluster.term.ctx.is_prepared
        assert is_prepared(prepared)
        assert not is_prepared(tail.extent_id)
        await asyncio.sleep(GRACE_S / 2 - 0.5)
        seen: list[bool] = []
        commit = cluster.term.ctx.commit

        async def slow_commit(changes: object) -> int:
            await asyncio.sleep(2.0)  # past its deadline: begun in time, it may still be applied
            seen.append(is_prepared(prepared))
            return await commit(changes)  # type: ignore[arg-type]

        cluster.term.ctx.commit = slow_commit
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared)
        assert rolled.tail.extent_id == prepared
        assert seen[0]
        cluster.term.ctx.commit = commit
        following = (await prepare(cluster, stream, owner)).extent_id
        await asyncio.sleep(GRACE_S / 2 + 0.5)
        assert not is_prepared(following)


@simulated
async def test_what_is_prepared_on_a_node_that_takes_no_new_extents_is_not_linked() -> None:
    for mode in (sm.NODE_MODE_READ_ONLY, sm.NODE_MODE_DRAINING, sm.NODE_MODE_DECOMMISSIONED):
        async with Cluster() as cluster:
            await cluster.start_managers(1)
            stream, tail, owner = await cluster.opened()
            prepared = (await prepare(cluster, stream, owner)).extent_id
            term = cluster.term
            changes = term.ctx.changes()
            changes.put(NODE, term.state.nodes[2], replace(term.state.nodes[2], mode=mode))
            await term.ctx.commit(changes)
            rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared)
            assert rolled.tail.extent_id != prepared


@simulated
async def test_what_was_prepared_for_a_stream_that_is_deleted_is_an_orphan_at_once() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, _, owner = await cluster.opened()
        prepared = (await prepare(cluster, stream, owner)).extent_id
        delete = sm.DeleteStreamRequest(stream_id=stream.stream_id, owner=owner)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        assert not cluster.term.ctx.is_prepared(prepared)
