"""Asks the replicas of sealed extents for their confirmations until every one has given it (rule 20).

    confirmed                           the bit is set; the first digest is stored, others must match
    longer than the seal                the node cuts it, verifies, confirms: nothing to do here (T7)
    shorter, damaged, missing           made anew where it is, from confirmed ones (recovery.py, kind FILL)
    another digest                      the node quarantines it; the same
    disk full or failed                 made anew elsewhere, if that lasts
    contradicts the seal                an alarm: a person must look

Invariants: what a manager did not finish before it died is found again in the state: nothing is kept for it;
            a task that has failed, or is held up, keeps nobody from being asked: it may lack a source that is back;
            each extent is asked with a growing delay, at most `reconcile_max` at a time, and a part of them for one
            node: a node that hangs until its time is over holds up nobody's confirmations but its own (T46).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from neve.meta.core_retry import Delays, Retries
from neve.proto.errors import (
    Conflict,
    DiskFailed,
    DiskFull,
    EversionMismatch,
    NeveError,
    NotLeader,
    ReplicaReadOnly,
)
from neve.stream_manager.metadata.records import Extent
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.streams.confirm import ABSENT, SealOutcome, seal_replicas
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems

log = logging.getLogger(__name__)

UNABLE = (ReplicaReadOnly, DiskFull, DiskFailed)
UNABLE_TIMES_MAX = 3  # then it is made elsewhere
FIRST_DELAY_S = 1.0
NODE_SHARE = 2  # of all that are asked at a time, half may wait for the same node
PASS_S = 1.0  # that a pass waits for answers; those that take longer are asked on


class Reconciler:
    def __init__(self, ctx: LeaderContext, recovery: Recovery, problems: Problems) -> None:
        self._ctx = ctx
        self._config = ctx.config.recovery
        self._recovery = recovery
        self._problems = problems
        self._retries = Retries[int](Delays(FIRST_DELAY_S, self._config.retry_delay_s_max))  # by extent id
        self._asking: dict[int, asyncio.Task[None]] = {}  # by extent id

    def note(self, extent_id: int) -> None:
        """Somebody asked its replicas just now, and not all confirmed."""
        self._retries.expect(extent_id, self._ctx.clock() + FIRST_DELAY_S)

    async def run_once(self, now_s: float) -> None:
        unconfirmed = self._ctx.state.unconfirmed_extents
        for extent_id in [extent_id for extent_id in self._retries if extent_id not in unconfirmed]:
            self._retries.forget(extent_id)
        self._ask_due(now_s)
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=PASS_S)
        for extent_id in [extent_id for extent_id, task in self._asking.items() if task.done()]:
            self._asking.pop(extent_id).result()

    def _ask_due(self, now_s: float) -> None:
        """Begin to ask for those whose time has come, within the bounds."""
        state, dead = self._ctx.state, self._ctx.state.dead_nodes()
        by_node = Counter(node_id for extent_id in self._asking for node_id in self._not_confirmed(extent_id, dead))
        by_node_max = max(1, self._config.reconcile_max // NODE_SHARE)
        for extent_id in state.unconfirmed_extents:
            if len(self._asking) >= self._config.reconcile_max:
                return
            task = state.tasks.get(extent_id)
            if extent_id in self._asking or (task is not None and not task.attempts and not self._held_up(extent_id)):
                continue
            if not self._retries.is_due(extent_id, now_s):
                continue
            asked = self._not_confirmed(extent_id, dead)
            if any(by_node[node_id] >= by_node_max for node_id in asked):
                continue
            by_node.update(asked)
            self._asking[extent_id] = self._ctx.tasks.start(self._ask(extent_id, now_s))

    def _held_up(self, extent_id: int) -> bool:
        return bool(self._problems.text(extent_id))

    def _not_confirmed(self, extent_id: int, dead: frozenset[int]) -> list[int]:
        """Nodes from which an answer is missing at this moment."""
        extent = self._ctx.state.extents.get(extent_id)
        if extent is None:
            return []
        return [node_id for node_id in extent.node_ids if node_id not in extent.confirmed and node_id not in dead]

    async def _ask(self, extent_id: int, now_s: float) -> None:
        times = self._retries.attempts(extent_id)
        self._retries.postpone(extent_id, now_s)
        try:
            outcome = await seal_replicas(self._ctx, extent_id)
            extent = self._ctx.state.extents.get(extent_id)
            if outcome is None or extent is None or outcome.all_confirmed:
                self._problems.solved(extent_id)
                return
            await self._treat(extent, outcome, times, now_s)
        except NotLeader:
            raise
        except NeveError as error:
            log.warning("reconcile_failed extent_id=%d error=%s", extent_id, error)

    async def _treat(self, extent: Extent, outcome: SealOutcome, times: int, now_s: float) -> None:
        """What to do about each replica that did not confirm."""
        extent_id = extent.extent_id
        assert extent.seal is not None
        if not extent.confirmed:
            told = [f"node {node_id} has {length} bytes" for node_id, length in outcome.short.items()]
            told += [f"node {node_id}: {error}" for node_id, error in outcome.failed.items()]
            dead = [f"node {node_id} is dead" for node_id in extent.node_ids if node_id in self._ctx.state.dead_nodes()]
            text = f"no replica has confirmed the seal at {extent.seal.length} ({'; '.join(told + dead)})"
            self._problems.note(extent_id, text, now_s)
            return
        for node_id in outcome.short:
            await self._repair(extent, node_id, now_s)
        for node_id, error in outcome.failed.items():
            if isinstance(error, ABSENT):
                await self._repair(extent, node_id, now_s)
            elif isinstance(error, Conflict | EversionMismatch):
                log.error("replica_contradicts_seal extent_id=%d node_id=%d error=%s", extent_id, node_id, error)
                self._problems.note(extent_id, f"node {node_id}: {error}", now_s)
            elif isinstance(error, UNABLE) and times >= UNABLE_TIMES_MAX:
                replica = extent.replica_on(node_id)
                if replica is not None:
                    self._recovery.note_bad(extent_id, replica)

    async def _repair(self, extent: Extent, node_id: int, now_s: float) -> None:
        replica = extent.replica_on(node_id)
        if replica is not None:
            await self._recovery.repair_in_place(extent.extent_id, replica, now_s, verify=False)
