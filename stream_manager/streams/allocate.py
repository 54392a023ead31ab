"""Rolling a stream: seal its tail and link the next extent, at its writer's request.

The module also prepares extents, waits for confirmations, and accepts a length that an operator names.

Invariants: repeating a request gives the same length and the same successor, even from another leader, and even after
            the successor was sealed: both are found in the stream's list (protocol rule 16);
            no reply with a sealed length is sent before owner and leader were proved, by the transaction that sealed or
            by a separate read (protocol rule 3);
            a prepared extent is linked once, within half the collector's grace period, or never; until then, and while
            it is being linked, the collector leaves it alone (protocol rule 24).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import NamedTuple

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    StreamSealed,
    VersionConflict,
)
from neve.rpc.service import Call, Encoded
from neve.stream_manager.metadata.describe import alloc_reply, extent_info
from neve.stream_manager.metadata.record_kinds import EXTENT, STREAM
from neve.stream_manager.metadata.records import Extent, Stream
from neve.stream_manager.streams.core.seal import check_accepted
from neve.stream_manager.streams.make_extent import link_before_s, make_extent
from neve.stream_manager.streams.seal_tail import (
    SealOrder,
    commit_seal,
    fence_replicas,
    link_tail,
    met_conflict,
    seal_tail,
)
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.requests import check_list_room, check_owner, stream_named

log = logging.getLogger(__name__)

PREPARED_MAX = 10_000  # streams with a prepared extent
_NO_NODES: frozenset[int] = frozenset()
ANSWER_MARGIN_S = 0.2  # before a caller's deadline: late enough to be useful, early enough to arrive


class Prepared(NamedTuple):
    extent: Extent
    link_before_s: float


class Allocator:
    """The flows of one term that keep more than the state: prepared extents and waiting callers."""

    def __init__(self, ctx: LeaderContext) -> None:
        self._ctx = ctx
        self._prepared: dict[int, Prepared] = {}  # by stream id
        self._prepared_ids: dict[int, float] = {}  # until when each prepared extent may be linked, by extent id
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}  # for confirmations, by extent id
        ctx.state.listen(EXTENT, self._on_extent)
        ctx.state.listen(STREAM, self._on_stream)
        ctx.is_prepared = self.is_prepared

    def is_prepared(self, extent_id: int) -> bool:
        """Whether an extent may still be linked.

        Once this is False for an extent without metadata, it is never linked.
        """
        return extent_id in self._ctx.linking or self._ctx.clock() < self._prepared_ids.get(extent_id, 0.0)

    # --- allocate --------------------------------------------------------------------------------------------

    async def alloc_extent(
        self, request: sm.StreamAllocExtentRequest, mutation: Mutation
    ) -> Encoded[sm.StreamAllocExtentReply]:
        """Seal a stream's tail and give the stream a new one, at its writer's request.

        A writer asks for this when the tail is full or one of its replicas fails. Repeating the request returns the
        same sealed length and the same new tail, even from another leader (protocol rule 16), so a writer that gets no
        reply sends it again.
        """
        ctx, owner = self._ctx, request.owner
        async with ctx.locks.hold(streams=[request.stream_id]):
            stream = stream_named(ctx.state, request.stream_id)
            check_owner(stream, owner)
            extent = self._listed_extent(stream, request.extent_id)
            if extent.seal is not None:
                return await self._answer_sealed(stream, extent, request, mutation)
            _check_call_order(stream, mutation)
            # A fence stores its token on the replicas, where a forged one would lock out the owner. Whether the lock is
            # still held is for the transaction to check (protocol rule 3).
            if not ctx.owners.seen(owner.lock, owner.token):
                await ctx.owners.verify(owner.lock, owner.token)
            growth_bytes = _quota_growth(stream, extent, request)
            with ctx.quotas.reserve(stream.labels, extents=1, size_bytes=growth_bytes):
                return await self._seal_and_link(stream, extent, request, mutation)

    def _listed_extent(self, stream: Stream, extent_id: int) -> Extent:
        if extent_id != stream.tail_id and extent_id not in stream.extent_ids:
            detail = "the stream does not list this extent: open the stream again"
            raise NotFound(kind="extent", name=str(extent_id), detail=detail)
        return self._ctx.state.extents[extent_id]

    async def _seal_and_link(
        self, stream: Stream, tail: Extent, request: sm.StreamAllocExtentRequest, mutation: Mutation
    ) -> Encoded[sm.StreamAllocExtentReply]:
        # Before the fence: if no successor can be made, the tail stays writable (protocol rule 17).
        successor, deadline_s = await self._next_extent(stream, request)
        order = SealOrder(
            owner=request.owner,
            acknowledged_end=request.acknowledged_end if request.HasField("acknowledged_end") else None,
            successor=successor,
            link_before_s=deadline_s,
            stream_call=functools.partial(
                mutation.stream_call, (stream.stream_id,), (tail.extent_id, successor.extent_id)
            ),
        )
        # Fences the tail, chooses its length, commits the seal together with the link, and only then orders the
        # replicas to seal (protocol rules 17 to 20).
        linked, sealed = await seal_tail(self._ctx, stream, tail, order)
        self._forget_prepared(stream.stream_id)
        state = self._ctx.state
        return alloc_reply(state, linked, sealed, state.extents[successor.extent_id])

    async def _answer_sealed(
        self, stream: Stream, sealed: Extent, request: sm.StreamAllocExtentRequest, mutation: Mutation
    ) -> Encoded[sm.StreamAllocExtentReply]:
        """Reply for an extent that is sealed already: by this request earlier, by an operator, or by the manager."""
        ctx, owner = self._ctx, request.owner
        tail = self._successor(stream, sealed, mutation)
        if tail is None and not stream.sealed:
            _check_call_order(stream, mutation)
            with ctx.quotas.reserve(stream.labels, extents=1, size_bytes=stream.policy.extent_bytes_max):
                if not ctx.owners.seen(owner.lock, owner.token):
                    await ctx.owners.verify(owner.lock, owner.token)
                successor, deadline_s = await self._next_extent(stream, request)
                order = SealOrder(
                    owner=owner,
                    link_before_s=deadline_s,
                    stream_call=functools.partial(
                        mutation.stream_call, (stream.stream_id,), (sealed.extent_id, successor.extent_id)
                    ),
                )
                stream = await link_tail(ctx, stream, successor, order)
                self._forget_prepared(stream.stream_id)
                tail = ctx.state.extents[successor.extent_id]
        else:
            await ctx.owners.verify(owner.lock, owner.token)
        return alloc_reply(ctx.state, stream, sealed, tail)

    def _successor(self, stream: Stream, sealed: Extent, mutation: Mutation) -> Extent | None:
        """The extent that was linked after `sealed` for its writer; None if there is none yet.

        An extent that a merge has put there belonged to another stream: it holds bytes that this writer never sent,
        and may be as long as the extent that the writer waits for.
        """
        after = stream.extent_ids[stream.extent_ids.index(sealed.extent_id) + 1 :]
        if mutation.replayed is not None and len(mutation.replayed.extent_ids) == 2:
            recorded = mutation.replayed.extent_ids[1]
            if recorded in after:
                return self._ctx.state.extents[recorded]
        if not after:
            return None
        successor = self._ctx.state.extents[after[0]]
        if successor.stream_id != stream.stream_id:
            detail = f"another stream was merged into stream {stream.stream_id} after this extent: open it again"
            raise NotFound(kind="extent", name=f"next to {sealed.extent_id}", detail=detail)
        return successor

    async def _next_extent(self, stream: Stream, request: sm.StreamAllocExtentRequest) -> Prepared:
        """The prepared extent if the writer names it and it can be linked, otherwise a new one."""
        ctx = self._ctx
        check_list_room(stream)
        avoided = request.avoid_node_ids
        avoid = frozenset(avoided) if avoided else _NO_NODES
        prepared_id = request.prepared_extent_id
        if prepared_id:
            prepared = self._linkable(stream.stream_id)
            if (
                prepared is not None
                and prepared.extent.extent_id == prepared_id
                and avoid.isdisjoint(prepared.extent.node_ids)
            ):
                return prepared
        deadline_s = link_before_s(ctx)
        return Prepared(await make_extent(ctx, stream.policy, stream_id=stream.stream_id, avoid=avoid), deadline_s)

    # --- prepare ---------------------------------------------------------------------------------------------

    async def prepare_extent(self, request: sm.PrepareExtentRequest, mutation: Mutation) -> sm.PrepareExtentReply:
        """Create the stream's next extent ahead of time.

        It is on its nodes and in memory; etcd gets it when it is linked.
        """
        ctx = self._ctx
        async with ctx.locks.hold(streams=[request.stream_id]):
            stream = stream_named(ctx.state, request.stream_id)
            check_owner(stream, request.owner)
            if stream.sealed:
                raise StreamSealed(stream_id=stream.stream_id)
            await ctx.owners.verify(request.owner.lock, request.owner.token)
            prepared = self._linkable(stream.stream_id)
            if prepared is None:
                deadline_s = link_before_s(ctx)
                extent = await make_extent(ctx, stream.policy, stream_id=stream.stream_id)
                prepared = Prepared(extent, deadline_s)
                self._remember_prepared(stream.stream_id, prepared)
            return sm.PrepareExtentReply(extent=extent_info(ctx.state, prepared.extent))

    def _linkable(self, stream_id: int) -> Prepared | None:
        """The extent prepared for a stream, if it is not linked, not too old, and on nodes that take new extents."""
        ctx = self._ctx
        prepared = self._prepared.get(stream_id)
        if prepared is None or prepared.extent.extent_id in ctx.state.extents:
            return None
        if ctx.clock() >= prepared.link_before_s:
            return None
        nodes = [ctx.state.nodes.get(node_id) for node_id in prepared.extent.node_ids]
        usable = all(node is not None and node.mode == sm.NODE_MODE_NORMAL and not node.dead for node in nodes)
        return prepared if usable else None

    def _remember_prepared(self, stream_id: int, prepared: Prepared) -> None:
        self._forget_prepared(stream_id)
        while len(self._prepared) >= PREPARED_MAX:  # the oldest becomes an orphan, which the collector deletes
            self._forget_prepared(next(iter(self._prepared)))
        self._prepared[stream_id] = prepared
        self._prepared_ids[prepared.extent.extent_id] = prepared.link_before_s

    def _forget_prepared(self, stream_id: int) -> None:
        prepared = self._prepared.pop(stream_id, None)
        if prepared is not None:
            self._prepared_ids.pop(prepared.extent.extent_id, None)

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
                raise InvalidArgument(what="extent_id", detail="the extent is open: there is no seal to confirm")
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
            detail = "not every replica has confirmed yet: call again"
            raise DeadlineExceeded(method="WaitConfirmed", detail=detail) from None
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and self._waiting.get(extent_id) is waiters:
                del self._waiting[extent_id]

    def _on_extent(self, old: Extent | None, new: Extent | None) -> None:
        changed = new or old
        assert changed is not None
        waiters = self._waiting.pop(changed.extent_id, None)
        if waiters is None:
            return
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _on_stream(self, old: Stream | None, new: Stream | None) -> None:
        changed = new or old
        assert changed is not None
        prepared = self._prepared.get(changed.stream_id)
        if prepared is not None and (new is None or new.tail_id == prepared.extent.extent_id):
            self._forget_prepared(changed.stream_id)  # once linked, it is no longer a stream's next extent

    # --- by operators ----------------------------------------------------------------------------------------

    async def accept_length(self, request: sm.AcceptLengthRequest, mutation: Mutation) -> sm.AcceptLengthReply:
        """Seal at a length that an operator names, where protocol rule 18 finds none. Bytes above it are lost."""
        ctx = self._ctx
        extent = ctx.state.extents.get(request.extent_id)
        if extent is None:
            raise NotFound(kind="extent", name=str(request.extent_id))
        if not request.HasField("length"):
            raise InvalidArgument(what="length", detail="required, even if it is 0")
        if extent.seal is not None:
            return self._accepted(extent, request)
        (stream_id,) = ctx.state.streams_of(extent.extent_id) or (0,)
        async with ctx.locks.hold(streams=[stream_id]):
            stream = stream_named(ctx.state, stream_id)
            extent = ctx.state.extents[request.extent_id]
            if extent.seal is None:  # not sealed while this waited for the lock
                answers = await fence_replicas(ctx, extent, None)
                check_accepted(answers, request.length, dead=ctx.state.dead_nodes(), extent_id=extent.extent_id)
                order = SealOrder(record=lambda changes: mutation.record(changes, extent_ids=[request.extent_id]))
                conflict = met_conflict(answers)
                _, extent = await commit_seal(
                    ctx, stream, extent, order, length=request.length, all_took_part=False, conflict=conflict
                )
                log.warning(
                    "length_accepted extent_id=%d length=%d by=%s reason=%s",
                    request.extent_id,
                    request.length,
                    mutation.principal,
                    request.reason,
                )
        return self._accepted(extent, request)

    def _accepted(self, extent: Extent, request: sm.AcceptLengthRequest) -> sm.AcceptLengthReply:
        assert extent.seal is not None, extent
        if extent.seal.length != request.length:
            detail = f"it is sealed at {extent.seal.length}, which is final"
            raise VersionConflict(what=f"extent {request.extent_id}", detail=detail)
        return sm.AcceptLengthReply(extent=extent_info(self._ctx.state, extent))


def _check_call_order(stream: Stream, mutation: Mutation) -> None:
    """Refuse a call id that the client has used before, even if its replay record is gone.

    A client's call ids ascend, and a client that names the tail has received the reply to the call that linked it. So
    an id that is not larger than that call's was used before, by a request whose record was lost with an earlier
    leader.
    """
    last = stream.linked_by
    if last is not None and last.client_id == mutation.client_id and mutation.call_id <= last.call_id:
        detail = f"{mutation.client_id:x}/{mutation.call_id} is older than the call that made this tail"
        raise InvalidArgument(what="call", detail=f"{detail}: a call id is used once")


def _quota_growth(stream: Stream, tail: Extent, request: sm.StreamAllocExtentRequest) -> int:
    """The growth of a quota's usage: the new extent counts with its limit, the sealed tail with its length."""
    kept = request.acknowledged_end if request.HasField("acknowledged_end") else tail.extent_bytes_max
    return stream.policy.extent_bytes_max - (tail.extent_bytes_max - min(kept, tail.extent_bytes_max))
