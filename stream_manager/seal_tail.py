"""Seal a stream's tail: fence its replicas, choose the length, decide it in one transaction (rules 16 to 20).

Invariants: the next extent, if there is to be one, exists on its nodes before the tail is fenced: a failure up to then
            leaves the tail writable (17);
            a length is decided once, by the transaction; replicas are told only afterwards (19, 20);
            nodes that are declared dead are not waited for, the others for a bounded time (T46);
            a fence that finds a newer owner's token ends the request: `NotOwner`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto.errors import LockedByOther, NeveError, NotLeader, NotOwner, VersionConflict
from neve.stream_manager.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.confirm import believed, heard_end, seal_behind
from neve.stream_manager.context import LeaderContext
from neve.stream_manager.core_seal import choose_length, usual_length
from neve.stream_manager.heard import Heard
from neve.stream_manager.locks import LockKind
from neve.stream_manager.records import Extent, ReplicaAt, Stream, StreamCall

log = logging.getLogger(__name__)

_new = tuple.__new__  # as in records.py


@dataclass(slots=True, kw_only=True)
class SealOrder:
    """Who seals, and what goes into the same transaction. Not frozen: it is made for every call."""

    owner: common_pb2.Owner | None = None  # None: the manager or an operator, who takes no owner's word
    acknowledged_end: int | None = None
    successor: Extent | None = None  # made on its nodes; None: the stream gets no new tail now
    link_before_s: float | None = None  # the successor, by the loop's clock: later it is never linked (24)
    seal_stream: bool = False
    conflict: bool = False  # an append met other bytes on a replica (7)
    unowned: bool = False  # only if nobody holds the stream's lock when it is decided
    record: Callable[[Changes], None] | None = None  # adds the replay record (26)
    stream_call: Callable[[], StreamCall | None] | None = None  # or makes it, to be a part of the stream's


def open_tail(ctx: LeaderContext, stream: Stream) -> Extent | None:
    """The last extent if it is open."""
    tail = ctx.state.extents[stream.tail_id] if stream.tail_id is not None else None
    return tail if tail is not None and tail.seal is None else None


class AskAll(Protocol):
    """`NodeCalls.fence_all` or `raise_all`."""

    def __call__(
        self, extent: Extent, timeouts_s: Mapping[ReplicaAt, float | None], *, token: int
    ) -> Awaitable[list[en.LengthAnswer | NeveError]]: ...


Answers = list[en.LengthAnswer | NeveError]


def whom_to_ask(ctx: LeaderContext, extent: Extent) -> dict[ReplicaAt, float | None]:
    """All replicas but those of dead nodes, with how long to wait for each; None for the usual time (17)."""
    replicas = extent.replicas
    dead = ctx.state.dead_nodes()
    if not dead and ctx.part.all_seem_up(replicas):
        return dict.fromkeys(replicas)
    suspect_s, seems_down = ctx.config.timeouts.suspect_call_s, ctx.part.seems_down
    return {replica: suspect_s if seems_down(replica[0]) else None for replica in replicas if replica[0] not in dead}


async def ask_replicas(
    ctx: LeaderContext, extent: Extent, ask: AskAll, *, token: int = 0, lock: str = ""
) -> dict[int, en.LengthAnswer | None]:
    """Ask all replicas side by side; None for a dead, silent or failing one. `NotOwner` if a newer token was met."""
    asked = whom_to_ask(ctx, extent)
    return _by_node(extent, asked, await ask(extent, asked, token=token), token=token, lock=lock)


def _by_node(
    extent: Extent, asked: Iterable[ReplicaAt], answered: Answers, *, token: int, lock: str
) -> dict[int, en.LengthAnswer | None]:
    answers: dict[int, en.LengthAnswer | None] = dict.fromkeys(extent.node_ids)
    for replica, answer in zip(asked, answered, strict=True):
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
    if owner is None:
        return await ask_replicas(ctx, extent, ctx.nodes.fence_all)
    return await ask_replicas(ctx, extent, ctx.nodes.fence_all, token=owner.token, lock=owner.lock)


class Decided(NamedTuple):
    """What the replicas' answers to the fence come to."""

    length: int
    all_took_part: bool
    conflict: bool  # one of them has met other bytes (7)


async def decide_length(
    ctx: LeaderContext, tail: Extent, owner: common_pb2.Owner | None, acknowledged_end: int | None
) -> Decided:
    """Fence the replicas and choose the length (17, 18)."""
    token, lock = (owner.token, owner.lock) if owner is not None else (0, "")
    asked = whom_to_ask(ctx, tail)
    answered = await ctx.nodes.fence_all(tail, asked, token=token)
    end = acknowledged_end if owner is not None else None
    return length_told(ctx, tail, asked, answered, end, token=token, lock=lock)


def length_told(
    ctx: LeaderContext,
    tail: Extent,
    asked: Iterable[ReplicaAt],
    answered: Answers,
    end: int | None,
    *,
    token: int,
    lock: str,
) -> Decided:
    """The same from what they have answered."""
    if len(answered) == len(tail.replicas):
        usual = usual_length(answered, end or 0)
        if usual is not None:
            return _new(Decided, (usual, True, False))
    answers = _by_node(tail, asked, answered, token=token, lock=lock)
    dead = ctx.state.dead_nodes()
    decision = choose_length(answers, acknowledged_end=end, dead=dead, extent_id=tail.extent_id)
    if decision.sealed_before:
        log.error("extent_sealed_before extent_id=%d nodes=%s", tail.extent_id, decision.sealed_before)
    return Decided(decision.length, decision.all_took_part, met_conflict(answers))


async def seal_tail(ctx: LeaderContext, stream: Stream, tail: Extent, order: SealOrder) -> tuple[Stream, Extent]:
    """The stream and the sealed extent, as committed. The caller holds the stream's lock; `tail` is open."""
    assert ctx.locks.held(LockKind.STREAM, stream.stream_id), stream
    assert stream.tail_id == tail.extent_id, stream
    length, all_took_part, conflict = await decide_length(ctx, tail, order.owner, order.acknowledged_end)
    order.conflict = order.conflict or conflict
    return await commit_seal(ctx, stream, tail, order, length=length, all_took_part=all_took_part)


def met_conflict(answers: Mapping[int, en.LengthAnswer | None]) -> bool:
    """Whether some replica says that an append met other bytes there (7)."""
    return True in [answer is not None and answer.conflict for answer in answers.values()]


async def commit_seal(
    ctx: LeaderContext, stream: Stream, tail: Extent, order: SealOrder, *, length: int, all_took_part: bool
) -> tuple[Stream, Extent]:
    """The transaction of rule 19, then the orders of rule 20 behind it."""
    heard = ctx.heard.take(stream.stream_id) if order.successor is not None else None
    try:
        all_took_part = await _commit_seal(ctx, stream, tail, order, heard, length=length, all_took_part=all_took_part)
    finally:
        if heard is not None:
            heard_end(ctx, heard)
    if order.owner is not None:
        ctx.owners.note_held(order.owner.lock, order.owner.token)
    # A writer's roll is in the audit log; what the manager or a new owner seals, or with replicas missing, is news.
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


async def _commit_seal(
    ctx: LeaderContext,
    stream: Stream,
    tail: Extent,
    order: SealOrder,
    heard: Heard | None,
    *,
    length: int,
    all_took_part: bool,
) -> bool:
    """The transaction; it takes along what was heard of the stream's other extents. Whether all took part after all."""
    leaving = leaving_window(ctx, stream, heard) if order.successor is not None else []
    async with ctx.locks.hold(extents=[tail.extent_id, *leaving]):
        if ctx.state.extents.get(tail.extent_id) != tail:
            # Only the stream's lock holder seals, and recovery does not touch open extents (8).
            raise VersionConflict(what=f"extents/{tail.extent_id:016x}")
        changes = ctx.changes()
        # Told by its writer, though the node itself may be silent, or restarted and know nothing of it any more (7).
        order.conflict = order.conflict or tail.extent_id in ctx.conflicts
        if order.conflict:
            # Equal lengths say nothing of equal bytes: what is not acknowledged waits until all have confirmed (16).
            log.error("extent_sealed_after_conflict extent_id=%d stream_id=%d", tail.extent_id, stream.stream_id)
            all_took_part = False
        changes.replace_extent(tail, tail.sealed_at(length, all_took_part=all_took_part, conflict=order.conflict))
        sealed_stream = stream.sealed or order.seal_stream
        if order.successor is not None:
            _link(ctx, changes, stream, order, order.successor, leaving, heard, sealed=sealed_stream)
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
    return all_took_part


async def link_tail(ctx: LeaderContext, stream: Stream, extent: Extent, order: SealOrder) -> Stream:
    """Give a stream whose last extent is sealed, or which has none, a new tail."""
    leaving = leaving_window(ctx, stream)
    async with ctx.locks.hold(extents=leaving):
        changes = ctx.changes()
        _link(ctx, changes, stream, order, extent, leaving, None, sealed=stream.sealed)
        if order.owner is not None:
            changes.require_owner(order.owner.lock, order.owner.token)
        if order.record is not None:
            order.record(changes)
        _check_age(ctx, order)
        await ctx.commit_link(changes, extent.extent_id)
    return ctx.state.streams[stream.stream_id]


def leaving_window(ctx: LeaderContext, stream: Stream, heard: Heard | None = None) -> list[int]:
    """Extents that get a key of their own when one more is linked: the young one, if there is one, that is too far from
    the end of the list then, and the one whose confirmation is taken along."""
    leaving: list[int] = []
    if len(stream.extent_ids) >= YOUNG_WINDOW:
        extent_id = stream.extent_ids[-YOUNG_WINDOW]
        if not ctx.state.extents[extent_id].mod_revision:
            leaving.append(extent_id)
    if heard is not None and heard.extent_id not in leaving:
        leaving.append(heard.extent_id)
    return leaving


def _link(
    ctx: LeaderContext,
    changes: Changes,
    stream: Stream,
    order: SealOrder,
    extent: Extent,
    leaving: Sequence[int],
    heard: Heard | None,
    *,
    sealed: bool,
) -> None:
    """Put the stream with one more extent. The locks of those in `leaving` are held."""
    for extent_id in leaving:
        old = ctx.state.extents.get(extent_id)
        new: Extent | None = None
        if heard is not None and extent_id == heard.extent_id:
            new = believed(ctx, old, heard.confirmed, heard.asked_at)
        if new is None and old is not None and old.young:  # it may have got a key while its lock was waited for
            new = old
        if new is not None:
            if new.mod_revision:
                changes.put_extent(old, new)
            else:
                changes.release_extent(new)
    changes.put_young(extent)
    new_stream = stream.changed((*stream.extent_ids, extent.extent_id), sealed=sealed)
    call = changes.stream_call = order.stream_call() if order.stream_call is not None else None
    changes.put_stream(stream, new_stream if call is None else new_stream.linked(call))


def _check_age(ctx: LeaderContext, order: SealOrder) -> None:
    """Fencing takes its time: what was young enough before may be too old now. Trying again makes another one."""
    if order.link_before_s is not None and ctx.clock() >= order.link_before_s:
        raise VersionConflict(what="the next extent", detail="it was made too long ago to be linked: try again")


async def seal_open_extent(
    ctx: LeaderContext, extent_id: int, *, unowned: bool = False, conflict: bool = False
) -> bool:
    """Seal a tail that has lost a replica, for redundancy's sake; whether it is sealed, or gone, when this returns.

    No new extent is linked: the owner's own request, or the next owner's opening, does that. With `unowned` nothing is
    done to a stream that somebody owns. An owner who comes meanwhile waits for the stream's lock here before it gets a
    tail; it may find this one fenced, and then has it sealed (15).
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
