"""Young extents: they stand in their stream's record until something but their stream writes them."""

from __future__ import annotations

import pytest

from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed
from neve.stream_manager.metadata.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.metadata.records import EXTENTS, Extent, ReplicaAt
from neve.stream_manager.metadata.state import State
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, simulated

ROLLS = YOUNG_WINDOW + 4


async def stored(cluster: Cluster) -> State:
    """What another leader would load."""
    listing = await cluster.store.range_all(KeyRange.prefix(ROOT))
    state = State(ROOT)
    state.load(listing.kvs, listing.revision)
    state.validate()
    return state


async def keys(cluster: Cluster) -> list[int]:
    listing = await cluster.store.range_all(KeyRange.prefix(ROOT + EXTENTS))
    return [int(kv.key[-16:], 16) for kv in listing.kvs]


async def nobody_confirms(what: str, extent_id: int, node_id: int) -> None:
    if what == "seal":
        raise ConnectFailed(address=f"node{node_id}")


async def rolled(cluster: Cluster, rolls: int) -> int:
    """A stream whose owner has rolled so often; its id."""
    stream, tail, owner = await cluster.opened()
    for _ in range(rolls):
        tail = (await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)).tail
    return stream.stream_id


def records(state: State) -> dict[int, Extent]:
    return dict(state.extents)


@simulated
async def test_an_extent_has_a_key_from_its_first_confirmation_on() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream_id = await rolled(cluster, 3)
        await cluster.until(lambda: not cluster.term.state.unconfirmed_extents)
        ids = cluster.term.state.streams[stream_id].extent_ids
        assert await keys(cluster) == list(ids[:-1])
        assert records(await stored(cluster)) == records(cluster.term.state)


def test_an_extent_gets_its_first_key_without_a_compare_only_beside_its_stream() -> None:
    extent = Extent(2, 1, (ReplicaAt(1, "disk", 5),), 1, 1, stream_id=1)
    changes = Changes(ROOT)
    changes.release_extent(extent)
    with pytest.raises(AssertionError, match="compared by nothing"):
        changes.finish()


@simulated
async def test_when_nobody_confirms_a_record_holds_no_more_young_extents_than_it_may() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        cluster.nodes.trouble = nobody_confirms
        stream_id = await rolled(cluster, ROLLS)
        ids = cluster.term.state.streams[stream_id].extent_ids
        assert len(ids) == ROLLS + 1
        assert await keys(cluster) == list(ids[:-YOUNG_WINDOW])
        assert records(await stored(cluster)) == records(cluster.term.state)
        cluster.term.state.validate()
        (await cluster.leader()).kill()
        await cluster.start_managers(2, nodes=())
        assert cluster.term.state.streams[stream_id].extent_ids == ids
        assert all(cluster.term.state.extents[extent_id].seal is not None for extent_id in ids[:-1])


@simulated
async def test_young_extents_go_with_their_stream_and_with_its_beginning() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        cluster.nodes.trouble = nobody_confirms
        stream_id, other_id = await rolled(cluster, 4), await rolled(cluster, 2)
        ids = cluster.term.state.streams[stream_id].extent_ids
        truncate = sm.TruncateStreamRequest(stream_id=stream_id, before_extent_id=ids[2])
        await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, truncate)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=other_id))
        assert [*cluster.term.state.extents] == list(ids[2:])
        assert records(await stored(cluster)) == records(cluster.term.state)
        assert await keys(cluster) == []


@simulated
async def test_what_two_streams_list_stands_in_the_record_of_neither() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        cluster.nodes.trouble = nobody_confirms
        stream, tail, owner = await cluster.opened()
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        request = sm.SplitStreamsRequest(call=cluster.call_id())
        request.streams.add(stream_id=stream.stream_id, owner=owner, new_stream_id=1000)
        await cluster.call(methods.STREAM_MANAGER_SPLIT_STREAMS, request)
        state = cluster.term.state
        assert state.streams[1000].extent_ids == state.streams[stream.stream_id].extent_ids
        assert await keys(cluster) == list(state.streams[1000].extent_ids)
        assert records(await stored(cluster)) == records(state)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=stream.stream_id))
        assert records(await stored(cluster)) == records(state)
        assert len(state.extents) == 2
