"""Deletes what nobody needs, by order and after a transaction that allows it (rule 24).

    removed from metadata          the stream's own transaction deleted `extents/{id}`: its replicas are ordered deleted
    orphan: unknown to metadata    older than the grace period, seen for half of it by this manager, without a task; a
                                   transaction compares the leader key and the absence of `extents/{id}`
    extra: known, not listed there seen for its grace time, while every listed replica is confirmed and its node alive,
                                   also right before the order: never the only good one in reach (T33); a transaction
                                   compares the extent
    proposed (DeleteExtents)       no stream refers to it, its eversion is the proposed one, older than the grace period

Invariants: no order without its transaction, and none on a partial listing;
            an order names node, disk and incarnation, and carries an eversion: it cannot hit a file made later;
            an extra replica's eversion is not above its extent's once it is deleted: a later copy to that node is not
            refused by its tombstone;
            an order that is lost is given again after the node's next report;
            nodes take turns, those that seem down are passed over, and what failed is tried again after a growing
            delay: one node in trouble holds up nobody else's leftovers, and costs no transactions.
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
DELETES_MAX = 1000  # orders in one pass
AT_A_TIME = 32
PROPOSED_MAX = 1_000
RETRY_DELAY_S_MAX = 600.0

Order = tuple[int, ReplicaAt, int]  # extent id, replica, eversion


@dataclass(slots=True)
class Odd:
    """When something unlisted was seen first, and what became of it."""

    since_s: float
    retry: Retry = field(default_factory=Retry)


class Collector:
    def __init__(self, ctx: LeaderContext, trouble: Callable[[float], Trouble]) -> None:
        self._ctx = ctx
        self._config = ctx.config.collecting
        self._trouble = trouble
        self._orders: deque[Order] = deque(maxlen=ORDERS_MAX)  # the oldest are dropped: they are found as orphans
        self._odd: dict[int, dict[Found, Odd]] = {}  # node id → what it holds unlisted

    # --- what is told ----------------------------------------------------------------------------------------

    def note_removed(self, extents: Iterable[Extent]) -> None:
        """Their keys are deleted, in a transaction of this term."""
        for extent in extents:
            self._orders.extend((extent.extent_id, replica, extent.eversion) for replica in extent.replicas)

    def take(self, report: Report) -> None:
        """A complete round: what was seen before keeps its time, what is not there any more is forgotten."""
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
            waits = node is not None and not node.dead and self._ctx.part.registry.seems_down(node.node_id)
            (self._orders if waits else orders).append(order)  # until it is back, or declared dead
        return orders

    def _take_turns(self, trouble: Trouble, now_s: float) -> list[Found]:
        """Orphans and extra replicas whose time is over: one of each node, then the next one of each."""
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
        """Nothing is ordered of it, and it is not counted on."""
        node = self._ctx.state.nodes.get(node_id)
        return node is None or node.dead or self._ctx.part.registry.seems_down(node_id)

    async def _allowed(self, step: Sequence[Found]) -> list[Order]:
        """Those for which an order may be given at once, each after its transaction."""
        trouble = self._trouble(self._ctx.clock())
        allowed = await asyncio.gather(*(self._allow(found, trouble) for found in step))
        trouble = self._trouble(self._ctx.clock())  # the transactions took their time
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
            # By the node's clock and by ours: a clock that is wrong must not cut the grace short.
            age_s = (self._ctx.wall_ms() - found.created_ms) / 1000
            return age_s >= config.grace_s and now_s - since_s >= config.grace_s / 2
        return now_s - since_s >= config.extra_replica_grace_s and self._extra(extent, found, trouble)

    def _extra(self, extent: Extent, found: Found, trouble: Trouble) -> bool:
        """Not listed there, and every replica that is listed is as it should be, on a node that is heard."""
        if extent.replica_on(found.replica.node_id) is not None:
            return False
        if extent.seal is not None and not extent.all_confirmed:
            return False
        return not any(
            trouble.reason(extent.extent_id, replica) or self._down(replica.node_id) for replica in extent.replicas
        )

    async def _allow(self, found: Found, trouble: Trouble) -> bool:
        """The transaction behind which the order may be given."""
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
        """Not again before a while, unless it works: then it is forgotten."""
        odd = self._odd.get(found.replica.node_id, {}).get(found)
        if odd is not None:
            odd.retry.postpone(self._ctx.clock(), Delays(self._config.interval_s, RETRY_DELAY_S_MAX))

    async def _give(self, orders: Sequence[Order]) -> None:
        for start in range(0, len(orders), AT_A_TIME):
            await asyncio.gather(*(self._order(*order) for order in orders[start : start + AT_A_TIME]))

    async def _order(self, extent_id: int, replica: ReplicaAt, eversion: int) -> None:
        node = self._ctx.state.nodes.get(replica.node_id)
        if node is None or node.dead:
            return  # when it returns, it reports an orphan
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
        """Each proposal is judged by what metadata says now; those that stand go in one transaction (T36, T37)."""
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
                if len(proposed) <= AT_A_TIME:  # in parts a repetition is safe by itself: what is gone is not found
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
            return None  # it changed after the snapshot that the proposal was made from
        age_s = (self._ctx.wall_ms() - extent.created_ms) / 1000
        return extent if age_s >= self._config.grace_s else None


def _delete_reply(proposed: dict[int, int], deleted: Sequence[int]) -> sm.DeleteExtentsReply:
    gone = set(deleted)
    return sm.DeleteExtentsReply(deleted=deleted, kept=[extent_id for extent_id in proposed if extent_id not in gone])
