"""Opening a stream for a new owner: from then on no node accepts an older owner's append (protocol rules 14 and 15).

Invariants: the tail is continued only if all its replicas raised the token and agree, and a later transaction proves
            leader, stream, extent and lock; otherwise it is sealed;
            the new owner gets the list of that very transaction, so a deposed manager hands out no old tail;
            replicas get a token only if etcd says that it is a current holding of this lock.

Repeating the call is safe: with the same token every step has the same result, or the tail is sealed. So the call's
record only names the extent that it sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import StreamSealed
from neve.stream_manager.metadata.describe import extent_info, stream_info
from neve.stream_manager.metadata.records import Extent, Stream
from neve.stream_manager.streams.core.open import decide_open
from neve.stream_manager.streams.make_extent import link_before_s, make_extent
from neve.stream_manager.streams.seal_tail import SealOrder, ask_replicas, link_tail, open_tail, seal_tail
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.requests import check_list_room, check_owner, stream_named

log = logging.getLogger(__name__)


async def check_commit_length(
    ctx: LeaderContext, request: sm.CheckCommitLengthRequest, mutation: Mutation
) -> sm.CheckCommitLengthReply:
    owner = request.owner
    async with ctx.locks.hold(streams=[request.stream_id]):
        stream = stream_named(ctx.state, request.stream_id)
        check_owner(stream, owner)
        if stream.sealed:
            raise StreamSealed(stream_id=stream.stream_id)
        await ctx.owners.verify(owner.lock, owner.token)
        tail = open_tail(ctx, stream)
        sealed_before = mutation.replayed.extent_ids[0] if mutation.replayed and mutation.replayed.extent_ids else 0
        if tail is None:
            with _reserve_quota(ctx, stream):
                deadline_s = link_before_s(ctx)
                successor = await _make(ctx, stream)
                order = SealOrder(
                    owner=owner, link_before_s=deadline_s, record=lambda changes: mutation.record(changes)
                )
                stream = await link_tail(ctx, stream, successor, order)
            return _reply(ctx, stream, successor.extent_id, length=0, sealed_id=sealed_before)
        length = await _length_to_continue(ctx, tail, owner)
        if length is not None:
            changes = ctx.changes()
            changes.require_stream(stream)
            changes.require_extent(tail)
            changes.require_owner(owner.lock, owner.token)
            await ctx.commit(changes)
            return _reply(ctx, stream, tail.extent_id, length=length, sealed_id=sealed_before)
        with _reserve_quota(ctx, stream):
            deadline_s = link_before_s(ctx)
            successor = await _make(ctx, stream)
            ids = [tail.extent_id]
            order = SealOrder(
                owner=owner,
                successor=successor,
                link_before_s=deadline_s,
                record=lambda changes: mutation.record(changes, stream_ids=[stream.stream_id], extent_ids=ids),
            )
            stream, sealed = await seal_tail(ctx, stream, tail, order)
        return _reply(ctx, stream, successor.extent_id, length=0, sealed_id=sealed.extent_id)


async def _length_to_continue(ctx: LeaderContext, tail: Extent, owner: common_pb2.Owner) -> int | None:
    if not ctx.state.dead_nodes().isdisjoint(tail.node_ids):
        return None  # the tail will be sealed: there is no need to ask twice
    if tail.extent_id in ctx.conflicts:
        return None  # its replicas differ (protocol rule 7)
    answers = await ask_replicas(ctx, tail, ctx.nodes.raise_all, owner)
    token = owner.token
    length = decide_open(answers, tail.node_ids, token=token)
    if length is None:
        log.info("tail_not_gone_on_with extent_id=%d token=%d", tail.extent_id, token)
    elif length >= tail.extent_bytes_max:
        return None  # full: the first append would ask for the next extent
    return length


@contextmanager
def _reserve_quota(ctx: LeaderContext, stream: Stream) -> Iterator[None]:
    """Reserve quota for a new tail, as for a roll."""
    check_list_room(stream)
    with ctx.quotas.reserve(stream.labels, extents=1, size_bytes=stream.policy.extent_bytes_max):
        yield


async def _make(ctx: LeaderContext, stream: Stream) -> Extent:
    return await make_extent(ctx, stream.policy, stream_id=stream.stream_id)


def _reply(
    ctx: LeaderContext, stream: Stream, tail_id: int, *, length: int, sealed_id: int
) -> sm.CheckCommitLengthReply:
    reply = sm.CheckCommitLengthReply(
        stream=stream_info(stream), tail=extent_info(ctx.state, ctx.state.extents[tail_id]), length=length
    )
    sealed = ctx.state.extents.get(sealed_id)
    if sealed is not None:
        reply.sealed.CopyFrom(extent_info(ctx.state, sealed))
    return reply
