"""The steps of a recovery task: begin, dispatch, hand over, finish, cancel. recovery.py decides when.

Invariants: a task is committed before it is dispatched, in a transaction that compares the extent (scenario T34);
            every retry after a failure has a new task id: a late report of an old try is never taken for the new one;
            finishing swaps exactly the lost replica, and only for a copy with the seal's length and digest, verified by
            this task (scenario T35), and only if the extent is unchanged since the task was made;
            the removed replica's delete order follows the swap, carries the older eversion, and names the file.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace

from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AlreadyExists, NeveError, NotEnoughNodes, NotLeader, Overloaded, TransportError
from neve.stream_manager.metadata.record_kinds import TASK
from neve.stream_manager.metadata.records import Extent, ReplicaAt, Task, replica_at, shared
from neve.stream_manager.nodes.core import recovery as core_recovery
from neve.stream_manager.nodes.core.recovery import Budget, Loss, Share, Trouble
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.placement.placement import Wish
from neve.stream_manager.placement.policies import policy_named
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems

log = logging.getLogger(__name__)

Kind = sm.RecoveryTask.Kind

ERROR_CHARS_MAX = 300
FAILED_NODES_MAX = 16  # per extent; beyond that all nodes get another chance


@dataclass(frozen=True, slots=True)
class Running:
    """A task that this manager has dispatched, or that a heartbeat reported as running."""

    share: Share
    dispatched_s: float


class TaskSteps:
    def __init__(
        self, ctx: LeaderContext, registry: Registry, problems: Problems, bad: dict[tuple[int, int], int]
    ) -> None:
        self._ctx = ctx
        self._config = ctx.config.recovery
        self._registry = registry
        self._problems = problems
        self._bad = bad
        self._failed_nodes: dict[int, dict[int, None]] = {}  # by extent id: targets that failed
        self.running: dict[int, Running] = {}  # by task id
        self._beginning: Counter[int] = Counter()  # by target: tasks that are being committed

    def budget(self, *, to_begin: bool = True) -> Budget:
        """What the bounds leave beside the tasks in etcd.

        `to_begin`: for one more task, so tasks that are not dispatched yet count as well. For their own dispatch
        they do not count, because they would wait for each other.
        """
        config = self._config
        budget = Budget(
            tasks_max=config.tasks_max,
            tasks_per_node_max=config.tasks_per_node_max,
            bytes_per_s_max=config.bytes_per_s_max,
            copy_bytes_per_s_max=config.copy_bytes_per_s_max,
        )
        known = {task.task_id for task in self._ctx.state.tasks.values()}
        for task_id in [task_id for task_id in self.running if task_id not in known]:
            del self.running[task_id]
        for task in self._ctx.state.tasks.values():
            running = self.running.get(task.task_id)
            if running is not None:
                budget.take(running.share)
            elif to_begin:
                budget.take(Share((task.target.node_id,) if task.target else (), 0))
        if to_begin:
            for node_id in self._beginning.elements():
                budget.take(Share((node_id,), 0))
        return budget

    # --- begin -----------------------------------------------------------------------------------------------

    async def begin_copy(self, extent: Extent, loss: Loss, trouble: Trouble, budget: Budget, now_s: float) -> None:
        """Begin to copy a lost replica to another node."""
        sources = core_recovery.sources_for(extent, loss.replica, trouble)
        if not sources:
            text = f"{loss.reason.value}, and no confirmed replica can be reached to copy from"
            self._problems.note(extent.extent_id, text, now_s)
            return
        if budget.first_source(sources) is None:
            return  # all sources are busy: try in a later pass
        target = self._choose_target(extent, loss.replica, budget)
        if target is not None:
            await self._begin(extent, Kind.COPY, loss.replica, target, trouble, budget, now_s)

    async def begin_fill(
        self, extent: Extent, replica: ReplicaAt, trouble: Trouble, budget: Budget, now_s: float, *, verify: bool
    ) -> bool:
        """Begin to copy the replica anew in place; with `verify` only if it turns out not to be whole."""
        sources = [s for s in core_recovery.sources_for(extent, replica, trouble) if s != replica]
        if not sources:
            self._problems.note(extent.extent_id, "no other confirmed replica can be reached to repair it from", now_s)
            return False
        if budget.rate() == 0 or replica.node_id in budget.busy() or budget.first_source(sources) is None:
            return False
        # Any disk of that node will do, because the replica's disk may be gone. A target with an incarnation is an
        # existing file that is to be verified.
        target = ReplicaAt(replica.node_id, "", replica.incarnation if verify else 0)
        return await self._begin(extent, Kind.FILL, replica, target, trouble, budget, now_s)

    async def _begin(
        self,
        extent: Extent,
        kind: sm.RecoveryTask.Kind,
        lost: ReplicaAt,
        target: ReplicaAt,
        trouble: Trouble,
        budget: Budget,
        now_s: float,
    ) -> bool:
        ctx, extent_id = self._ctx, extent.extent_id
        self._beginning[target.node_id] += 1  # concurrent begins see each other's places
        try:
            task_id = await ctx.ids.take(1)
            async with ctx.locks.hold(extents=[extent_id]):
                if ctx.state.extents.get(extent_id) != extent or extent_id in ctx.state.tasks:
                    return False
                task = Task(task_id, extent_id, kind, lost, target, extent.eversion, ctx.wall_ms())
                changes = ctx.changes()
                changes.require_extent(extent)
                changes.put(TASK, None, task)
                await ctx.commit(changes)
        finally:
            self._beginning[target.node_id] -= 1
        log.info(
            "recovery_begun task=%d extent_id=%d kind=%s lost=%d target=%d",
            *(task_id, extent_id, Kind.Name(kind), lost.node_id, target.node_id),
        )
        await self.dispatch(ctx.state.tasks[extent_id], extent, trouble, budget, now_s)
        return True

    def _choose_target(self, extent: Extent, lost: ReplicaAt, budget: Budget) -> ReplicaAt | None:
        """A node that may take the replica and has capacity for a copy; None if all such nodes are busy."""
        assert extent.seal is not None
        stream = self._ctx.state.streams.get(extent.stream_id)
        named = stream.policy.placement if stream is not None else ""
        policy = policy_named(named or self._ctx.config.defaults.placement)
        kept = [node_id for node_id in extent.node_ids if node_id != lost.node_id]
        wish = Wish(
            replicas=len(extent.replicas),
            strict=stream is not None and stream.policy.strict,
            room_bytes_min=self._ctx.config.placing.free_bytes_min + extent.seal.length,
            avoid=frozenset(self._failed_nodes.get(extent.extent_id, {})),
            excluded=frozenset({lost.node_id}),
        )
        candidates = self._registry.candidates()
        busy = budget.busy()
        free = [replace(c, barred="busy with copies") if c.node_id in busy and not c.barred else c for c in candidates]
        if wish.strict:
            try:
                policy.replacement(candidates, kept, wish, self._ctx.rng)
            except NotEnoughNodes as error:
                # No node is suitable, busy or not: a copy in the wrong rack is better than none.
                log.warning("recovery_not_strict extent_id=%d problem=%s", extent.extent_id, error)
                wish = replace(wish, strict=False)
        try:
            placed = policy.replacement(free, kept, wish, self._ctx.rng)
        except NotEnoughNodes:
            policy.replacement(candidates, kept, wish, self._ctx.rng)  # raises the reason, unless all are only busy
            return None
        return ReplicaAt(placed.node_ids[0], "", 0)

    # --- dispatch and follow ---------------------------------------------------------------------------------

    async def dispatch(self, task: Task, extent: Extent, trouble: Trouble, budget: Budget, now_s: float) -> None:
        """Order the target to copy. A node that already runs the task, or has finished it, accepts the order."""
        assert task.target is not None
        if not self._problems.due(task.extent_id, now_s):
            return
        forgotten = self.running.pop(task.task_id, None)
        if forgotten is not None:  # the target restarted: a task that is not running must not block others or itself
            budget.give_back(forgotten.share)
        sources = core_recovery.sources_for(extent, task.lost, trouble)
        first = budget.first_source(sources)
        rate = budget.rate() or self._config.copy_bytes_per_s_max // self._config.tasks_max
        if first is None:
            if not sources:
                self._problems.note(task.extent_id, "no confirmed replica can be reached to copy from", now_s)
            return
        if task.target.node_id in budget.busy():
            return  # try in a later pass
        ordered = [first, *(source for source in sources if source != first)]
        running = Running(Share((task.target.node_id, first.node_id), rate), now_s)
        budget.take(running.share)
        self.running[task.task_id] = running
        try:
            await self._ctx.nodes.start_copy(
                extent,
                task.target,
                task_id=task.task_id,
                sources=ordered,
                bytes_per_s_max=rate,
                eversion=_order_eversion(task, extent),
            )
        except NotLeader:
            raise
        except NeveError as error:
            if error.outcome_unknown:
                return  # a heartbeat will report the task
            del self.running[task.task_id]
            self._registry.failures.note_failure(task.target.node_id, now_s)
            if isinstance(error, AlreadyExists | Overloaded | TransportError):
                self._problems.note(task.extent_id, f"node {task.target.node_id}: {error}", now_s)
            else:
                await self.hand_over(task, extent, str(error), trouble, budget, now_s)

    def adopt(self, task: Task, extent: Extent, trouble: Trouble, now_s: float) -> None:
        """Count a running task that an earlier manager dispatched."""
        assert task.target is not None
        sources = core_recovery.sources_for(extent, task.lost, trouble)
        nodes = (task.target.node_id, *(source.node_id for source in sources[:1]))
        self.running[task.task_id] = Running(Share(nodes, self._config.copy_bytes_per_s_max), now_s)

    async def failed(
        self, task: Task, extent: Extent, error: common_pb2.Error, trouble: Trouble, budget: Budget, now_s: float
    ) -> None:
        await self.hand_over(task, extent, str(errors.from_message(error)), trouble, budget, now_s)

    async def hand_over(
        self, task: Task, extent: Extent, error: str, trouble: Trouble, budget: Budget, now_s: float
    ) -> None:
        """Try again under a new id, at another node if this one is gone or has failed too often.

        If there is no other node and the lost replica's node is well again, the task ends, and the reconciler has
        the replica filled in place.
        """
        assert task.target is not None
        assert task.lost is not None
        ctx, node_id = self._ctx, task.target.node_id
        self.running.pop(task.task_id, None)
        node = ctx.state.nodes.get(node_id)
        gone = node is None or node.dead or node.node_id in trouble.draining
        attempts = task.attempts + 1
        kind, target = task.kind, task.target
        problem = f"node {node_id}: {error}"[:ERROR_CHARS_MAX]
        if gone or attempts % self._config.attempts_max == 0:
            self._note_failed_node(task.extent_id, node_id)
            try:
                chosen = self._choose_target(extent, task.lost, budget)
                if chosen is None and gone:
                    return  # the possible targets are only busy: try in a later pass
            except NotEnoughNodes as refusal:
                if kind == Kind.COPY and trouble.reason(task.extent_id, task.lost) is None:
                    await self.cancel(task, "no other node can take it, and the lost replica's node is back")
                    return
                chosen, problem = None, f"{problem}; and no other node: {refusal}"[: 2 * ERROR_CHARS_MAX]
            if chosen is not None:
                kind, target = Kind.COPY, chosen
        task_id = await ctx.ids.take(1)
        async with ctx.locks.hold(extents=[task.extent_id]):
            if ctx.state.tasks.get(task.extent_id) != task:
                return
            new = replace(task, task_id=task_id, kind=kind, target=target, attempts=attempts, last_error=problem)
            changes = ctx.changes()
            changes.put(TASK, task, new)
            await ctx.commit(changes)
        self._problems.note(task.extent_id, problem, now_s)
        log.warning(
            "recovery_handed_over task=%d to=%d extent_id=%d target=%d error=%s",
            *(task.task_id, task_id, task.extent_id, target.node_id, problem),
        )

    def _note_failed_node(self, extent_id: int, node_id: int) -> None:
        nodes = self._failed_nodes.setdefault(extent_id, {})
        if len(nodes) >= FAILED_NODES_MAX:
            nodes.clear()
        nodes[node_id] = None

    def forget(self, extent_id: int) -> None:
        """Forget an extent that is gone."""
        self._failed_nodes.pop(extent_id, None)

    # --- the end ---------------------------------------------------------------------------------------------

    async def finish(self, task: Task, copy_status: en.CopyStatusReply, now_s: float) -> None:
        """Finish a task that its node reports as done, if the report is about exactly the expected bytes."""
        assert task.lost is not None
        assert task.target is not None
        ctx, extent_id = self._ctx, task.extent_id
        made = replica_at(copy_status.replica)
        async with ctx.locks.hold(extents=[extent_id]):
            extent = ctx.state.extents.get(extent_id)
            if ctx.state.tasks.get(extent_id) != task or extent is None or extent.seal is None:
                return
            wrong = _not_the_copy(task, copy_status, made, extent)
            if not wrong:
                changes = ctx.changes()
                changes.delete(TASK, task)
                new = swap(extent, task.lost, made, copy_status.seal.digest)
                if new is extent:
                    changes.require_extent(extent)
                else:
                    changes.put_extent(extent, new)
                await ctx.commit(changes)
        if wrong:
            log.error("recovery_not_believed task=%d extent_id=%d reason=%s", task.task_id, extent_id, wrong)
            trouble, budget = Trouble(ctx.state.nodes), self.budget()
            await self.hand_over(task, extent, wrong, trouble, budget, now_s)
            return
        self._ended(task)
        log.info(
            "recovery_done task=%d extent_id=%d lost=%d made_on=%d eversion=%d",
            *(task.task_id, extent_id, task.lost.node_id, made.node_id, new.eversion),
        )
        if made.node_id != task.lost.node_id:
            ctx.spawn(self._delete_removed(extent, task.lost), name="delete_removed")

    async def cancel(self, task: Task, reason: str) -> None:
        ctx = self._ctx
        async with ctx.locks.hold(extents=[task.extent_id]):
            if ctx.state.tasks.get(task.extent_id) != task:
                return
            changes = ctx.changes()
            changes.delete(TASK, task)
            await ctx.commit(changes)
        self._ended(task, solved=False)
        log.info("recovery_cancelled task=%d extent_id=%d reason=%s", task.task_id, task.extent_id, reason)

    def _ended(self, task: Task, *, solved: bool = True) -> None:
        assert task.lost is not None
        self.running.pop(task.task_id, None)
        self._failed_nodes.pop(task.extent_id, None)
        self._problems.solved(task.extent_id)
        if solved:
            self._bad.pop((task.extent_id, task.lost.node_id), None)

    async def _delete_removed(self, before: Extent, removed: ReplicaAt) -> None:
        """Order the removed replica deleted, with the older eversion.

        The copy elsewhere, and any later one here, has a larger eversion. If the order is lost, the node reports a
        replica that metadata does not list, and collect.py repeats the order.
        """
        node = self._ctx.state.nodes.get(removed.node_id)
        if node is None or node.dead:
            return
        try:
            await self._ctx.nodes.delete(before.extent_id, removed, eversion=before.eversion)
        except NeveError as error:
            log.info("removed_replica_not_deleted extent_id=%d error=%s", before.extent_id, error)


def _order_eversion(task: Task, extent: Extent) -> int:
    """The eversion of the record that will list the copy.

    To verify a file it must not exceed the file's own, or the node would copy the file in any case. Every sealed
    replica has at least the seal's eversion.
    """
    assert task.target is not None
    assert extent.seal is not None
    return extent.seal.eversion if task.target.incarnation else task.eversion + 1


def _not_the_copy(task: Task, copy_status: en.CopyStatusReply, made: ReplicaAt, extent: Extent) -> str:
    """Why the node's report is not the end of this task; empty if it is."""
    assert task.target is not None
    assert extent.seal is not None
    if copy_status.task_id != task.task_id or copy_status.extent_id != task.extent_id:
        return f"it is about task {copy_status.task_id} for extent {copy_status.extent_id}"
    if made.node_id != task.target.node_id or not made.disk_uuid or not made.incarnation:
        return f"the replica that it made is {made}"
    if copy_status.seal.length != extent.seal.length:
        return f"its length is {copy_status.seal.length}, the extent is sealed at {extent.seal.length}"
    if not copy_status.seal.digest or copy_status.seal.digest != (extent.seal.digest or copy_status.seal.digest):
        return f"its digest is {copy_status.seal.digest.hex() or 'missing'}, the extent's is {extent.seal.digest.hex()}"
    if extent.eversion != task.eversion:
        return f"the extent has eversion {extent.eversion} by now, but the task was made at {task.eversion}"
    return ""


def swap(extent: Extent, lost: ReplicaAt, made: ReplicaAt, digest: bytes) -> Extent:
    """The extent with `made`, confirmed, instead of `lost`; the same object if nothing changes."""
    assert extent.seal is not None
    if made == lost:
        return extent if lost.node_id in extent.confirmed else extent.with_confirmed([made.node_id], digest)
    replicas = tuple(made if replica == lost else replica for replica in extent.replicas)
    assert len({replica.node_id for replica in replicas}) == len(replicas), (extent, made)
    good = {node_id for node_id in extent.confirmed if node_id != lost.node_id} | {made.node_id}
    return extent._replace(
        eversion=extent.eversion + 1,
        replicas=replicas,
        seal=extent.seal._replace(digest=digest),
        confirmed=shared(tuple(replica.node_id for replica in replicas if replica.node_id in good)),
    )
