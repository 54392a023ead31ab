"""Tell replicas the length at which etcd says they are sealed, and record who has confirmed it (rule 20).

Invariants: only what a transaction decided is told; a replica counts as confirmed only after a transaction says so;
            the first confirmations store the digest; one that differs is reported, never recorded;
            of first confirmations that came together, what most of them say counts; after a conflict none counts before
            all that can be reached were compared (7, core_digest.py);
            a replica that is slow does not hold up the record of the others;
            a replica whose bit was taken back is not confirmed by the answer to an order that was sent before;
            what waits to be recorded with its stream's next write (heard.py) is recorded soon, also without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from neve.proto import extent_node_pb2 as en
from neve.proto.errors import NeveError, ReplicaDamaged, ReplicaDeleted, ReplicaMissing, WrongReplica
from neve.stream_manager.context import LeaderContext
from neve.stream_manager.core_digest import choose_digest, compares_first
from neve.stream_manager.fan_out import Asked
from neve.stream_manager.heard import KEPT_S, Heard
from neve.stream_manager.records import Extent, ReplicaAt

log = logging.getLogger(__name__)

_new = tuple.__new__  # as in records.py

SEALS_IN_FLIGHT_MAX = 2_000
ABSENT = (ReplicaMissing, ReplicaDeleted, ReplicaDamaged, WrongReplica)  # answers: there is no whole replica here
_REPLY = en.SealExtentReply
_NOTHING = object()  # equal to no answer
GATHER_S = 0.05  # after the first confirmation, wait so long for others: one transaction in place of three


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """Of one round: what each replica that was asked said; None: an error or no answer."""

    all_confirmed: bool
    short: dict[int, int]  # node id → length of a replica that has less than the seal: it must be filled
    failed: dict[int, NeveError]


Begun = list[tuple[ReplicaAt, Asked[en.SealExtentReply]]]


async def seal_replicas(
    ctx: LeaderContext, extent_id: int, *, node_ids: Container[int] | None = None
) -> SealOutcome | None:
    """Ask every replica that has not confirmed (or those on `node_ids`), once. None: the extent is gone or open."""
    extent = ctx.state.extents.get(extent_id)
    if extent is None or extent.seal is None:
        return None
    asked_at = ctx.condemned.number
    replicas = _to_ask(ctx, extent, node_ids)
    asked = ctx.nodes.begin_seals(extent, replicas)
    return await _await_answers(ctx, extent, list(zip(replicas, asked, strict=True)), asked_at)


def _to_ask(ctx: LeaderContext, extent: Extent, node_ids: Container[int] | None = None) -> Sequence[ReplicaAt]:
    dead = ctx.state.dead_nodes()
    if not dead and not extent.confirmed and node_ids is None:
        return extent.replicas
    return [
        replica
        for replica in extent.replicas
        if replica[0] not in extent.confirmed
        and (replica[0] not in dead if node_ids is None else replica[0] in node_ids)
    ]


async def _await_answers(ctx: LeaderContext, extent: Extent, begun: Begun, asked_at: int) -> SealOutcome:
    """Record the answers as they come."""
    assert extent.seal is not None, extent
    extent_id = extent.extent_id
    outcome = SealOutcome(False, {}, {})
    answered = [(replica, one.value) for replica, one in begun if one.waits is None]
    asking = {one.waits: (replica, one) for replica, one in begun if one.waits is not None}
    try:
        while answered or asking:
            if asking and not answered:
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            if not all(waits.done() for waits in asking):
                # After a conflict all that can be reached are compared before one is believed (7).
                await asyncio.wait(asking, timeout=None if compares_first(extent) else GATHER_S)
            for waits in [waits for waits in asking if waits.done()]:
                replica, one = asking.pop(waits)
                answered.append((replica, await one.result()))
            confirmed = _sort(answered, extent.seal.length, outcome)
            answered.clear()
            if confirmed:
                await _record(ctx, extent_id, confirmed, asked_at, without=_without(outcome))
    finally:
        for _, one in asking.values():
            one.cancel()
    for node_id, error in outcome.failed.items():
        log.info("seal_not_confirmed extent_id=%d node_id=%d error=%s", extent_id, node_id, error)
    now = ctx.state.extents.get(extent_id)
    return SealOutcome(now is not None and now.all_confirmed, outcome.short, outcome.failed)


def _sort(
    answered: Iterable[tuple[ReplicaAt, en.SealExtentReply | NeveError]], length: int, outcome: SealOutcome
) -> dict[ReplicaAt, bytes]:
    """The digests of those that confirmed; what the others said is noted."""
    confirmed: dict[ReplicaAt, bytes] = {}
    for replica, answer in answered:
        if isinstance(answer, NeveError):
            outcome.failed[replica.node_id] = answer
            continue
        seal = answer.seal
        if answer.confirmed and seal.length == length:
            confirmed[replica] = seal.digest
        else:
            outcome.short[replica.node_id] = answer.length
    return confirmed


def _without(outcome: SealOutcome) -> frozenset[int]:
    """Nodes that have answered that they have no whole replica: they have no digest to tell."""
    absent = [node_id for node_id, error in outcome.failed.items() if isinstance(error, ABSENT)]
    return frozenset([*outcome.short, *absent])


async def _record(
    ctx: LeaderContext,
    extent_id: int,
    confirmed: dict[ReplicaAt, bytes],
    asked_at: int,
    *,
    without: frozenset[int] = frozenset(),
) -> None:
    async with ctx.locks.hold(extents=[extent_id]):
        old = ctx.state.extents.get(extent_id)
        new = believed(ctx, old, confirmed, asked_at, without=without)
        if new is not None:
            changes = ctx.changes()
            changes.put_extent(old, new)
            await ctx.commit(changes)


def believed(
    ctx: LeaderContext,
    old: Extent | None,
    confirmed: dict[ReplicaAt, bytes],
    asked_at: int,
    *,
    without: frozenset[int] = frozenset(),
) -> Extent | None:
    """The extent with the bits of those to believe, with its lock held; None: nothing new. `asked_at`: the last
    condemnation before the orders were sent; `without`: nodes that have nothing to tell."""
    if old is None or old.seal is None:
        return None
    extent_id, digest = old.extent_id, old.seal.digest
    if not digest and ctx.condemned.number == asked_at and tuple(confirmed) == old.replicas and not old.confirmed:
        digests = list(confirmed.values())
        if digests.count(digests[0]) == len(digests):  # mostly: all have confirmed the same, and nothing else is new
            return old.confirmed_by_all(digests[0])
    if not digest:
        told = {replica[0]: found for replica, found in confirmed.items()}
        chosen = choose_digest(told, old.node_ids, silent=ctx.state.dead_nodes() | without, conflict=old.conflict)
        if chosen is None:
            log.error("seal_digests_not_comparable extent_id=%d told_by=%s", extent_id, list(told))
            return None
        digest = chosen
    good: list[int] = []
    for replica, found in confirmed.items():
        if replica not in old.replicas or replica.node_id in old.confirmed:
            continue  # replaced meanwhile, or confirmed by somebody else's asking
        if ctx.condemned.since(asked_at, extent_id, replica.node_id):
            log.info("seal_confirmed_too_early extent_id=%d node_id=%d", extent_id, replica.node_id)
            continue  # found bad since it was asked: the reconciler asks again
        if found == digest:
            good.append(replica.node_id)
        else:
            log.error("seal_digest_differs extent_id=%d node_id=%d", extent_id, replica.node_id)
            ctx.part.note_bad_replica(extent_id, replica.node_id, "it confirmed the seal with another digest")
    return old.with_confirmed(good, digest) if good else None


# --- the first round, behind the answer to whoever sealed --------------------------------------------------------


def seal_behind(ctx: LeaderContext, extent_id: int) -> None:
    """Start the first round; whoever has not confirmed by its end is the reconciler's."""
    extent = ctx.state.extents.get(extent_id)
    if extent is None or extent.seal is None:
        return
    if ctx.seals_in_flight >= SEALS_IN_FLIGHT_MAX:
        ctx.part.note_unconfirmed(extent_id)  # nodes hang: the reconciler asks when they answer again
        return
    asked_at = ctx.condemned.number
    replicas = _to_ask(ctx, extent)
    asked = ctx.nodes.begin_seals(extent, replicas)
    digests = _confirmed_at_once(extent, replicas, asked) if extent.all_took_part else None
    if digests is None:  # or its writer waits for what is not acknowledged (16)
        ctx.seals_in_flight += 1
        ctx.spawn(_first_round(ctx, extent, list(zip(replicas, asked, strict=True)), asked_at), name="seal")
        return
    table = ctx.heard
    heard = _new(Heard, (extent_id, extent.replicas, digests, asked_at, ctx.clock()))
    left_over = table.add(extent.stream_id, heard)
    if left_over is not None:
        _record_behind(ctx, left_over)
    if not table.recording:
        table.recording = True
        ctx.spawn(_record_heard(ctx), name="confirmations")


async def _first_round(ctx: LeaderContext, extent: Extent, begun: Begun, asked_at: int) -> None:
    outcome = None
    try:
        outcome = await _await_answers(ctx, extent, begun, asked_at)
    except NeveError as error:
        log.warning("seal_round_failed extent_id=%d error=%s", extent.extent_id, error)
    finally:
        ctx.seals_in_flight -= 1
    if outcome is None or not outcome.all_confirmed:
        ctx.part.note_unconfirmed(extent.extent_id)


def _confirmed_at_once(
    extent: Extent, replicas: Sequence[ReplicaAt], asked: Sequence[Asked[en.SealExtentReply]]
) -> list[bytes] | None:
    """The digests, if every replica has confirmed already: the shortest way, without a task."""
    assert extent.seal is not None, extent
    if len(replicas) != len(extent.replicas):
        return None
    length = extent.seal.length
    digests: list[bytes] = []
    seen: object = _NOTHING
    digest = b""
    for one in asked:
        if one.waits is not None:
            return None
        answer = one.value
        if answer != seen:  # mostly they say the same
            if type(answer) is not _REPLY or not answer.confirmed:
                return None
            seal = answer.seal
            if seal.length != length:
                return None
            seen, digest = answer, seal.digest
        digests.append(digest)
    return digests


def agreed_digest(ctx: LeaderContext, extent: Extent, heard: Heard) -> bytes | None:
    """What all its replicas have confirmed, if nothing else is new about it; None: it is `believed`'s to say."""
    seal, digests = extent.seal, heard.digests
    if seal is None or seal.digest or extent.confirmed or heard.replicas is not extent.replicas:
        return None
    if ctx.condemned.number != heard.asked_at or digests.count(digests[0]) != len(digests):
        return None
    return digests[0]


# --- what was heard and waits for its stream's next write -------------------------------------------------------


def heard_end(ctx: LeaderContext, heard: Heard) -> None:
    """The transaction that took it along has come to its end."""
    now = ctx.state.extents.get(heard.extent_id)
    if now is not None and not now.all_confirmed:
        ctx.part.note_unconfirmed(heard.extent_id)


def record_heard(ctx: LeaderContext, extent: Extent) -> None:
    """Somebody waits for the confirmation of this extent: if it was heard, record it now."""
    if ctx.heard.has(extent):
        heard = ctx.heard.take(extent.stream_id)
        assert heard is not None, extent
        _record_behind(ctx, heard)


async def _record_heard(ctx: LeaderContext) -> None:
    """Record what no write of its stream has taken along in time."""
    try:
        while len(ctx.heard):
            await asyncio.sleep(KEPT_S)
            for heard in ctx.heard.take_older(ctx.clock() - KEPT_S):
                _record_behind(ctx, heard)
    finally:
        ctx.heard.recording = False


def _record_behind(ctx: LeaderContext, heard: Heard) -> None:
    ctx.tasks.begin(_record_one(ctx, heard))


async def _record_one(ctx: LeaderContext, heard: Heard) -> None:
    try:
        await _record(ctx, heard.extent_id, heard.confirmed, heard.asked_at)
    except NeveError as error:
        log.warning("seal_round_failed extent_id=%d error=%s", heard.extent_id, error)
    except Exception:
        log.exception("confirmation_failed extent_id=%d", heard.extent_id)
    finally:
        heard_end(ctx, heard)
