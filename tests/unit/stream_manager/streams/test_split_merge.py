"""Several streams change in one transaction: rule 23."""

from __future__ import annotations

import asyncio

from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    AlreadyExists,
    ConnectFailed,
    InvalidArgument,
    NotFound,
    NotOwner,
    SealUnavailable,
    VersionConflict,
)
from neve.stream_manager.streams.split_merge import STREAMS_MAX, WRITES_MAX
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, error_of, simulated

SPLIT, MERGE = methods.STREAM_MANAGER_SPLIT_STREAMS, methods.STREAM_MANAGER_MERGE_STREAMS


async def new_id(cluster: Cluster) -> int:
    return (await cluster.call(methods.STREAM_MANAGER_ALLOC_ID, sm.AllocIdRequest(count=1))).first_id


def merge_of(
    cluster: Cluster,
    stream: sm.StreamInfo,
    owner: common_pb2.Owner,
    absorbed: sm.StreamInfo,
    absorbed_owner: common_pb2.Owner,
) -> sm.MergeStreamsRequest:
    request = sm.MergeStreamsRequest(call=cluster.call_id())
    request.streams.add(
        stream_id=stream.stream_id, owner=owner, absorbed_stream_id=absorbed.stream_id, absorbed_owner=absorbed_owner
    )
    return request


class Partition:
    """Two streams with one owner's lock each, and appended bytes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.streams: list[tuple[sm.StreamInfo, sm.ExtentInfo, common_pb2.Owner]] = []

    async def make(self) -> Partition:
        for number in (1, 2):
            stream, tail, owner = await self.cluster.opened()
            self.cluster.nodes.append(tail, 10 * number, token=owner.token)
            self.streams.append((stream, tail, owner))
        return self

    async def split(self, *writes: sm.MetaWrite) -> sm.SplitStreamsRequest:
        request = sm.SplitStreamsRequest(call=self.cluster.call_id(), writes=writes)
        for number, (stream, tail, owner) in enumerate(self.streams, start=1):
            request.streams.add(
                extent_id=tail.extent_id,
                stream_id=stream.stream_id,
                owner=owner,
                acknowledged_end=10 * number,
                new_stream_id=await new_id(self.cluster),
                new_name=f"twin{number}",
            )
        return request


@simulated
async def test_t39_twins_share_the_extents_and_each_goes_on_by_itself() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        write = sm.MetaWrite(key=ROOT + b"regions/1", value=b"left")
        request = await partition.split(write)
        reply = await cluster.call(SPLIT, request)
        for stream, twin in zip(reply.streams, reply.twins, strict=True):
            assert stream.extent_ids == twin.extent_ids
            assert stream.lock != twin.lock
        kv = await cluster.store.get(ROOT + b"regions/1")
        assert kv is not None
        assert kv.mod_revision == reply.twins[0].mod_revision == reply.twins[1].mod_revision
        stream, tail, owner = partition.streams[0]
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 10)
        assert rolled.sealed.seal.length == 10
        twin_owner = await cluster.own(reply.twins[0])
        opened = await cluster.open(reply.twins[0].stream_id, twin_owner)
        assert opened.tail.extent_id not in (tail.extent_id, rolled.tail.extent_id)
        # One side lets go of what they share; the other one still has it.
        truncate = sm.TruncateStreamRequest(stream_id=stream.stream_id, before_extent_id=rolled.tail.extent_id)
        await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, truncate)
        assert cluster.part.removed == []
        assert tail.extent_id in cluster.term.state.extents
        delete = sm.DeleteStreamRequest(stream_id=reply.twins[0].stream_id)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        assert cluster.part.removed == [tail.extent_id, opened.tail.extent_id]


@simulated
async def test_t19_a_repeated_split_is_applied_once_also_by_the_next_leader() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        partition = await Partition(cluster).make()
        request = await partition.split(sm.MetaWrite(key=ROOT + b"regions/1", value=b"left"))
        first = await cluster.call(SPLIT, request)
        cluster.managers[1].kill()
        again = await cluster.call(SPLIT, request)
        assert again == first
        assert len(cluster.term.state.streams) == 4
        request.call.CopyFrom(cluster.call_id())
        await error_of(cluster.call(SPLIT, request), AlreadyExists)


@simulated
async def test_t20_a_split_that_fails_midway_leaves_streams_that_go_on() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        (first, first_tail, first_owner), (second, second_tail, second_owner) = partition.streams

        async def second_fails(what: str, extent_id: int, node_id: int) -> None:
            if extent_id == second_tail.extent_id and node_id != 1:
                raise ConnectFailed(address=f"node{node_id}")

        request = await partition.split()
        request.streams[1].ClearField("acknowledged_end")
        cluster.nodes.trouble = second_fails
        await error_of(cluster.call(SPLIT, request), SealUnavailable)
        cluster.nodes.trouble = None
        assert len(cluster.term.state.streams) == 2
        assert cluster.term.state.names == {}
        rolled = await cluster.alloc(first.stream_id, first_tail.extent_id, first_owner, 10)
        assert rolled.sealed.seal.length == 10
        rolled = await cluster.alloc(second.stream_id, second_tail.extent_id, second_owner, 20)
        assert rolled.sealed.seal.length == 20
        assert len((await cluster.call(SPLIT, request)).twins) == 2


@simulated
async def test_a_split_with_a_stale_key_or_owner_changes_nothing() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        await cluster.store.put(ROOT + b"regions/1", b"newer")
        stale = await partition.split(sm.MetaWrite(key=ROOT + b"regions/1", value=b"mine", mod_revision=1))
        await error_of(cluster.call(SPLIT, stale), VersionConflict)
        request = await partition.split()
        await cluster.own(partition.streams[1][0], takeover=True)
        await error_of(cluster.call(SPLIT, request), NotOwner)
        assert len(cluster.term.state.streams) == 2
        assert cluster.term.state.names == {}


@simulated
async def test_keys_of_the_manager_cannot_be_written_by_callers() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        for key in (b"streams/x", b"extents/1", b"leader/1", b"locks/a", b"ids", b"commits/00", b"leader-void/x"):
            request = await partition.split(sm.MetaWrite(key=ROOT + key, value=b""))
            await error_of(cluster.call(SPLIT, request), InvalidArgument)
        request = await partition.split(sm.MetaWrite(key=b"/other/x", value=b""))
        await error_of(cluster.call(SPLIT, request), InvalidArgument)


@simulated
async def test_a_merge_puts_one_streams_extents_behind_the_others() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        (first, first_tail, first_owner), (second, second_tail, second_owner) = partition.streams
        request = merge_of(cluster, first, first_owner, second, second_owner)
        reply = await cluster.call(MERGE, request)
        assert list(reply.streams[0].extent_ids) == [first_tail.extent_id, second_tail.extent_id]
        assert list(cluster.term.state.streams) == [first.stream_id]
        assert await cluster.call(MERGE, request) == reply
        assert cluster.part.removed == []
        opened = await cluster.open(first.stream_id, first_owner)
        assert len(opened.stream.extent_ids) == 3


@simulated
async def test_a_writer_is_not_given_the_extent_of_a_stream_that_was_merged_into_its_own() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        (first, first_tail, first_owner), (second, second_tail, second_owner) = partition.streams
        await cluster.call(MERGE, merge_of(cluster, first, first_owner, second, second_owner))
        error = await error_of(cluster.alloc(first.stream_id, first_tail.extent_id, first_owner), NotFound)
        assert "open it again" in str(error)
        listed = cluster.term.state.streams[first.stream_id].extent_ids
        assert list(listed) == [first_tail.extent_id, second_tail.extent_id]


@simulated
async def test_a_twin_that_wrote_alone_is_no_successor_for_the_writer_of_the_other() -> None:
    """Split, the twin goes on, merge: what stands behind the shared extent follows it, but is the twin's."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        stream, tail, owner = partition.streams[0]
        reply = await cluster.call(SPLIT, await partition.split())
        twin = reply.twins[0]
        twin_owner = await cluster.own(twin)
        opened = await cluster.open(twin.stream_id, twin_owner)
        cluster.nodes.append(opened.tail, 30, token=twin_owner.token)
        await cluster.call(MERGE, merge_of(cluster, stream, owner, twin, twin_owner))
        record = cluster.term.state.streams[stream.stream_id]
        assert record.extent_ids == (tail.extent_id, opened.tail.extent_id)
        assert not record.after_hole
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner), NotFound)


@simulated
async def test_a_merge_seals_at_the_ends_that_the_owners_have_acknowledged() -> None:
    """With one replica of three left, only an owner's word says where its stream ends (rule 18)."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        (first, first_tail, first_owner), (second, second_tail, second_owner) = partition.streams

        async def one_is_left(what: str, extent_id: int, node_id: int) -> None:
            if what == "fence" and node_id != 1:
                raise ConnectFailed(address=f"node{node_id}")

        cluster.nodes.trouble = one_is_left
        join = sm.StreamJoin(
            stream_id=first.stream_id,
            owner=first_owner,
            absorbed_stream_id=second.stream_id,
            absorbed_owner=second_owner,
        )
        request = sm.MergeStreamsRequest(call=cluster.call_id(), streams=[join])
        await error_of(cluster.call(MERGE, request), SealUnavailable)
        join.end.CopyFrom(common_pb2.StreamEnd(stream_id=second.stream_id, extent_id=first_tail.extent_id))
        wrong = sm.MergeStreamsRequest(call=cluster.call_id(), streams=[join])
        await error_of(cluster.call(MERGE, wrong), InvalidArgument)
        for end, stream, tail, acknowledged in (
            (join.end, first, first_tail, 10),
            (join.absorbed_end, second, second_tail, 20),
        ):
            end.stream_id, end.extent_id, end.acknowledged_end = stream.stream_id, tail.extent_id, acknowledged
        request = sm.MergeStreamsRequest(call=cluster.call_id(), streams=[join])
        reply = await cluster.call(MERGE, request)
        sealed = [cluster.term.state.extents[number].seal for number in reply.streams[0].extent_ids]
        assert [seal.length if seal is not None else None for seal in sealed] == [10, 20]


@simulated
async def test_splitting_and_merging_back_lists_shared_extents_once() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        split = await cluster.call(SPLIT, await partition.split())
        stream, tail, owner = partition.streams[0]
        twin = split.twins[0]
        twin_owner = await cluster.own(twin)
        twin_tail = (await cluster.open(twin.stream_id, twin_owner)).tail
        request = sm.MergeStreamsRequest(call=cluster.call_id())
        request.streams.add(
            stream_id=stream.stream_id,
            owner=owner,
            absorbed_stream_id=twin.stream_id,
            absorbed_owner=twin_owner,
        )
        reply = await cluster.call(MERGE, request)
        assert list(reply.streams[0].extent_ids) == [tail.extent_id, twin_tail.extent_id]
        await asyncio.sleep(1)
        cluster.term.state.validate()


@simulated
async def test_a_key_that_is_written_twice_is_refused_before_anything_is_sealed() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        partition = await Partition(cluster).make()
        write = sm.MetaWrite(key=ROOT + b"regions/1", value=b"left")
        error = await error_of(cluster.call(SPLIT, await partition.split(write, write)), InvalidArgument)
        assert "twice" in str(error)
        (one, _, owner), (two, _, other) = partition.streams
        join = sm.StreamJoin(
            stream_id=one.stream_id, owner=owner, absorbed_stream_id=two.stream_id, absorbed_owner=other
        )
        await error_of(
            cluster.call(MERGE, sm.MergeStreamsRequest(streams=[join], writes=[write, write])), InvalidArgument
        )
        assert all(extent.seal is None for extent in cluster.term.state.extents.values())


@simulated
async def test_the_largest_merge_fits_into_one_transaction() -> None:
    """Every stream with a name, a lock and a remembered creation of its own, and as many writes as may be."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        opened = [await cluster.opened(name=f"stream{number}") for number in range(2 * STREAMS_MAX)]
        writes = [sm.MetaWrite(key=ROOT + b"regions/%d" % number, value=b"one") for number in range(WRITES_MAX)]
        request = sm.MergeStreamsRequest(call=cluster.call_id(), writes=writes)
        for (stream, _, owner), (gone, _, gone_owner) in zip(opened[::2], opened[1::2], strict=True):
            request.streams.add(
                stream_id=stream.stream_id,
                owner=owner,
                absorbed_stream_id=gone.stream_id,
                absorbed_owner=gone_owner,
            )
        reply = await cluster.call(MERGE, request)
        assert all(len(stream.extent_ids) == 2 for stream in reply.streams)
        assert len(cluster.term.state.streams) == STREAMS_MAX
