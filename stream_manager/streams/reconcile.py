"""The reconciler: sends seal orders to the replicas of sealed extents until all have confirmed (protocol rule 20).

    the replica                         what happens
    confirms                            the confirmation is recorded; the first digest is stored, others must match
    is longer than the seal             its node truncates, verifies and confirms it; nothing to do here (scenario T7)
    is shorter, damaged or missing      it is copied anew, in place, from confirmed replicas (recovery.py, kind FILL)
    has another digest                  its node quarantines it; then it is copied anew, in place
    has a full or failed disk           it is moved elsewhere, if that persists
    contradicts the seal                an alarm: a person must look

Invariants: a new leader finds in the state what an earlier one did not finish; nothing else is stored;
            an extent is asked even if it has a task that failed or is held up: the task may lack a source that is back;
            each extent is asked with a growing delay, at most `reconcile_max` extents at a time, and only a share of
            them may wait for the same node: a hanging node delays only its own confirmations (scenario T46).
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
UNABLE_TIMES_MAX = 3  # then the replica is moved elsewhere
FIRST_DELAY_S = 1.0
NODE_SHARE = 2  # half of the extents that are asked at a time may wait for the same node
PASS_S = 1.0  # how long a pass waits for replies; slower ones continue after it


class Reconciler:
    def __init__(self, ctx: LeaderContext, recovery: Recovery, problems: Problems) -> None:
        self._ctx = ctx
        self._config = ctx.config.recovery
        self._recovery = recovery
        self._problems = problems
        self._retries = Retries[int](Delays(FIRST_DELAY_S, self._config.retry_delay_s_max))  # by extent id
        self._asking: dict[int, asyncio.Task[None]] = {}  # by extent id

    def note(self, extent_id: int) -> None:
        """Note that the extent's replicas were asked just now, and not all confirmed."""
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
        """Start asking the extents whose delay has passed, within the bounds."""
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
        """Nodes whose confirmation is missing at this moment."""
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
            await self._handle(extent, outcome, times, now_s)
        except NotLeader:
            raise
        except NeveError as error:
            log.warning("reconcile_failed extent_id=%d error=%s", extent_id, error)

    async def _handle(self, extent: Extent, outcome: SealOutcome, times: int, now_s: float) -> None:
        """Handle each replica that did not confirm."""
        extent_id = extent.extent_id
        assert extent.seal is not None
        if not extent.confirmed:
            replies = [f"node {node_id} has {length} bytes" for node_id, length in outcome.short.items()]
            replies += [f"node {node_id}: {error}" for node_id, error in outcome.failed.items()]
            dead = [f"node {node_id} is dead" for node_id in extent.node_ids if node_id in self._ctx.state.dead_nodes()]
            text = f"no replica has confirmed the seal at {extent.seal.length} ({'; '.join(replies + dead)})"
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
