"""Split and merge: change several streams and keys of the partition layer in one transaction (protocol rule 23).

Invariants: the tails are sealed first, each in a transaction of its own: a later failure leaves valid streams, whose
            owners continue with a new tail when they ask for one (scenario T20);
            the transaction that splits or merges writes stream keys, names and the caller's keys, and no extent;
            repeating a request creates no second twin, because the caller chooses the new stream's id (scenario T19);
            a caller may only write keys of its own, never those of streams, extents, nodes, leaders or locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AlreadyExists, InvalidArgument
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.metadata.describe import stream_info
from neve.stream_manager.metadata.record_kinds import KINDS, NAME, Name
from neve.stream_manager.metadata.records import Stream
from neve.stream_manager.streams.seal_tail import SealOrder, open_tail, seal_tail
from neve.stream_manager.streams.streams import check_free
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.requests import (
    STREAM_EXTENTS_MAX,
    check_end_names_extent,
    check_name,
    check_owner,
    check_stream_name,
    stream_named,
)

STREAMS_MAX = 25  # per request, so that names, twins, owners, replay records and writes fit into one transaction
WRITES_MAX = 20

# Keys of the managers. A caller that could write them could break every guarantee.
RESERVED = {prefix.removesuffix(b"/") for prefix in (*KINDS, r.REPLAY, r.COMMITS, r.IDS)}
RESERVED_BEGINNINGS = (b"leader", b"locks")


async def split_streams(
    ctx: LeaderContext, request: sm.SplitStreamsRequest, mutation: Mutation
) -> sm.SplitStreamsReply:
    ids = [copy.stream_id for copy in request.streams]
    twin_ids = [copy.new_stream_id for copy in request.streams]
    _check_ids(ids, twin_ids)
    if mutation.replayed is not None:
        return _split_reply(ctx, ids, twin_ids)
    names = [copy.new_name for copy in request.streams if copy.new_name]
    if len(set(names)) < len(names):
        raise InvalidArgument(what="new_name", detail="the same name is given twice")
    _check_writes(ctx.root, request.writes)
    async with ctx.locks.hold(names=names, streams=[*ids, *twin_ids]):
        for copy in request.streams:
            check_owner(stream_named(ctx.state, copy.stream_id), copy.owner)
            check_stream_name("new_name", copy.new_name)
            check_name("new_lock", copy.new_lock)
            check_free(ctx, copy.new_name)
            if copy.new_stream_id in ctx.state.streams:
                raise AlreadyExists(kind="stream", name=str(copy.new_stream_id))
        with contextlib.ExitStack() as reservations:
            for copy in request.streams:
                stream = ctx.state.streams[copy.stream_id]
                more = {"streams": 1, "extents": len(stream.extent_ids)}
                reservations.enter_context(ctx.quotas.reserve(stream.labels, **more))
            await _seal_all(ctx, [(copy.stream_id, copy.owner, _end_of_copy(copy)) for copy in request.streams])
            changes = ctx.changes()
            for copy in request.streams:
                stream = ctx.state.streams[copy.stream_id]
                size_bytes = ctx.quotas.size_bytes(stream.extent_ids)  # known only after the tail is sealed
                reservations.enter_context(ctx.quotas.reserve(stream.labels, size_bytes=size_bytes))
                changes.require_stream(stream)
                changes.require_owner(copy.owner.lock, copy.owner.token)
                changes.put_stream(None, _twin(ctx, stream, copy))
                if copy.new_name:
                    changes.put(NAME, None, Name(copy.new_name, copy.new_stream_id))
            _add_writes(changes, request.writes)
            mutation.record(changes, stream_ids=[*ids, *twin_ids])
            await ctx.commit(changes)
        return _split_reply(ctx, ids, twin_ids)


async def merge_streams(
    ctx: LeaderContext, request: sm.MergeStreamsRequest, mutation: Mutation
) -> sm.MergeStreamsReply:
    ids = [join.stream_id for join in request.streams]
    gone_ids = [join.absorbed_stream_id for join in request.streams]
    _check_ids(ids, gone_ids)
    if mutation.replayed is not None:
        return sm.MergeStreamsReply(streams=[stream_info(stream_named(ctx.state, number)) for number in ids])
    _check_writes(ctx.root, request.writes)
    names = [stream_named(ctx.state, number).name for number in gone_ids]
    async with ctx.locks.hold(names=[name for name in names if name], streams=[*ids, *gone_ids]):
        order: list[tuple[int, common_pb2.Owner, common_pb2.StreamEnd | None]] = []
        for join in request.streams:
            check_owner(stream_named(ctx.state, join.stream_id), join.owner)
            check_owner(stream_named(ctx.state, join.absorbed_stream_id), join.absorbed_owner)
            order += [
                (join.stream_id, join.owner, _end_of_join(join, "end", join.stream_id)),
                (
                    join.absorbed_stream_id,
                    join.absorbed_owner,
                    _end_of_join(join, "absorbed_end", join.absorbed_stream_id),
                ),
            ]
        await _seal_all(ctx, order)
        changes = ctx.changes()
        for join in request.streams:
            stream, gone = ctx.state.streams[join.stream_id], ctx.state.streams[join.absorbed_stream_id]
            # Twins share the extents from before their split
            joined = tuple(dict.fromkeys([*stream.extent_ids, *gone.extent_ids]))
            if len(joined) > STREAM_EXTENTS_MAX:
                raise InvalidArgument(what="streams", detail=f"{len(joined)} extents are too many for one stream")
            changes.put_stream(stream, stream.with_list(joined, gone))
            changes.delete_stream(gone)
            if gone.name:
                changes.delete_uncompared(NAME, gone.name)
            changes.require_owner(join.owner.lock, join.owner.token)
            changes.require_owner(join.absorbed_owner.lock, join.absorbed_owner.token)
        _add_writes(changes, request.writes)
        mutation.record(changes, stream_ids=ids)
        with contextlib.ExitStack() as reservations:
            for join in request.streams:
                reservations.enter_context(_room_for_joined(ctx, join))
            await ctx.commit(changes)
        return sm.MergeStreamsReply(streams=[stream_info(ctx.state.streams[number]) for number in ids])


def _room_for_joined(ctx: LeaderContext, join: sm.StreamJoin) -> contextlib.AbstractContextManager[None]:
    """Reserve quota for a merge.

    With equal labels usage does not grow; with other labels the extents count for other quotas.
    """
    stream, gone = ctx.state.streams[join.stream_id], ctx.state.streams[join.absorbed_stream_id]
    if stream.labels == gone.labels:
        return contextlib.nullcontext()
    held = set(stream.extent_ids)
    more = [extent_id for extent_id in gone.extent_ids if extent_id not in held]
    return ctx.quotas.reserve(stream.labels, extents=len(more), size_bytes=ctx.quotas.size_bytes(more))


async def _seal_all(
    ctx: LeaderContext, streams: Iterable[tuple[int, common_pb2.Owner, common_pb2.StreamEnd | None]]
) -> None:
    for stream_id, owner, end in streams:
        if not ctx.owners.seen(owner.lock, owner.token):
            await ctx.owners.verify(owner.lock, owner.token)
        stream = ctx.state.streams[stream_id]
        tail = open_tail(ctx, stream)
        if tail is not None:
            # An owner's acknowledged end in an earlier tail does not apply to this one (protocol rule 16).
            known = end.acknowledged_end if end is not None and end.extent_id == tail.extent_id else None
            await seal_tail(ctx, stream, tail, SealOrder(owner=owner, acknowledged_end=known))
        await _give_keys(ctx, stream_id)


async def _give_keys(ctx: LeaderContext, stream_id: int) -> None:
    """Give the stream's young extents keys of their own: an extent of two streams cannot be in the record of one."""
    listed = ctx.state.streams[stream_id].extent_ids[-YOUNG_WINDOW:]
    young = [extent_id for extent_id in listed if ctx.state.extents[extent_id].young]
    async with ctx.locks.hold(extents=young):
        changes = ctx.changes()
        for extent_id in young:
            extent = ctx.state.extents[extent_id]
            if extent.young:  # it may have been confirmed while this waited for its lock
                changes.put_extent(extent, extent)
        if changes.values:
            await ctx.commit(changes)


def _end_of_copy(copy: sm.StreamCopy) -> common_pb2.StreamEnd | None:
    if not copy.HasField("acknowledged_end"):
        return None
    check_end_names_extent(copy)
    return common_pb2.StreamEnd(extent_id=copy.extent_id, acknowledged_end=copy.acknowledged_end)


def _end_of_join(join: sm.StreamJoin, field: str, stream_id: int) -> common_pb2.StreamEnd | None:
    if not join.HasField(field):
        return None
    end: common_pb2.StreamEnd = getattr(join, field)
    if end.stream_id not in (0, stream_id) or not end.extent_id:
        raise InvalidArgument(what=field, detail=f"its extent_id must name an extent of stream {stream_id}")
    return end


def _twin(ctx: LeaderContext, stream: Stream, copy: sm.StreamCopy) -> Stream:
    return Stream(
        stream_id=copy.new_stream_id,
        name=copy.new_name,
        lock=copy.new_lock or f"stream/{copy.new_stream_id:016x}",
        extent_ids=stream.extent_ids,
        sealed=stream.sealed,
        policy=stream.policy,
        labels=stream.labels,
        version=1,
        created_ms=ctx.wall_ms(),
        truncated_before=stream.truncated_before,
        after_hole=stream.after_hole,
    )


def _split_reply(ctx: LeaderContext, ids: Sequence[int], twin_ids: Sequence[int]) -> sm.SplitStreamsReply:
    return sm.SplitStreamsReply(
        streams=[stream_info(stream_named(ctx.state, number)) for number in ids],
        twins=[stream_info(stream_named(ctx.state, number)) for number in twin_ids],
    )


def _check_ids(ids: Sequence[int], others: Sequence[int]) -> None:
    together = [*ids, *others]
    if not ids or len(ids) > STREAMS_MAX:
        raise InvalidArgument(what="streams", detail=f"{len(ids)}, at least 1 and at most {STREAMS_MAX}")
    if 0 in together or len(set(together)) < len(together):
        raise InvalidArgument(what="streams", detail="every stream id is required, and each only once")


def _check_writes(root: bytes, writes: Sequence[sm.MetaWrite]) -> None:
    """Check the caller's writes before anything is sealed."""
    if len(writes) > WRITES_MAX:
        raise InvalidArgument(what="writes", detail=f"{len(writes)}, at most {WRITES_MAX}")
    if len({write.key for write in writes}) < len(writes):
        raise InvalidArgument(what="writes.key", detail="the same key is written twice")
    for write in writes:
        kind, _, _ = write.key[len(root) :].partition(b"/")
        if not write.key.startswith(root) or not kind:
            raise InvalidArgument(what="writes.key", detail=f"{write.key!r} is not below {root!r}")
        if kind in RESERVED or kind.startswith(RESERVED_BEGINNINGS):
            raise InvalidArgument(what="writes.key", detail=f"{write.key!r} belongs to the stream manager")


def _add_writes(changes: Changes, writes: Sequence[sm.MetaWrite]) -> None:
    for write in writes:
        if write.delete:
            changes.delete_other(write.key, mod_revision=write.mod_revision)
        else:
            changes.put_other(write.key, write.value, mod_revision=write.mod_revision)
