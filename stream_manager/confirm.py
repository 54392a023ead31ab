"""Tell replicas the length at which etcd says they are sealed, and record who has confirmed it (rule 20).

Invariants: only what a transaction decided is told; a replica counts as confirmed only after a transaction says so;
            the first confirmations store the digest; one that differs is reported, never recorded;
            of first confirmations that came together, what most of them say counts: replicas that diverged are compared
            before any of them is believed (7);
            a replica that is slow does not hold up the record of the others;
            a replica whose bit was taken back is not confirmed by the answer to an order that was sent before.
Neighbours: allocate.py starts it once behind every seal; reconcile.py repeats it until all have confirmed, and fills
            those that are too short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from dataclasses import dataclass

from neve.proto import extent_node_pb2 as en
from neve.proto.errors import NeveError
from neve.stream_manager.context import LeaderContext
from neve.stream_manager.fan_out import Started
from neve.stream_manager.records import Extent, ReplicaAt

log = logging.getLogger(__name__)

SEALS_IN_FLIGHT_MAX = 2_000
GATHER_S = 0.05  # after the first confirmation, wait so long for others: one transaction in place of three


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """Of one round: what each replica that was asked said; None: an error or no answer."""

    all_confirmed: bool
    short: dict[int, int]  # node id → length of a replica that has less than the seal: it must be filled
    failed: dict[int, NeveError]


async def seal_replicas(
    ctx: LeaderContext, extent_id: int, *, node_ids: Container[int] | None = None
) -> SealOutcome | None:
    """Ask every replica that has not confirmed (or those on `node_ids`), once. None: the extent is gone or open."""
    extent = ctx.state.extents.get(extent_id)
    if extent is None or extent.seal is None:
        return None
    asked_at = ctx.condemned.number
    dead = ctx.state.dead_nodes()
    targets = [
        replica
        for replica in extent.replicas
        if replica.node_id not in extent.confirmed
        and (replica.node_id not in dead if node_ids is None else replica.node_id in node_ids)
    ]
    outcome = SealOutcome(False, {}, {})
    asking: dict[asyncio.Task[en.SealExtentReply | NeveError], ReplicaAt] = {}
    answered: list[tuple[ReplicaAt, en.SealExtentReply | NeveError]] = []
    for replica in targets:
        started = Started(_ask(ctx, extent, replica))
        if started.task is None:
            answered.append((replica, started.value))
        else:
            asking[started.task] = replica
    try:
        while answered or asking:
            if asking and not answered:
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            if not all(task.done() for task in asking):
                await asyncio.wait(asking, timeout=GATHER_S)
            answered += [(asking.pop(task), task.result()) for task in [*asking] if task.done()]
            confirmed = _sort(answered, extent.seal.length, outcome)
            answered.clear()
            if confirmed:
                await _record(ctx, extent_id, confirmed, asked_at)
    finally:
        for task in asking:
            task.cancel()
    for node_id, error in outcome.failed.items():
        log.info("seal_not_confirmed extent_id=%d node_id=%d error=%s", extent_id, node_id, error)
    now = ctx.state.extents.get(extent_id)
    return SealOutcome(now is not None and now.all_confirmed, outcome.short, outcome.failed)


def _sort(
    answered: list[tuple[ReplicaAt, en.SealExtentReply | NeveError]], length: int, outcome: SealOutcome
) -> dict[ReplicaAt, bytes]:
    """The digests of those that confirmed; what the others said is noted."""
    confirmed: dict[ReplicaAt, bytes] = {}
    for replica, answer in answered:
        if isinstance(answer, NeveError):
            outcome.failed[replica.node_id] = answer
        elif answer.confirmed and answer.seal.length == length:
            confirmed[replica] = answer.seal.digest
        else:
            outcome.short[replica.node_id] = answer.length
    return confirmed


async def _ask(ctx: LeaderContext, extent: Extent, replica: ReplicaAt) -> en.SealExtentReply | NeveError:
    try:
        return await ctx.nodes.seal(extent, replica)
    except NeveError as error:
        return error


async def _record(ctx: LeaderContext, extent_id: int, confirmed: dict[ReplicaAt, bytes], asked_at: int) -> None:
    """`asked_at`: the last condemnation before the orders were sent."""
    async with ctx.locks.hold(extents=[extent_id]):
        old = ctx.state.extents.get(extent_id)
        if old is None or old.seal is None:
            return
        digest = old.seal.digest or _most_common(list(confirmed.values()))
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
        if good:
            changes = ctx.changes()
            changes.put_extent(old, old.with_confirmed(good, digest))
            await ctx.commit(changes)


def _most_common(digests: list[bytes]) -> bytes:
    """Of as many on both sides the one that came first (20)."""
    return max(dict.fromkeys(digests), key=digests.count)


def seal_behind(ctx: LeaderContext, extent_id: int) -> None:
    """Start the first round behind the answer; whoever has not confirmed by its end is the reconciler's."""

    async def first_round() -> None:
        outcome = None
        try:
            outcome = await seal_replicas(ctx, extent_id)
        except NeveError as error:
            log.warning("seal_round_failed extent_id=%d error=%s", extent_id, error)
        finally:
            ctx.seals_in_flight -= 1
        if outcome is None or not outcome.all_confirmed:
            ctx.part.note_unconfirmed(extent_id)

    if ctx.seals_in_flight >= SEALS_IN_FLIGHT_MAX:
        ctx.part.note_unconfirmed(extent_id)  # nodes hang: the reconciler asks when they answer again
        return
    ctx.seals_in_flight += 1
    ctx.spawn(first_round(), name="seal")
