"""Seal orders: order replicas to seal at the length in etcd, and record their confirmations (protocol rule 20).

Invariants: an order is sent only for a committed seal; a replica counts as confirmed only after a transaction says so;
            the first confirmations store the digest; a different digest is reported, never recorded;
            of first confirmations that arrive together, the majority's digest counts; after a conflict none counts
            until all reachable replicas were compared (protocol rule 7, core/digest.py);
            a slow replica does not delay the record of the others;
            a reply to an order from before a confirmation was revoked does not restore it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass

from neve.proto import extent_node_pb2 as en
from neve.proto.errors import NeveError, ReplicaDamaged, ReplicaDeleted, ReplicaMissing, WrongReplica
from neve.stream_manager.metadata.records import Extent, ReplicaAt
from neve.stream_manager.streams.core.digest import choose_digest, compares_first
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.fan_out import answer_of

log = logging.getLogger(__name__)

SEALS_IN_FLIGHT_MAX = 2_000
# Replies that say that the node has no whole replica
ABSENT = (ReplicaMissing, ReplicaDeleted, ReplicaDamaged, WrongReplica)
GATHER_S = 0.05  # how long the first confirmation waits for others: one transaction instead of three


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """The results of one round of seal orders, by node."""

    all_confirmed: bool
    short: dict[int, int]  # node id → length of a replica that is shorter than the seal and must be filled
    failed: dict[int, NeveError]


async def seal_replicas(
    ctx: LeaderContext, extent_id: int, *, node_ids: Container[int] | None = None
) -> SealOutcome | None:
    """Order every replica that has not confirmed, or those on `node_ids`, to seal, and record the confirmations.

    Each order is sent once, and confirmations are recorded as they arrive. Returns None if the extent is gone or
    open.
    """
    extent = ctx.state.extents.get(extent_id)
    if extent is None or extent.seal is None:
        return None
    asked_at = ctx.revoked.number
    replicas = _unconfirmed(ctx, extent, node_ids)
    orders = list(zip(replicas, ctx.nodes.begin_seals(extent, replicas), strict=True))
    outcome = SealOutcome(False, {}, {})
    answered = [(replica, answer_of(order)) for replica, order in orders if order.ended]
    asking = {order.when_ended(): (replica, order) for replica, order in orders if not order.ended}
    try:
        while answered or asking:
            if asking and not answered:
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            if not all(waits.done() for waits in asking):
                # After a conflict all reachable replicas are compared before one is trusted (protocol rule 7).
                await asyncio.wait(asking, timeout=None if compares_first(extent) else GATHER_S)
            for waits in [waits for waits in asking if waits.done()]:
                replica, order = asking.pop(waits)
                answered.append((replica, answer_of(order)))
            confirmed = _sort_replies(answered, extent.seal.length, outcome)
            answered.clear()
            if confirmed:
                await _record(ctx, extent_id, confirmed, asked_at, without_replica=_without_replica(outcome))
    finally:
        for _, order in asking.values():
            order.cancel()
    for node_id, error in outcome.failed.items():
        log.info("seal_not_confirmed extent_id=%d node_id=%d error=%s", extent_id, node_id, error)
    now = ctx.state.extents.get(extent_id)
    return SealOutcome(now is not None and now.all_confirmed, outcome.short, outcome.failed)


def _unconfirmed(ctx: LeaderContext, extent: Extent, node_ids: Container[int] | None) -> list[ReplicaAt]:
    dead = ctx.state.dead_nodes()
    return [
        replica
        for replica in extent.replicas
        if replica.node_id not in extent.confirmed
        and (replica.node_id not in dead if node_ids is None else replica.node_id in node_ids)
    ]


def _sort_replies(
    answered: Iterable[tuple[ReplicaAt, en.SealExtentReply | NeveError]], length: int, outcome: SealOutcome
) -> dict[ReplicaAt, bytes]:
    """Return the digests of the replicas that confirmed, and note the other replies in `outcome`."""
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


def _without_replica(outcome: SealOutcome) -> frozenset[int]:
    """Nodes that have replied that they have no whole replica, and so no digest."""
    absent = [node_id for node_id, error in outcome.failed.items() if isinstance(error, ABSENT)]
    return frozenset([*outcome.short, *absent])


async def _record(
    ctx: LeaderContext,
    extent_id: int,
    confirmed: dict[ReplicaAt, bytes],
    asked_at: int,
    *,
    without_replica: frozenset[int],
) -> None:
    async with ctx.locks.hold(extents=[extent_id]):
        old = ctx.state.extents.get(extent_id)
        new = _with_trusted(ctx, old, confirmed, asked_at, without_replica=without_replica)
        if new is not None:
            changes = ctx.changes()
            changes.put_extent(old, new)
            await ctx.commit(changes)


def _with_trusted(
    ctx: LeaderContext,
    old: Extent | None,
    confirmed: dict[ReplicaAt, bytes],
    asked_at: int,
    *,
    without_replica: frozenset[int],
) -> Extent | None:
    """The extent with the new confirmations that can be trusted; None if there are none.

    The caller holds the extent's lock. `asked_at`: the latest revocation when the orders were sent. `without_replica`:
    nodes that have no whole replica.
    """
    if old is None or old.seal is None:
        return None
    extent_id, digest = old.extent_id, old.seal.digest
    if not digest:
        digests = {replica.node_id: found for replica, found in confirmed.items()}
        chosen = choose_digest(
            digests, old.node_ids, without_digest=ctx.state.dead_nodes() | without_replica, conflict=old.conflict
        )
        if chosen is None:
            log.error("seal_digests_not_comparable extent_id=%d told_by=%s", extent_id, list(digests))
            return None
        digest = chosen
    good: list[int] = []
    for replica, found in confirmed.items():
        if replica not in old.replicas or replica.node_id in old.confirmed:
            continue  # replaced meanwhile, or confirmed by another round
        if ctx.revoked.since(asked_at, extent_id, replica.node_id):
            log.info("seal_confirmed_too_early extent_id=%d node_id=%d", extent_id, replica.node_id)
            continue  # found bad since the order was sent: the reconciler asks again
        if found == digest:
            good.append(replica.node_id)
        else:
            log.error("seal_digest_differs extent_id=%d node_id=%d", extent_id, replica.node_id)
            ctx.cluster_nodes.bad.suspect(extent_id, replica.node_id, "it confirmed the seal with another digest")
    return old.with_confirmed(good, digest) if good else None


# --- the first round, after the reply to the request that sealed ----------------------------------------------------


def seal_behind(ctx: LeaderContext, extent_id: int) -> None:
    """Start the first round of seal orders. The reconciler asks replicas that have not confirmed by its end."""
    if ctx.seals_in_flight >= SEALS_IN_FLIGHT_MAX:
        ctx.cluster_nodes.reconciler.note(extent_id)  # nodes hang: the reconciler asks them again later
        return
    ctx.seals_in_flight += 1
    ctx.spawn(_first_round(ctx, extent_id), name="seal")


async def _first_round(ctx: LeaderContext, extent_id: int) -> None:
    confirmed = False
    try:
        outcome = await seal_replicas(ctx, extent_id)
        confirmed = outcome is None or outcome.all_confirmed
    except NeveError as error:
        log.warning("seal_round_failed extent_id=%d error=%s", extent_id, error)
    finally:
        ctx.seals_in_flight -= 1
        if not confirmed:
            ctx.cluster_nodes.reconciler.note(extent_id)
