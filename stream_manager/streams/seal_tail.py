"""Seal a stream's tail: fence its replicas, choose the length, commit the seal, order the replicas to seal.

This is the only path by which an extent is sealed (protocol rules 16 to 20). A writer's roll, a new owner's opening,
the seal, split or merge of a stream, and the manager's own seal of a tail that has lost a replica all use `seal_tail`.

Invariants: the next extent, if there is to be one, exists on its nodes before the tail is fenced: a failure until then
            leaves the tail writable (protocol rule 17);
            the transaction decides the length once; replicas get it only afterwards (protocol rules 19 and 20);
            the manager does not wait for nodes that are declared dead, and for others only a bounded time (scenario
            T46);
            if a replica has seen a newer owner's token, the request ends with `NotOwner`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto.errors import LockedByOther, NeveError, NotLeader, NotOwner, VersionConflict
from neve.stream_manager.metadata.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.metadata.records import Extent, ReplicaAt, Stream, StreamCall
from neve.stream_manager.streams.confirm import seal_behind
from neve.stream_manager.streams.core.seal import choose_length
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.locks import LockKind

log = logging.getLogger(__name__)

SUSPECT_CALL_S = 1.0  # timeout of a fence or a raise at a node that seems down


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOrder:
    """Who seals, and what is committed in the same transaction."""

    owner: common_pb2.Owner | None = None  # None: the manager or an operator, who know no acknowledged end
    acknowledged_end: int | None = None  # by the owner; None: not known
    successor: Extent | None = None  # already created on its nodes; None: the stream gets no new tail now
    link_before_s: float | None = None  # by the loop's clock; a successor is never linked after this (protocol rule 24)
    seal_stream: bool = False
    conflict: bool = False  # an append met different bytes on a replica (protocol rule 7)
    unowned: bool = False  # seal only if the stream's lock is free at the transaction
    record: Callable[[Changes], None] | None = None  # adds the replay record (protocol rule 26)
    stream_call: Callable[[], StreamCall | None] | None = None  # or makes it, as part of the stream's record


def open_tail(ctx: LeaderContext, stream: Stream) -> Extent | None:
    """The stream's last extent, if it is open."""
    tail = ctx.state.extents[stream.tail_id] if stream.tail_id is not None else None
    return tail if tail is not None and tail.seal is None else None


class AskAll(Protocol):
    """The type of `NodeCalls.fence_all` and `raise_all`."""

    def __call__(
        self, extent: Extent, timeouts_s: Mapping[ReplicaAt, float | None], *, token: int
    ) -> Awaitable[list[en.LengthAnswer | NeveError]]: ...


async def ask_replicas(
    ctx: LeaderContext, extent: Extent, ask: AskAll, owner: common_pb2.Owner | None
) -> dict[int, en.LengthAnswer | None]:
    """Ask all replicas concurrently, and return their replies by node id; None for a dead, silent or failing node.

    Raises `NotOwner` if a replica has seen a newer owner's token.
    """
    token, lock = (owner.token, owner.lock) if owner is not None else (0, "")
    dead, registry = ctx.state.dead_nodes(), ctx.cluster_nodes.registry
    timeouts_s = {  # None: the usual timeout (protocol rule 17)
        replica: SUSPECT_CALL_S if registry.seems_down(replica.node_id) else None
        for replica in extent.replicas
        if replica.node_id not in dead
    }
    answers: dict[int, en.LengthAnswer | None] = dict.fromkeys(extent.node_ids)
    for replica, answer in zip(timeouts_s, await ask(extent, timeouts_s, token=token), strict=True):
        if not isinstance(answer, NeveError):
            answers[replica.node_id] = answer
            continue
        if isinstance(answer, LockedByOther):
            raise NotOwner(lock=lock, token=token, detail=f"a replica has seen token {answer.token_seen}")
        if isinstance(answer, NotLeader):
            raise NotLeader(leader=answer.leader, detail=answer.detail)
        log.warning("length_unknown extent_id=%d node_id=%d error=%s", extent.extent_id, replica.node_id, answer)
    return answers


async def fence_replicas(
    ctx: LeaderContext, extent: Extent, owner: common_pb2.Owner | None
) -> dict[int, en.LengthAnswer | None]:
    return await ask_replicas(ctx, extent, ctx.nodes.fence_all, owner)


async def seal_tail(ctx: LeaderContext, stream: Stream, tail: Extent, order: SealOrder) -> tuple[Stream, Extent]:
    """Seal the open tail of a stream. Returns the stream and the sealed extent, as committed.

    The caller holds the stream's lock.
    """
    assert ctx.locks.held(LockKind.STREAM, stream.stream_id), stream
    assert stream.tail_id == tail.extent_id, stream
    answers = await fence_replicas(ctx, tail, order.owner)
    decision = choose_length(
        answers,
        acknowledged_end=order.acknowledged_end if order.owner is not None else None,
        dead=ctx.state.dead_nodes(),
        extent_id=tail.extent_id,
    )
    if decision.sealed_before:
        log.error("extent_sealed_before extent_id=%d nodes=%s", tail.extent_id, decision.sealed_before)
    return await commit_seal(
        ctx,
        stream,
        tail,
        order,
        length=decision.length,
        all_took_part=decision.all_took_part,
        conflict=met_conflict(answers),
    )


def met_conflict(answers: Mapping[int, en.LengthAnswer | None]) -> bool:
    """Whether a replica reports that an append met different bytes there (protocol rule 7)."""
    return any(answer is not None and answer.conflict for answer in answers.values())


async def commit_seal(
    ctx: LeaderContext,
    stream: Stream,
    tail: Extent,
    order: SealOrder,
    *,
    length: int,
    all_took_part: bool,
    conflict: bool,
) -> tuple[Stream, Extent]:
    """Commit the transaction of protocol rule 19, then send the orders of protocol rule 20 in the background."""
    leaving = leaving_window(ctx, stream) if order.successor is not None else []
    async with ctx.locks.hold(extents=[tail.extent_id, *leaving]):
        if ctx.state.extents.get(tail.extent_id) != tail:
            # Only the stream's lock holder seals, and recovery does not touch open extents (protocol rule 8).
            raise VersionConflict(what=f"extents/{tail.extent_id:016x}")
        changes = ctx.changes()
        # `ctx.conflicts` has the writers' reports: the node itself may be silent, or have restarted and lost its own.
        conflict = conflict or order.conflict or tail.extent_id in ctx.conflicts
        if conflict:
            # Equal lengths do not prove equal bytes: unacknowledged bytes wait until all replicas have confirmed.
            log.error("extent_sealed_after_conflict extent_id=%d stream_id=%d", tail.extent_id, stream.stream_id)
            all_took_part = False
        changes.replace_extent(tail, tail.sealed_at(length, all_took_part=all_took_part, conflict=conflict))
        sealed_stream = stream.sealed or order.seal_stream
        if order.successor is not None:
            _link(ctx, changes, stream, order, order.successor, leaving, sealed=sealed_stream)
        else:
            changes.put_stream(stream, stream.changed(stream.extent_ids, sealed=sealed_stream))
        if order.owner is not None:
            changes.require_owner(order.owner.lock, order.owner.token)
        elif order.unowned:
            changes.require_unowned(stream.lock)
        if order.record is not None:
            order.record(changes)
        _check_age(ctx, order)
        if order.successor is not None:
            await ctx.commit_link(changes, order.successor.extent_id)
        else:
            await ctx.commit(changes)
    if order.owner is not None:
        ctx.owners.note_held(order.owner.lock, order.owner.token)
    # The audit log has a writer's roll. Only a seal by the manager or a new owner, or with replicas missing, is
    # logged.
    log.log(
        logging.DEBUG if order.acknowledged_end is not None and all_took_part else logging.INFO,
        "extent_sealed extent_id=%d length=%d all_took_part=%s stream_id=%d",
        tail.extent_id,
        length,
        all_took_part,
        stream.stream_id,
    )
    seal_behind(ctx, tail.extent_id)
    return ctx.state.streams[stream.stream_id], ctx.state.extents[tail.extent_id]


async def link_tail(ctx: LeaderContext, stream: Stream, extent: Extent, order: SealOrder) -> Stream:
    """Link a new tail to a stream whose last extent is sealed, or which has none."""
    leaving = leaving_window(ctx, stream)
    async with ctx.locks.hold(extents=leaving):
        changes = ctx.changes()
        _link(ctx, changes, stream, order, extent, leaving, sealed=stream.sealed)
        if order.owner is not None:
            changes.require_owner(order.owner.lock, order.owner.token)
        if order.record is not None:
            order.record(changes)
        _check_age(ctx, order)
        await ctx.commit_link(changes, extent.extent_id)
    return ctx.state.streams[stream.stream_id]


def leaving_window(ctx: LeaderContext, stream: Stream) -> list[int]:
    """The young extent, if any, that needs a key of its own when one more extent is linked.

    It would be too far from the end of the list (`changes.YOUNG_WINDOW`).
    """
    if len(stream.extent_ids) < YOUNG_WINDOW:
        return []
    extent_id = stream.extent_ids[-YOUNG_WINDOW]
    return [extent_id] if ctx.state.extents[extent_id].young else []


def _link(
    ctx: LeaderContext,
    changes: Changes,
    stream: Stream,
    order: SealOrder,
    extent: Extent,
    leaving: Sequence[int],
    *,
    sealed: bool,
) -> None:
    """Put the stream with one more extent. The caller holds the locks of the extents in `leaving`."""
    for extent_id in leaving:
        old = ctx.state.extents.get(extent_id)
        if old is not None and old.young:  # it may have got a key while this waited for its lock
            changes.release_extent(old)
    changes.put_young(extent)
    call = changes.stream_call = order.stream_call() if order.stream_call is not None else None
    extent_ids = (*stream.extent_ids, extent.extent_id)
    changes.put_stream(stream, stream.changed(extent_ids, sealed=sealed, linked_by=call))


def _check_age(ctx: LeaderContext, order: SealOrder) -> None:
    """Refuse a successor that became too old while the tail was fenced. A repeated request makes another one."""
    if order.link_before_s is not None and ctx.clock() >= order.link_before_s:
        raise VersionConflict(what="the next extent", detail="it was created too long ago to be linked: try again")


async def seal_open_extent(
    ctx: LeaderContext, extent_id: int, *, unowned: bool = False, conflict: bool = False
) -> bool:
    """Seal a tail that has lost a replica, to restore redundancy. Returns True if it is sealed or gone.

    This links no new extent: the owner's own request, or the next owner's opening, does that. With `unowned`, a
    stream that has an owner is left alone. A new owner meanwhile waits for the stream's lock before it gets a tail;
    if it then finds this tail fenced, it has it sealed (protocol rule 15).
    """
    for stream_id in ctx.state.streams_of(extent_id):
        async with ctx.locks.hold(streams=[stream_id]):
            stream, extent = ctx.state.streams.get(stream_id), ctx.state.extents.get(extent_id)
            if stream is None or extent is None or extent.seal is not None or stream.tail_id != extent_id:
                return True
            if unowned and stream.lock not in await ctx.owners.unheld([stream.lock]):
                return False
            await seal_tail(ctx, stream, extent, SealOrder(unowned=unowned, conflict=conflict))
    return True
