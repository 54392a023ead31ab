"""Replicas that are reported as bad: by a scrubber, a reader, a copier, or by missing in a node's replica report.

A report is only a suspicion. The manager asks the replica's node first, and changes metadata only after its reply:

    missing, deleted, another file, damaged, not sealed     its confirmation is revoked, so that no reader is sent
                                                            there, and it is copied anew in place (reconcile.py)
    nothing wrong that the node knows                       a task verifies every byte, and repairs it (protocol
                                                            rule 22)
    open, and missing, doubtful or damaged                  the extent is sealed (open_extents.py)
    no reply                                                asked again, a few times: a dead node is detected elsewhere

Invariants: a report about a file that metadata does not list is ignored;
            the last confirmation of an extent is not revoked: its good blocks may be the only ones;
            the number of reports is bounded, and a replica is asked about once at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from neve.meta.core_retry import Delays, Retry
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, NotLeader, ReplicaError
from neve.stream_manager.metadata.record_kinds import TASK
from neve.stream_manager.metadata.records import Extent, ReplicaAt, shared
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.streams.seal_tail import seal_open_extent
from neve.stream_manager.term.context import LeaderContext

log = logging.getLogger(__name__)

SUSPECTS_MAX = 10_000
AT_A_TIME = 32
TRIES_MAX = 8
DELAYS = Delays(2.0, 120.0)


@dataclass(slots=True)
class Suspect:
    replica: ReplicaAt
    reason: str
    retry: Retry = field(default_factory=Retry)


class BadReplicas:
    def __init__(self, ctx: LeaderContext, registry: Registry, recovery: Recovery) -> None:
        self._ctx = ctx
        self._registry = registry
        self._recovery = recovery
        self._suspects: dict[tuple[int, int], Suspect] = {}  # (extent, node)
        self._conflicts = ctx.conflicts
        self.reported = 0

    @property
    def waiting(self) -> int:
        return len(self._suspects)

    def report(self, bad_replicas: Sequence[sm.BadReplica]) -> None:
        for bad in bad_replicas:
            if bad.conflict:
                self._conflict(bad)
                continue
            reporter = f"{bad.reporter}: " if bad.reporter else ""
            reason = f"{reporter}{bad.reason} at {bad.offset}"
            self.suspect(bad.extent_id, bad.replica.node_id, reason, incarnation=bad.replica.incarnation)

    def _conflict(self, bad: sm.BadReplica) -> None:
        """Note a conflict that a writer reported.

        The writer has ended. The extent is sealed, and its replicas are compared before any of them is read
        (protocol rule 7).
        """
        extent = self._ctx.state.extents.get(bad.extent_id)
        if extent is None or extent.seal is not None or extent.replica_on(bad.replica.node_id) is None:
            return
        log.error(
            "append_conflict extent_id=%d node_id=%d offset=%d reporter=%s",
            *(bad.extent_id, bad.replica.node_id, bad.offset, bad.reporter[:100]),
        )
        if len(self._conflicts) < SUSPECTS_MAX:
            self._conflicts.setdefault(bad.extent_id, Retry())

    async def _seal_conflicts(self, now_s: float) -> None:
        due = [extent_id for extent_id, retry in self._conflicts.items() if retry.is_due(now_s)]
        await asyncio.gather(*(self._seal_conflict(extent_id, now_s) for extent_id in due[:AT_A_TIME]))

    async def _seal_conflict(self, extent_id: int, now_s: float) -> None:
        retry = self._conflicts[extent_id]
        retry.postpone(now_s, DELAYS)
        try:
            await seal_open_extent(self._ctx, extent_id, conflict=True)
        except NotLeader:
            raise
        except NeveError as error:
            log.warning("conflict_not_sealed extent_id=%d error=%s", extent_id, error)
            if retry.attempts < TRIES_MAX:  # otherwise give up: its node still refuses the clients that open the stream
                return
        self._conflicts.pop(extent_id, None)

    def suspect(self, extent_id: int, node_id: int, reason: str, *, incarnation: int = 0) -> None:
        """Note that a replica may be bad. `incarnation`: of the reported file; 0: of the one that metadata lists."""
        extent = self._ctx.state.extents.get(extent_id)
        replica = extent.replica_on(node_id) if extent is not None else None
        if extent is None or replica is None or incarnation not in (0, replica.incarnation):
            return
        if extent.seal is not None and node_id not in extent.confirmed:
            return  # no reader is sent there, and the reconciler asks for its confirmation anyway
        known = self._suspects.get((extent_id, node_id))
        if known is not None and known.replica == replica:
            return
        if len(self._suspects) >= SUSPECTS_MAX:
            # It will be reported again
            log.warning("bad_replica_not_noted extent_id=%d node_id=%d", extent_id, node_id)
            return
        self.reported += 1
        self._registry.failures.note_failure(node_id, self._ctx.clock())
        log.warning("bad_replica_reported extent_id=%d node_id=%d reason=%s", extent_id, node_id, reason[:300])
        self._suspects[extent_id, node_id] = Suspect(replica, reason)

    async def run_once(self, now_s: float) -> None:
        await self._seal_conflicts(now_s)
        due = [key for key, suspect in self._suspects.items() if suspect.retry.is_due(now_s)]
        await asyncio.gather(*(self._look(key, now_s) for key in itertools.islice(due, AT_A_TIME)))

    async def _look(self, key: tuple[int, int], now_s: float) -> None:
        suspect = self._suspects[key]
        extent_id, node_id = key
        extent = self._ctx.state.extents.get(extent_id)
        node = self._ctx.state.nodes.get(node_id)
        moot = extent is not None and extent.seal is not None and node_id not in extent.confirmed
        if extent is None or suspect.replica not in extent.replicas or node is None or node.dead or moot:
            del self._suspects[key]  # it was replaced meanwhile, or recovery or the reconciler takes care of it
            return
        suspect.retry.postpone(now_s, DELAYS)
        try:
            settled = await self._settle(extent, suspect, now_s)
        except NotLeader:
            raise
        except NeveError as error:
            log.info("bad_replica_not_looked_at extent_id=%d node_id=%d error=%s", extent_id, node_id, error)
            settled = suspect.retry.attempts >= TRIES_MAX
        if settled:
            self._suspects.pop(key, None)

    async def _settle(self, extent: Extent, suspect: Suspect, now_s: float) -> bool:
        """Ask the node and act on its reply. Returns whether the suspicion is settled."""
        try:
            info = await self._ctx.nodes.describe(extent.extent_id, suspect.replica)
            wrong = wrong_with(extent, info)
        except ReplicaError as error:
            wrong = str(error)
        if wrong:
            await self._revoke(extent, suspect, wrong)
            return True
        if extent.seal is None:
            return True  # the node's state is good, and the seal will verify every byte
        if await self._recovery.repair_in_place(extent.extent_id, suspect.replica, now_s, verify=True):
            return True
        return len(extent.replicas) == 1  # there is no other replica to repair it from; its node continues to verify it

    async def _revoke(self, extent: Extent, suspect: Suspect, wrong: str) -> None:
        extent_id, replica = extent.extent_id, suspect.replica
        log.error("bad_replica_found extent_id=%d node_id=%d reason=%s", extent_id, replica.node_id, wrong)
        if extent.seal is None:
            self._recovery.note_bad(extent_id, replica)
            return
        async with self._ctx.locks.hold(extents=[extent_id]):
            now = self._ctx.state.extents.get(extent_id)
            if now is None or replica not in now.replicas or replica.node_id not in now.confirmed:
                return
            left = tuple(node_id for node_id in now.confirmed if node_id != replica.node_id)
            if not left:  # the others may have been revoked in this very pass
                self._recovery.note_bad(extent_id, replica)
                return
            changes = self._ctx.changes()
            changes.put_extent(now, now._replace(confirmed=shared(left)))
            task = self._ctx.state.tasks.get(extent_id)
            if task is not None and task.lost == replica and task.kind == sm.RecoveryTask.FILL:
                changes.delete(TASK, task)  # it may have verified the replica before it went bad
            self._ctx.revoked.note(extent_id, replica.node_id)
            await self._ctx.commit(changes)


def wrong_with(extent: Extent, info: en.ReplicaInfo) -> str:
    """How the node's description of its replica contradicts metadata; empty if it does not."""
    # Unspecified: the node has not examined it yet
    if info.kind not in (en.LengthAnswer.LENGTH, en.LengthAnswer.UNSPECIFIED):
        return f"the node says it is {en.LengthAnswer.Kind.Name(info.kind).lower()}"
    if extent.seal is None or info.replica.node_id not in extent.confirmed:
        return ""
    if not info.HasField("seal"):
        return "it has confirmed the seal, and is not sealed"
    if info.seal.length != extent.seal.length or info.seal.digest != extent.seal.digest:
        return f"it is sealed at {info.seal.length} with digest {info.seal.digest.hex()}"
    return ""
