"""Allocate the next extent and seal the tail; prepare extents ahead; wait for confirmations; accept a length by name.

Invariants: repeating a request gives the same length and the same successor, also under another leader, and also after
            the successor was sealed in turn: both are found in the stream's list (16);
            no answer with a sealed length leaves before owner and leader were proved, by the transaction that sealed or
            by a read of their own (3);
            a prepared extent is linked within half the collector's grace period, or never (24).
Neighbours: seal_tail.py does the sealing; make_extent.py makes the next one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    StreamSealed,
    VersionConflict,
)
from neve.rpc.service import Call
from neve.stream_manager.context import LeaderContext, Mutation
from neve.stream_manager.core_seal import valid_bytes
from neve.stream_manager.describe import extent_info, stream_info
from neve.stream_manager.make_extent import make_extent
from neve.stream_manager.records import Extent, Stream
from neve.stream_manager.requests import check_owner, stream_named
from neve.stream_manager.seal_tail import SealOrder, commit_seal, fence_replicas, link_tail, seal_tail
from neve.stream_manager.state import StateListener

log = logging.getLogger(__name__)

PREPARED_MAX = 10_000  # streams with an extent ahead
ANSWER_MARGIN_S = 0.2  # before a caller's deadline: late enough to be useful, early enough to arrive


@dataclass(frozen=True, slots=True)
class Prepared:
    extent: Extent
    linked_before_s: float


class Allocator(StateListener):
    """The flows of one term that need more memory than the state: what is prepared, and who waits."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._prepared: dict[int, Prepared] = {}  # by stream id
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}  # for confirmations, by extent id
        ctx.state.listeners.append(self)

    # --- allocate --------------------------------------------------------------------------------------------

    async def alloc_extent(self, request: sm.StreamAllocExtentRequest, mutation: Mutation) -> sm.StreamAllocExtentReply:
        ctx = self._ctx
        async with ctx.locks.hold(streams=[request.stream_id]):
            stream = stream_named(ctx.state, request.stream_id)
            check_owner(stream, request.owner)
            if request.extent_id not in stream.extent_ids:
                detail = "the stream does not list this extent (any more): open it again"
                raise NotFound(kind="extent", name=str(request.extent_id), detail=detail)
            extent = ctx.state.extents[request.extent_id]
            if extent.seal is not None:
                return await self._again(stream, extent, request, mutation)
            await ctx.owners.verify_new(request.owner.lock, request.owner.token)
            with ctx.quotas.reserve(stream.labels, extents=1, size_bytes=_more_bytes(stream, extent, request)):
                successor = await self._next_extent(stream, request)
                order = SealOrder(
                    owner=request.owner,
                    acknowledged_end=request.acknowledged_end if request.HasField("acknowledged_end") else None,
                    successor=successor,
                    record=lambda changes: mutation.record(
                        changes,
                        stream_ids=[stream.stream_id],
                        extent_ids=[extent.extent_id, successor.extent_id],
                    ),
                )
                stream, sealed = await seal_tail(ctx, stream, extent, order)
            self._prepared.pop(stream.stream_id, None)
            return self._alloc_reply(stream, sealed, ctx.state.extents[successor.extent_id])

    async def _again(
        self, stream: Stream, sealed: Extent, request: sm.StreamAllocExtentRequest, mutation: Mutation
    ) -> sm.StreamAllocExtentReply:
        """The extent is sealed already: by this request before, by an operator, or by the manager itself."""
        ctx = self._ctx
        tail = self._successor(stream, sealed, mutation)
        if tail is None and not stream.sealed:
            with ctx.quotas.reserve(stream.labels, extents=1, size_bytes=stream.policy.extent_bytes_max):
                await ctx.owners.verify_new(request.owner.lock, request.owner.token)
                made = await self._next_extent(stream, request)
                ids = [sealed.extent_id, made.extent_id]
                order = SealOrder(
                    owner=request.owner,
                    record=lambda changes: mutation.record(changes, stream_ids=[stream.stream_id], extent_ids=ids),
                )
                stream = await link_tail(ctx, stream, made, order)
                tail = ctx.state.extents[made.extent_id]
        else:
            await ctx.owners.verify(request.owner.lock, request.owner.token)
        return self._alloc_reply(stream, sealed, tail)

    def _successor(self, stream: Stream, sealed: Extent, mutation: Mutation) -> Extent | None:
        after = stream.extent_ids[stream.extent_ids.index(sealed.extent_id) + 1 :]
        if mutation.replayed is not None and len(mutation.replayed.extent_ids) == 2:
            recorded = mutation.replayed.extent_ids[1]
            if recorded in after:
                return self._ctx.state.extents[recorded]
        return self._ctx.state.extents[after[0]] if after else None

    def _alloc_reply(self, stream: Stream, sealed: Extent, tail: Extent | None) -> sm.StreamAllocExtentReply:
        state = self._ctx.state
        reply = sm.StreamAllocExtentReply(
            stream=stream_info(stream),
            sealed=extent_info(state, sealed),
            all_took_part=sealed.all_took_part or sealed.all_confirmed,
        )
        if tail is not None:
            reply.tail.CopyFrom(extent_info(state, tail))
        return reply

    async def _next_extent(self, stream: Stream, request: sm.StreamAllocExtentRequest) -> Extent:
        """The prepared one if the writer names it and it is young enough, else a new one."""
        ctx = self._ctx
        if len(stream.extent_ids) >= ctx.config.limits.stream_extents_max:
            detail = "truncate the stream, or go on with another one"
            limit = ctx.config.limits.stream_extents_max
            raise QuotaExceeded(what="extents of one stream", used=limit, limit=limit, detail=detail)
        prepared = self._prepared.get(stream.stream_id)
        if prepared is not None and prepared.extent.extent_id == request.prepared_extent_id:
            avoided = not set(request.avoid_node_ids).isdisjoint(prepared.extent.node_ids)
            dead = not ctx.state.dead_nodes().isdisjoint(prepared.extent.node_ids)
            if ctx.clock() < prepared.linked_before_s and not avoided and not dead:
                return prepared.extent
        return await make_extent(
            ctx, stream.policy, stream_id=stream.stream_id, avoid=frozenset(request.avoid_node_ids)
        )

    # --- prepare ---------------------------------------------------------------------------------------------

    async def prepare_extent(self, request: sm.PrepareExtentRequest, mutation: Mutation) -> sm.PrepareExtentReply:
        """In memory and on nodes only: nothing of it is in etcd before it is linked."""
        ctx = self._ctx
        async with ctx.locks.hold(streams=[request.stream_id]):
            stream = stream_named(ctx.state, request.stream_id)
            check_owner(stream, request.owner)
            if stream.sealed:
                raise StreamSealed(stream_id=stream.stream_id)
            await ctx.owners.verify(request.owner.lock, request.owner.token)
            prepared = self._prepared.get(stream.stream_id)
            if prepared is None or ctx.clock() >= prepared.linked_before_s:
                deadline_s = ctx.clock() + ctx.config.collecting.grace_s / 2
                extent = await make_extent(ctx, stream.policy, stream_id=stream.stream_id)
                prepared = Prepared(extent, deadline_s)
                while len(self._prepared) >= PREPARED_MAX:  # the oldest becomes an orphan, which is collected
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[stream.stream_id] = prepared
            return sm.PrepareExtentReply(extent=extent_info(ctx.state, prepared.extent))

    # --- confirmations ---------------------------------------------------------------------------------------

    async def wait_confirmed(self, request: sm.WaitConfirmedRequest, call: Call) -> sm.WaitConfirmedReply:
        ctx = self._ctx
        stream = stream_named(ctx.state, request.stream_id)
        check_owner(stream, request.owner)
        deadline_s = min(call.deadline_s - ANSWER_MARGIN_S, ctx.clock() + ctx.config.timeouts.wait_confirmed_s)
        while True:
            extent = ctx.state.extents.get(request.extent_id)
            if extent is None or request.stream_id not in ctx.state.streams_of(request.extent_id):
                raise NotFound(kind="extent", name=str(request.extent_id))
            if extent.seal is None:
                raise InvalidArgument(what="extent_id", detail="this extent is open: there is nothing to confirm")
            if extent.all_confirmed:
                break
            await self._changed(request.extent_id, deadline_s)
        await ctx.owners.verify(request.owner.lock, request.owner.token)
        return sm.WaitConfirmedReply(extent=extent_info(ctx.state, extent))

    async def _changed(self, extent_id: int, deadline_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(extent_id, [])
        waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                await waiter
        except TimeoutError:
            detail = "not every replica has confirmed yet: ask again"
            raise DeadlineExceeded(method="WaitConfirmed", detail=detail) from None
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and self._waiting.get(extent_id) is waiters:
                del self._waiting[extent_id]

    def on_extent(self, old: Extent | None, new: Extent | None) -> None:
        changed = new or old
        assert changed is not None
        for waiter in self._waiting.pop(changed.extent_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def on_stream(self, old: Stream | None, new: Stream | None) -> None:
        if new is None and old is not None:
            self._prepared.pop(old.stream_id, None)

    # --- by operators ----------------------------------------------------------------------------------------

    async def accept_length(self, request: sm.AcceptLengthRequest, mutation: Mutation) -> sm.AcceptLengthReply:
        """Rule 18 has no answer, and an operator names one: whatever is lost above it is their decision."""
        ctx = self._ctx
        extent = ctx.state.extents.get(request.extent_id)
        if extent is None:
            raise NotFound(kind="extent", name=str(request.extent_id))
        if extent.seal is not None:
            if extent.seal.length != request.length:
                detail = f"sealed at {extent.seal.length}: that is decided"
                raise VersionConflict(what=f"extent {request.extent_id}", detail=detail)
            return sm.AcceptLengthReply(extent=extent_info(ctx.state, extent))
        (stream_id,) = ctx.state.streams_of(extent.extent_id) or (0,)
        async with ctx.locks.hold(streams=[stream_id]):
            stream = stream_named(ctx.state, stream_id)
            extent = ctx.state.extents[request.extent_id]
            if extent.seal is None:
                answers = await fence_replicas(ctx, extent, None)
                held = [valid_bytes(answer) for answer in answers.values() if answer is not None]
                longest = max((length for length in held if length is not None), default=None)
                if request.length and (longest is None or longest < request.length):
                    detail = f"{request.length}, but the longest replica that answers has {longest or 0} valid bytes"
                    raise InvalidArgument(what="length", detail=detail)
                order = SealOrder(record=lambda changes: mutation.record(changes, extent_ids=[request.extent_id]))
                _, extent = await commit_seal(ctx, stream, extent, order, length=request.length, all_took_part=False)
                log.warning(
                    "length_accepted extent_id=%d length=%d by=%s reason=%s",
                    request.extent_id,
                    request.length,
                    mutation.principal,
                    request.reason,
                )
        return sm.AcceptLengthReply(extent=extent_info(ctx.state, extent))


def _more_bytes(stream: Stream, tail: Extent, request: sm.StreamAllocExtentRequest) -> int:
    """What a quota must have room for: the new extent's limit, while the tail shrinks to what it holds."""
    kept = request.acknowledged_end if request.HasField("acknowledged_end") else tail.extent_bytes_max
    return stream.policy.extent_bytes_max - (tail.extent_bytes_max - min(kept, tail.extent_bytes_max))
