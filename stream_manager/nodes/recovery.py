"""Replaces lost replicas: finds them, keeps one persisted task per extent, and follows the task to its end.

    plan        the most endangered extents first; the task is in etcd before any node gets an order (scenario T34)
    dispatch    StartCopy to the target, with confirmed sources, within the bounds
    follow      by heartbeats: a RUNNING task continues; an UNKNOWN one is dispatched again; after FAILED, or if the
                target is dead, the task is handed over to another node under a new id; DONE counts only from this very
                task, with the seal's length and digest (scenario T35)
    finish      one transaction swaps the replica, at the next eversion, and removes the task; then the removed replica
                gets a delete order with the old eversion (protocol rule 22)

Invariants: an extent has at most one task; the next manager needs nothing that is only in memory here: it finds the
            tasks in etcd, and nodes accept a repeated StartCopy of a task that is running or done;
            when a lost replica returns, its task ends; a copy that was already made is an extra replica (scenario T33,
            collect.py).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Iterable

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, NotLeader
from neve.stream_manager.metadata.records import Extent, ReplicaAt, Task
from neve.stream_manager.nodes.core import recovery as core_recovery
from neve.stream_manager.nodes.core.recovery import Budget, Loss, Trouble
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.nodes.task_steps import TaskSteps
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems
from neve.stream_manager.term.loop_yield import LoopYield

log = logging.getLogger(__name__)

Kind = sm.RecoveryTask.Kind

SCAN_INTERVAL_S = 5.0  # between scans of the nodes in trouble, when nothing has changed
QUEUE_FACTOR = 4  # losses that a scan keeps, as a multiple of the tasks that may run
KEPT_FACTOR = 8  # losses that are collected before the less urgent ones are dropped, as a multiple of those kept
STATUS_PATIENCE_S = 3.0  # heartbeats on their way may be older than the order
LIST_LIMIT_MAX = 1_000


class Recovery:
    def __init__(self, ctx: LeaderContext, registry: Registry, problems: Problems) -> None:
        self._ctx = ctx
        self._config = ctx.config.recovery
        self._registry = registry
        self.problems = problems  # why extents are held up, for people
        self.bad: dict[tuple[int, int], int] = {}  # (extent, node) → incarnation of a replica that is known to be bad
        self._bad_while_open: dict[tuple[int, int], None] = {}  # those of `bad` whose extent was open
        self.steps = TaskSteps(ctx, registry, problems, self.bad)
        self._queue: list[Loss] = []
        self._scanned_s = -SCAN_INTERVAL_S
        self._scan_was_cut = False
        self._signature: object = None
        ctx.state.listen_replicas(self._on_replicas)

    async def run_once(self, now_s: float) -> None:
        """One pass: follow the existing tasks, then begin others within the bounds."""
        trouble = self.trouble(now_s)
        budget = self.steps.budget(to_begin=False)
        tasks = list(self._ctx.state.tasks.values())
        await asyncio.gather(
            *(self._guard(task.extent_id, self._follow(task, trouble, budget, now_s)) for task in tasks)
        )
        await self._begin_new(now_s)
        self._forget_solved(now_s)

    # --- losses ----------------------------------------------------------------------------------------------

    def trouble(self, now_s: float) -> Trouble:
        state, registry = self._ctx.state, self._registry
        self._forget_sealed()
        dead_due_s: dict[int, float] = {}
        gone_disks: dict[tuple[int, str], None] = {}
        draining: dict[int, None] = {}
        for node in state.nodes.values():
            if node.dead:
                dead_due_s[node.node_id] = registry.give_up_s(node, now_s, delay_s=self._config.delay_s)
            for disk_uuid in registry.status(node.node_id).gone_disks_since_s:
                gone_disks[node.node_id, disk_uuid] = None
            if node.mode in (sm.NODE_MODE_DRAINING, sm.NODE_MODE_DECOMMISSIONED):
                draining[node.node_id] = None
        return Trouble(state.nodes, dead_due_s, gone_disks, self.bad, draining)

    def note_bad(self, extent_id: int, replica: ReplicaAt) -> None:
        """Note that a replica must be replaced by one elsewhere, if metadata still lists it."""
        extent = self._ctx.state.extents.get(extent_id)
        if extent is not None and replica in extent.replicas:
            self.bad[extent_id, replica.node_id] = replica.incarnation
            if extent.seal is None:
                self._bad_while_open[extent_id, replica.node_id] = None

    def _forget_sealed(self) -> None:
        """Drop bad replicas of extents that are sealed by now.

        A replica that confirms the seal is good, whatever was wrong while the extent was open, perhaps a missing
        disk. The reconciler takes care of one that does not.
        """
        if not self._bad_while_open:
            return
        opened = self._ctx.state.open_extents
        for key in [key for key in self._bad_while_open if key[0] not in opened]:
            del self._bad_while_open[key]
            self.bad.pop(key, None)

    def _forget_solved(self, now_s: float) -> None:
        """Drop hold-ups that are over for another reason: an owner has sealed the extent, or a disk is back."""
        if not (overdue := self.problems.overdue(now_s)):
            return
        state, trouble = self._ctx.state, self.trouble(now_s)
        for extent_id in overdue:
            extent = state.extents.get(extent_id)
            if extent is None or (
                extent.all_confirmed
                and extent_id not in state.tasks
                and core_recovery.worst_loss(extent, trouble) is None
            ):
                self.problems.solved(extent_id)

    def _on_replicas(self, old: Extent, new: Extent | None) -> None:
        """Drop what is known of replicas that are no longer listed."""
        for replica in old.replicas:
            if new is None or replica not in new.replicas:
                self.bad.pop((old.extent_id, replica.node_id), None)
        if new is None:
            self.problems.solved(old.extent_id)
            self.steps.forget(old.extent_id)

    # --- new tasks -------------------------------------------------------------------------------------------

    async def _begin_new(self, now_s: float) -> None:
        trouble = self.trouble(now_s)
        budget = self.steps.budget()
        await self._scan_if_useful(trouble, now_s)
        kept: list[Loss] = []
        for index, loss in enumerate(self._queue):
            if budget.rate() == 0:
                kept += self._queue[index:]
                break
            extent = self._ctx.state.extents.get(loss.extent_id)
            if extent is None or loss.extent_id in self._ctx.state.tasks:
                continue
            now_lost = core_recovery.worst_loss(extent, trouble)
            if now_lost is None:
                continue
            if now_lost.due_s > now_s or not self.problems.due(loss.extent_id, now_s):
                kept.append(loss)
                continue
            await self._guard(loss.extent_id, self.steps.begin_copy(extent, now_lost, trouble, budget, now_s))
        self._queue = kept

    async def _scan_if_useful(self, trouble: Trouble, now_s: float) -> None:
        signature = (
            tuple(trouble.dead_due_s.items()),
            tuple(trouble.gone_disks),
            tuple(trouble.draining),
            tuple(trouble.bad.items()),
        )
        overdue = now_s - self._scanned_s >= SCAN_INTERVAL_S
        used_up = self._scan_was_cut and not self._queue
        if signature == self._signature and not overdue and not used_up:
            return
        self._signature, self._scanned_s = signature, now_s
        queue_max = QUEUE_FACTOR * self._config.tasks_max
        found = await self._scan(trouble, queue_max)
        self._queue = found
        self._scan_was_cut = len(found) == queue_max

    async def _scan(self, trouble: Trouble, queue_max: int) -> list[Loss]:
        """The most urgent losses of sealed extents on nodes in trouble. Yields to the loop in between."""
        state = self._ctx.state
        best: list[Loss] = []
        loop_yield = LoopYield()
        troubled = trouble.nodes()
        for node_id in [0, *troubled]:
            held = state.extents_on(node_id) if node_id else dict.fromkeys(extent_id for extent_id, _ in self.bad)
            for extent_id in list(held):
                if loop_yield.is_due():
                    if len(best) > KEPT_FACTOR * queue_max:
                        best = heapq.nsmallest(queue_max, best, key=_rank)
                    await loop_yield.pause()
                extent = state.extents.get(extent_id)
                if extent is None or extent.seal is None or extent_id in state.tasks:
                    continue
                if node_id and next((n for n in extent.node_ids if n in troubled), 0) != node_id:
                    continue  # it is found once, by the first of its nodes
                loss = core_recovery.worst_loss(extent, trouble)
                if loss is not None:
                    best.append(loss)
        # a bad replica on a node in trouble was found twice
        return heapq.nsmallest(queue_max, {loss.extent_id: loss for loss in best}.values(), key=_rank)

    async def repair_in_place(self, extent_id: int, replica: ReplicaAt, now_s: float, *, verify: bool) -> bool:
        """Begin a task that copies this node's replica anew because it is short, bad or missing, or `verify`s it
        first.

        Returns False if that is not possible now: the bounds are reached, the extent has another task, or there is
        no source.
        """
        extent = self._ctx.state.extents.get(extent_id)
        if extent is None or extent_id in self._ctx.state.tasks or not self.problems.due(extent_id, now_s):
            return False
        trouble = self.trouble(now_s)
        budget = self.steps.budget()
        return await self.steps.begin_fill(extent, replica, trouble, budget, now_s, verify=verify)

    # --- existing tasks --------------------------------------------------------------------------------------

    async def _follow(self, task: Task, trouble: Trouble, budget: Budget, now_s: float) -> None:
        """One step of a task. The next pass, of this manager or another, decides everything anew."""
        extent = self._ctx.state.extents.get(task.extent_id)
        void = _void(task, extent, trouble)
        if void or extent is None or task.target is None:
            await self.steps.cancel(task, void or "it has no target")
            return
        target = self._ctx.state.nodes.get(task.target.node_id)
        if target is None or target.dead or (task.kind == Kind.COPY and target.node_id in trouble.draining):
            if self.problems.due(task.extent_id, now_s):  # there may be no other node to take it
                await self.steps.hand_over(task, extent, "it is gone, or being emptied", trouble, budget, now_s)
            return
        status = self._registry.status(target.node_id)
        copy_status = status.copies.get(task.task_id)
        running = self.steps.running.get(task.task_id)
        if copy_status is None:
            waiting = running is not None and status.copies_as_of_s < running.dispatched_s + STATUS_PATIENCE_S
            if not waiting:  # never dispatched by this manager, or forgotten by a node that restarted
                await self.steps.dispatch(task, extent, trouble, budget, now_s)
        elif copy_status.state == en.CopyStatusReply.DONE:
            await self.steps.finish(task, copy_status, now_s)
        elif copy_status.state == en.CopyStatusReply.FAILED:
            await self.steps.failed(task, extent, copy_status.error, trouble, budget, now_s)
        elif running is None:
            self.steps.adopt(task, extent, trouble, now_s)

    async def _guard(self, extent_id: int, step: Awaitable[None]) -> None:
        """Run a step. A failure of one extent does not end the pass; the end of the term does."""
        try:
            await step
        except NotLeader:
            raise
        except NeveError as error:
            log.warning("recovery_step_failed extent_id=%d error=%s", extent_id, error)
            self.problems.note(extent_id, str(error), self._ctx.clock())

    # --- for people ------------------------------------------------------------------------------------------

    def list_tasks(self, request: sm.ListTasksRequest) -> sm.ListTasksReply:
        limit = min(request.limit or LIST_LIMIT_MAX, LIST_LIMIT_MAX)
        tasks = sorted(
            (task for task in self._ctx.state.tasks.values() if task.extent_id > request.after_extent_id),
            key=lambda task: task.extent_id,
        )
        trouble = self.trouble(self._ctx.clock())
        shown: Iterable[Task] = tasks[:limit]
        return sm.ListTasksReply(tasks=[self._task_message(task, trouble) for task in shown], more=len(tasks) > limit)

    def _task_message(self, task: Task, trouble: Trouble) -> sm.RecoveryTask:
        extent = self._ctx.state.extents.get(task.extent_id)
        message = sm.RecoveryTask(
            task_id=task.task_id,
            extent_id=task.extent_id,
            kind=task.kind,
            created_ms=task.created_ms,
            attempts=task.attempts,
            last_error=task.last_error,
        )
        for name, replica in (("lost", task.lost), ("target", task.target)):
            if replica is not None:
                field = getattr(message, name)
                field.node_id, field.disk_uuid, field.incarnation = replica
        if extent is not None and extent.seal is not None:
            message.total_bytes = extent.seal.length
            message.replicas_left = len(core_recovery.sources_for(extent, None, trouble))
        if task.target is not None:
            copy_status = self._registry.status(task.target.node_id).copies.get(task.task_id)
            message.copied_bytes = copy_status.copied_bytes if copy_status is not None else 0
        return message


def _rank(loss: Loss) -> tuple[int, bool, int]:
    return loss.rank


def _void(task: Task, extent: Extent | None, trouble: Trouble) -> str:
    """Why a task is not needed any more; empty if it is."""
    if extent is None:
        return "its extent is deleted"
    if extent.seal is None or extent.eversion != task.eversion:
        return "its extent has changed"
    if task.lost is None or task.lost not in extent.replicas:
        return "its replica is no longer part of the extent"
    healthy = task.lost.node_id in extent.confirmed and trouble.reason(task.extent_id, task.lost) is None
    if task.kind == Kind.COPY and healthy:
        return "the lost replica is back"
    return ""
