"""Deletes replicas that are not needed any more, each after a transaction that allows it (protocol rule 24).

    removed from metadata          the stream's own transaction deleted `extents/{id}`; its replicas are then deleted
    orphan: not in metadata        older than the grace period, seen for half of it by this manager, without a task; a
                                   transaction compares the leader key and the absence of `extents/{id}`
    extra: in metadata, but not    seen for its grace period, while every listed replica is confirmed and its node is
    listed on this node            alive, checked again right before the order: so it is never the only good replica in
                                   reach (scenario T33); a transaction compares the extent
    proposed (DeleteExtents)       no stream lists it, it has the proposed eversion and is older than the grace period

Invariants: no order without its transaction, and none because of a partial report;
            an order names node, disk and incarnation, and carries an eversion: it cannot hit a file created later;
            the extent's eversion is raised to a deleted extra replica's: otherwise the tombstone would refuse a later
            copy to that node;
            a lost order is given again after the node's next report;
            nodes take turns, those that seem down are skipped, and failures are tried again after a growing delay: a
            node in trouble neither delays the others' deletions nor costs transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from neve.meta.core_retry import Delays, Retry
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, NotLeader, VersionConflict
from neve.stream_manager.metadata.record_kinds import TASK
from neve.stream_manager.metadata.records import Extent, ReplicaAt
from neve.stream_manager.nodes.core.recovery import Trouble
from neve.stream_manager.nodes.replica_reports import Found, Report
from neve.stream_manager.term.context import LeaderContext, Mutation

log = logging.getLogger(__name__)

ORDERS_MAX = 100_000
DELETES_MAX = 1000  # per pass
AT_A_TIME = 32
PROPOSED_MAX = 1_000
RETRY_DELAY_S_MAX = 600.0

Order = tuple[int, ReplicaAt, int]  # extent id, replica, eversion


@dataclass(slots=True)
class Odd:
    """When an unlisted replica was seen first, and its attempts to delete it."""

    since_s: float
    retry: Retry = field(default_factory=Retry)


class Collector:
    def __init__(self, ctx: LeaderContext, trouble: Callable[[float], Trouble]) -> None:
        self._ctx = ctx
        self._config = ctx.config.collecting
        self._trouble = trouble
        # The oldest are dropped: they will be reported as orphans
        self._orders: deque[Order] = deque(maxlen=ORDERS_MAX)
        self._odd: dict[int, dict[Found, Odd]] = {}  # node id → its unlisted replicas

    # --- reports ---------------------------------------------------------------------------------------------

    def note_removed(self, extents: Iterable[Extent]) -> None:
        """Delete the replicas of extents whose keys a transaction of this term has deleted."""
        for extent in extents:
            self._orders.extend((extent.extent_id, replica, extent.eversion) for replica in extent.replicas)

    def take(self, report: Report) -> None:
        """Take a complete report. Replicas that were unlisted before keep their time; all others are forgotten."""
        now_s = self._ctx.clock()
        before = self._odd.get(report.node_id, {})
        self._odd[report.node_id] = {found: before.get(found) or Odd(now_s) for found in report.odd}

    # --- a pass ----------------------------------------------------------------------------------------------

    async def run_once(self, now_s: float) -> None:
        await self._give(self._removed())
        due = self._take_turns(self._trouble(now_s), now_s)
        for start in range(0, len(due), AT_A_TIME):
            await self._give(await self._allowed(due[start : start + AT_A_TIME]))

    def _removed(self) -> list[Order]:
        count = min(len(self._orders), DELETES_MAX)
        orders: list[Order] = []
        for order in [self._orders.popleft() for _ in range(count)]:
            node = self._ctx.state.nodes.get(order[1].node_id)
            waits = node is not None and not node.dead and self._ctx.cluster_nodes.registry.seems_down(node.node_id)
            (self._orders if waits else orders).append(order)  # until the node is back, or declared dead
        return orders

    def _take_turns(self, trouble: Trouble, now_s: float) -> list[Found]:
        """Orphans and extra replicas that are due: one of each node in turn."""
        due: list[Found] = []
        turns = deque(self._due_on(node_id, trouble, now_s) for node_id in self._odd if not self._down(node_id))
        while turns and len(due) < DELETES_MAX:
            turn = turns.popleft()
            found = next(turn, None)
            if found is not None:
                due.append(found)
                turns.append(turn)
        return due

    def _due_on(self, node_id: int, trouble: Trouble, now_s: float) -> Iterator[Found]:
        return (found for found, odd in self._odd[node_id].items() if self._due(found, odd, trouble, now_s))

    def _down(self, node_id: int) -> bool:
        """Whether no orders are given to the node, and its replicas are not relied on."""
        node = self._ctx.state.nodes.get(node_id)
        return node is None or node.dead or self._ctx.cluster_nodes.registry.seems_down(node_id)

    async def _allowed(self, step: Sequence[Found]) -> list[Order]:
        """The orders that may be given now, each after its transaction."""
        trouble = self._trouble(self._ctx.clock())
        allowed = await asyncio.gather(*(self._allow(found, trouble) for found in step))
        trouble = self._trouble(self._ctx.clock())  # the transactions took time
        return [
            (found.extent_id, found.replica, found.eversion)
            for found, yes in zip(step, allowed, strict=True)
            if yes and self._still_odd(found, trouble)
        ]

    def _still_odd(self, found: Found, trouble: Trouble) -> bool:
        extent = self._ctx.state.extents.get(found.extent_id)
        if extent is None:
            return not self._ctx.is_prepared(found.extent_id)
        return self._extra(extent, found, trouble)

    def _due(self, found: Found, odd: Odd, trouble: Trouble, now_s: float) -> bool:
        state, config, since_s = self._ctx.state, self._config, odd.since_s
        if not odd.retry.is_due(now_s) or found.extent_id in state.tasks or self._ctx.is_prepared(found.extent_id):
            return False
        extent = state.extents.get(found.extent_id)
        if extent is None:
            # By the node's clock and by this manager's, so that a wrong clock does not cut the grace period short.
            age_s = (self._ctx.wall_ms() - found.created_ms) / 1000
            return age_s >= config.grace_s and now_s - since_s >= config.grace_s / 2
        return now_s - since_s >= config.extra_replica_grace_s and self._extra(extent, found, trouble)

    def _extra(self, extent: Extent, found: Found, trouble: Trouble) -> bool:
        """Whether the replica is not listed on its node, while all listed replicas are good and on nodes that are
        up."""
        if extent.replica_on(found.replica.node_id) is not None:
            return False
        if extent.seal is not None and not extent.all_confirmed:
            return False
        return not any(
            trouble.reason(extent.extent_id, replica) or self._down(replica.node_id) for replica in extent.replicas
        )

    async def _allow(self, found: Found, trouble: Trouble) -> bool:
        """Commit the transaction that allows the order."""
        ctx, extent_id = self._ctx, found.extent_id
        self._note_try(found)
        try:
            async with ctx.locks.hold(extents=[extent_id]):
                extent = ctx.state.extents.get(extent_id)
                if extent_id in ctx.state.tasks or (extent is None and ctx.is_prepared(extent_id)):
                    return False
                changes = ctx.changes()
                if extent is None:
                    changes.require_no_extent(extent_id)
                elif not self._extra(extent, found, trouble):
                    return False
                elif extent.seal is not None and found.eversion > extent.eversion:
                    changes.put_extent(extent, extent._replace(eversion=found.eversion))
                else:
                    changes.require_extent(extent)
                await ctx.commit(changes)
        except VersionConflict as error:
            log.warning("delete_not_allowed extent_id=%d error=%s", extent_id, error)
            return False
        log.info(
            "replica_to_be_deleted extent_id=%d node_id=%d reason=%s",
            *(extent_id, found.replica.node_id, "orphan" if extent is None else "extra"),
        )
        return True

    def _note_try(self, found: Found) -> None:
        """Count a try, so that the next one is delayed. If this one succeeds, the entry is dropped."""
        odd = self._odd.get(found.replica.node_id, {}).get(found)
        if odd is not None:
            odd.retry.postpone(self._ctx.clock(), Delays(self._config.interval_s, RETRY_DELAY_S_MAX))

    async def _give(self, orders: Sequence[Order]) -> None:
        for start in range(0, len(orders), AT_A_TIME):
            await asyncio.gather(*(self._order(*order) for order in orders[start : start + AT_A_TIME]))

    async def _order(self, extent_id: int, replica: ReplicaAt, eversion: int) -> None:
        node = self._ctx.state.nodes.get(replica.node_id)
        if node is None or node.dead:
            return  # when the node returns, it reports an orphan
        try:
            await self._ctx.nodes.delete(extent_id, replica, eversion=eversion)
        except NotLeader:
            raise
        except NeveError as error:
            log.info("replica_not_deleted extent_id=%d node_id=%d error=%s", extent_id, replica.node_id, error)
            return
        here = self._odd.get(replica.node_id, {})
        for found in [found for found in here if (found.extent_id, found.replica) == (extent_id, replica)]:
            del here[found]

    # --- proposals -------------------------------------------------------------------------------------------

    async def delete_extents(self, request: sm.DeleteExtentsRequest, mutation: Mutation) -> sm.DeleteExtentsReply:
        """Delete the proposed extents that metadata still allows to delete, in one transaction (scenarios T36 and
        T37)."""
        ctx = self._ctx
        if len(request.extents) > PROPOSED_MAX:
            raise InvalidArgument(what="extents", detail=f"{len(request.extents)} at once, at most {PROPOSED_MAX}")
        proposed = {proposal.extent_id: proposal.eversion for proposal in request.extents}
        if mutation.replayed is not None:
            deleted = [extent_id for extent_id in proposed if extent_id in mutation.replayed.extent_ids]
            return _delete_reply(proposed, deleted)
        gone: list[Extent] = []
        for start in range(0, len(proposed), AT_A_TIME):
            step = list(proposed)[start : start + AT_A_TIME]
            async with ctx.locks.hold(extents=step):
                doomed = [e for extent_id in step if (e := self._deletable(extent_id, proposed, request)) is not None]
                if not doomed:
                    continue
                changes = ctx.changes()
                for extent in doomed:
                    changes.delete_extent(extent)
                    task = ctx.state.tasks.get(extent.extent_id)
                    if task is not None:
                        changes.delete(TASK, task)
                # In several steps, repeating the call is safe without a record: what is gone is not found
                if len(proposed) <= AT_A_TIME:
                    mutation.record(changes, extent_ids=[extent.extent_id for extent in doomed])
                await ctx.commit(changes)
                gone += doomed
        self.note_removed(gone)
        return _delete_reply(proposed, [extent.extent_id for extent in gone])

    def _deletable(self, extent_id: int, proposed: dict[int, int], request: sm.DeleteExtentsRequest) -> Extent | None:
        state = self._ctx.state
        extent = state.extents.get(extent_id)
        if extent is None or extent.eversion != proposed[extent_id] or state.streams_of(extent_id):
            return None
        if request.revision and extent.mod_revision > request.revision:
            return None  # it has changed since the snapshot from which the proposal was made
        age_s = (self._ctx.wall_ms() - extent.created_ms) / 1000
        return extent if age_s >= self._config.grace_s else None


def _delete_reply(proposed: dict[int, int], deleted: Sequence[int]) -> sm.DeleteExtentsReply:
    gone = set(deleted)
    return sm.DeleteExtentsReply(deleted=deleted, kept=[extent_id for extent_id in proposed if extent_id not in gone])
