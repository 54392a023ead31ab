"""Operations on streams: create, seal, truncate, punch holes, delete.

Invariants: a name belongs to one stream; the same call never creates two streams (protocol rule 26);
            an extent's record is deleted only if no other stream lists it (protocol rule 23), in the transaction that
            takes it off the list; its replicas are deleted only after that (protocol rule 24);
            a stream is deleted only after its tail is fenced, so that no append is acknowledged later (scenario T45);
            work that is too large for one transaction is split, and each transaction leaves a valid stream.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AlreadyExists, InvalidArgument, NotFound, SealUnavailable
from neve.rpc.service import Encoded
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.describe import create_reply, extent_info, stream_info
from neve.stream_manager.metadata.record_kinds import NAME, TASK, Name
from neve.stream_manager.metadata.records import Extent, Stream
from neve.stream_manager.streams.make_extent import make_extent
from neve.stream_manager.streams.seal_tail import SealOrder, fence_replicas, open_tail, seal_tail
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.requests import (
    check_name,
    check_stream_name,
    end_for,
    labels_of,
    owner_of,
    policy_of,
    stream_named,
)

log = logging.getLogger(__name__)

EXTENTS_PER_TXN = 40  # each may take two operations: its record and its recovery task


# --- create ---------------------------------------------------------------------------------------------------


async def create_stream(
    ctx: LeaderContext, request: sm.CreateStreamRequest, mutation: Mutation
) -> Encoded[sm.CreateStreamReply]:
    if mutation.replayed is not None:
        stream = stream_named(ctx.state, mutation.replayed.stream_ids[0])
        return _created(ctx, stream)
    policy = policy_of(request.policy, ctx.config)
    ctx.cluster_nodes.registry.check_policy(policy.placement)
    labels = labels_of(request.labels)
    name, lock = request.name, request.lock
    check_stream_name("name", name)
    check_name("lock", lock)
    async with ctx.locks.hold(names=(name,) if name else ()):
        check_free(ctx, name)
        with ctx.quotas.reserve(labels, streams=1, extents=1, size_bytes=policy.extent_bytes_max):
            stream_id = ctx.ids.take_now() or await ctx.ids.take()
            tail = await make_extent(ctx, policy, stream_id=stream_id)
            changes = ctx.changes()
            changes.stream_call = mutation.stream_call((stream_id,))
            stream = Stream(
                stream_id=stream_id,
                name=name,
                lock=lock or f"stream/{stream_id:016x}",
                extent_ids=(tail.extent_id,),
                sealed=False,
                policy=policy,
                labels=labels,
                version=1,
                created_ms=ctx.wall_ms(),
                made_by=changes.stream_call,
            )
            changes.put_new_stream(stream, tail)
            if name:
                changes.put(NAME, None, Name(name, stream_id))
            await ctx.commit_link(changes, tail.extent_id)
    return _created(ctx, ctx.state.streams[stream_id])


def check_free(ctx: LeaderContext, name: str) -> None:
    if name and name in ctx.state.names:
        raise AlreadyExists(kind="stream", name=name)


def _created(ctx: LeaderContext, stream: Stream) -> Encoded[sm.CreateStreamReply]:
    tail_id = stream.tail_id
    return create_reply(ctx.state, stream, None if tail_id is None else ctx.state.extents[tail_id])


# --- seal -----------------------------------------------------------------------------------------------------


async def seal_stream(ctx: LeaderContext, request: sm.SealStreamRequest, mutation: Mutation) -> sm.SealStreamReply:
    async with ctx.locks.hold(streams=[request.stream_id]):
        stream = stream_named(ctx.state, request.stream_id)
        owner = owner_of(stream, request)
        if owner is not None:
            await ctx.owners.verify(owner.lock, owner.token)
        if not stream.sealed:
            stream = await _seal_for_ever(ctx, stream, owner, request, mutation)
        reply = sm.SealStreamReply(stream=stream_info(stream))
        if stream.tail_id is not None:
            reply.sealed.CopyFrom(extent_info(ctx.state, ctx.state.extents[stream.tail_id]))
        return reply


async def _seal_for_ever(
    ctx: LeaderContext,
    stream: Stream,
    owner: common_pb2.Owner | None,
    request: sm.SealStreamRequest,
    mutation: Mutation,
) -> Stream:
    tail = open_tail(ctx, stream)
    if tail is not None:
        order = SealOrder(
            owner=owner,
            acknowledged_end=end_for(tail, request),
            seal_stream=True,
            record=lambda changes: mutation.record(changes, stream_ids=[stream.stream_id]),
        )
        stream, _ = await seal_tail(ctx, stream, tail, order)
        return stream
    changes = ctx.changes()
    changes.put_stream(stream, stream.changed(stream.extent_ids, sealed=True))
    if owner is not None:
        changes.require_owner(owner.lock, owner.token)
    mutation.record(changes, stream_ids=[stream.stream_id])
    await ctx.commit(changes)
    return ctx.state.streams[stream.stream_id]


# --- truncate and punch ---------------------------------------------------------------------------------------


async def truncate_stream(
    ctx: LeaderContext, request: sm.TruncateStreamRequest, mutation: Mutation
) -> sm.TruncateStreamReply:
    async with ctx.locks.hold(streams=[request.stream_id]):
        stream = stream_named(ctx.state, request.stream_id)
        owner = owner_of(stream, request)
        if mutation.replayed is None:
            if request.before_extent_id not in stream.extent_ids:
                raise NotFound(kind="extent", name=f"{request.before_extent_id} of stream {request.stream_id}")
            gone = stream.extent_ids[: stream.extent_ids.index(request.before_extent_id)]
            stream = await _unlink(ctx, stream, gone, owner, mutation, truncated_before=request.before_extent_id)
        return sm.TruncateStreamReply(stream=stream_info(stream))


async def punch_holes(ctx: LeaderContext, request: sm.PunchHolesRequest, mutation: Mutation) -> sm.PunchHolesReply:
    async with ctx.locks.hold(streams=[request.stream_id]):
        stream = stream_named(ctx.state, request.stream_id)
        owner = owner_of(stream, request)
        if mutation.replayed is None:
            if stream.tail_id in request.extent_ids:
                detail = f"{stream.tail_id} is the tail, where no hole can be made"
                raise InvalidArgument(what="extent_ids", detail=detail)
            wanted = set(request.extent_ids)
            gone = [extent_id for extent_id in stream.extent_ids if extent_id in wanted]
            stream = await _unlink(ctx, stream, gone, owner, mutation)
        return sm.PunchHolesReply(stream=stream_info(stream))


async def _unlink(
    ctx: LeaderContext,
    stream: Stream,
    extent_ids: Sequence[int],
    owner: common_pb2.Owner | None,
    mutation: Mutation | None,
    *,
    truncated_before: int = 0,
) -> Stream:
    """Take extents off the list, some per transaction. The last transaction has the replay record, if there is one."""
    rest = list(extent_ids)
    while True:
        part, rest = rest[:EXTENTS_PER_TXN], rest[EXTENTS_PER_TXN:]
        async with ctx.locks.hold(extents=part):
            changes = ctx.changes()
            removed = _delete_unreferenced(ctx, changes, stream, part)
            left = set(part)
            changed = stream.with_list(
                tuple(extent_id for extent_id in stream.extent_ids if extent_id not in left),
                empty={each for each in part if _is_empty(ctx.state.extents[each])},
                truncated_before=max(stream.truncated_before, truncated_before if not rest else 0),
            )
            changes.put_stream(stream, changed)
            if owner is not None:
                changes.require_owner(owner.lock, owner.token)
            if mutation is not None and not rest:
                mutation.record(changes, stream_ids=[stream.stream_id])
            await ctx.commit(changes)
        ctx.cluster_nodes.collector.note_removed(removed)
        stream = ctx.state.streams[stream.stream_id]
        if not rest:
            return stream


def _is_empty(extent: Extent) -> bool:
    return extent.seal is not None and extent.seal.length == 0


def _delete_unreferenced(
    ctx: LeaderContext, changes: Changes, stream: Stream, extent_ids: Sequence[int]
) -> list[Extent]:
    """Delete the records of the extents that only this stream lists, and their recovery tasks."""
    removed = ctx.unreferenced(extent_ids, apart_from=stream.stream_id)
    for extent in removed:
        changes.delete_extent(extent)
        task = ctx.state.tasks.get(extent.extent_id)
        if task is not None:
            changes.delete(TASK, task)
    return removed


# --- delete ---------------------------------------------------------------------------------------------------


async def delete_stream(
    ctx: LeaderContext, request: sm.DeleteStreamRequest, mutation: Mutation
) -> sm.DeleteStreamReply:
    if mutation.replayed is not None:
        return sm.DeleteStreamReply()
    name = stream_named(ctx.state, request.stream_id).name
    async with ctx.locks.hold(names=[name] if name else [], streams=[request.stream_id]):
        stream = stream_named(ctx.state, request.stream_id)
        owner = owner_of(stream, request)
        if owner is not None:
            await ctx.owners.verify(owner.lock, owner.token)
        fenced = await _fence_for_ever(ctx, stream, owner)
        if len(stream.extent_ids) > EXTENTS_PER_TXN:
            first = stream.extent_ids[: len(stream.extent_ids) - EXTENTS_PER_TXN]
            stream = await _unlink(ctx, stream, first, owner, None)
        async with ctx.locks.hold(extents=stream.extent_ids):
            changes = ctx.changes()
            removed = _delete_unreferenced(ctx, changes, stream, stream.extent_ids)
            changes.delete_stream(stream)
            if stream.name:
                changes.delete_uncompared(NAME, stream.name)
            if owner is not None:
                changes.require_owner(owner.lock, owner.token)
            elif not fenced:
                changes.require_unowned(stream.lock)
            mutation.record(changes, stream_ids=[stream.stream_id])
            await ctx.commit(changes)
        ctx.cluster_nodes.collector.note_removed(removed)
    return sm.DeleteStreamReply()


async def _fence_for_ever(ctx: LeaderContext, stream: Stream, owner: common_pb2.Owner | None) -> bool:
    """Fence the tail, so that no writer's append is acknowledged later; returns False if no replica can be reached.

    One fenced replica is enough, because a writer acknowledges only what all replicas have (protocol rule 23). If
    none can be reached, the request is refused, unless all their nodes are declared dead. Then the transaction checks
    that no writer holds the lock, or the owner deletes its own stream.
    """
    tail = open_tail(ctx, stream)
    if tail is None:
        return True
    answers = await fence_replicas(ctx, tail, owner)
    if any(answer is not None and (answer.fenced or answer.HasField("seal")) for answer in answers.values()):
        return True
    if ctx.state.dead_nodes().issuperset(tail.node_ids):
        return False
    detail = "no replica of the tail could be fenced: a writer could still append; try again when a node answers"
    raise SealUnavailable(extent_id=tail.extent_id, detail=detail)
