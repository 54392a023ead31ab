"""The cluster's nodes as one term of a manager knows them: identity, health, and room for replicas.

Invariants: a node id has one process: a second one is refused while the first one lives;
            a disk belongs to one node; a decommissioned node never comes back;
            heartbeats only change memory; registrations, modes and deaths are guarded transactions;
            DEAD is stored before any flow acts on it, and stays until the node has been steady for a while.
Not here:   which replicas nodes have (replica_reports.py); moved nodes (relocate.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AlreadyExists, InvalidArgument, NeveError, WrongCluster
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import Disk, NodeEntry
from neve.stream_manager.nodes.core.health import NEVER_S, Health, NodeHealth
from neve.stream_manager.nodes.entries import DISKS_MAX, check_registration, entry_of
from neve.stream_manager.placement.cache import Candidates, candidate_of
from neve.stream_manager.placement.failure_history import FailureHistory
from neve.stream_manager.placement.placement import Candidate, Wish
from neve.stream_manager.placement.policies import policy_named
from neve.stream_manager.placement.topology import Topology
from neve.stream_manager.term.context import LeaderContext, Mutation, NodeChoice, PlacementRequest

log = logging.getLogger(__name__)

GIVEN_IDS_MAX = 10_000

HEALTH_MESSAGES = {
    Health.ALIVE: sm.NODE_HEALTH_ALIVE,
    Health.SUSPECT: sm.NODE_HEALTH_SUSPECT,
    Health.DEAD: sm.NODE_HEALTH_DEAD,
}
BadReport = Callable[[Sequence[sm.BadReplica]], None]


@dataclass(slots=True)
class NodeStatus:
    """What one node has reported in this term."""

    health: NodeHealth
    disks: tuple[en.DiskInfo, ...] = ()  # of the last heartbeat or registration; empty: there was none
    load: sm.NodeLoad = field(default_factory=sm.NodeLoad)
    copies: dict[int, en.CopyStatusReply] = field(default_factory=dict)  # by task id
    copies_as_of_s: float = NEVER_S  # when the heartbeat that reported them arrived
    report_wanted: bool = True  # its replicas were not reported in this term
    gone_disks_since_s: dict[str, float] = field(default_factory=dict)  # disks with replicas that are missing


class Registry:
    def __init__(self, ctx: LeaderContext, topology: Topology, on_bad: BadReport) -> None:
        self._ctx = ctx
        self._config = ctx.config.health
        self._topology = topology
        self._on_bad = on_bad
        self._begun_s = ctx.clock()
        self._statuses: dict[int, NodeStatus] = {}
        self._given: dict[int, int] = {}  # new ids by process id, for nodes without one
        # A node that was alive at its last heartbeat stays so until then, without asking its health
        self._up_until_s: dict[int, float] = {}
        self.failures = FailureHistory()
        self._candidates = Candidates(ctx.state, ctx.clock, self._candidate)
        for node in ctx.state.nodes.values():
            self._statuses[node.node_id] = self._new_status(node)

    # --- registration and heartbeats -------------------------------------------------------------------------

    async def register(self, request: sm.RegisterNodeRequest, mutation: Mutation) -> sm.RegisterNodeReply:
        ctx = self._ctx
        if request.cluster != ctx.config.cluster:
            raise WrongCluster(expected=ctx.config.cluster, got=request.cluster)
        if mutation.replayed is not None:
            return self._registered(mutation.replayed.node_id)
        if not request.node_id:
            return self._registered(await self._give_id(request.process_id))
        check_registration(request)
        place = await self._topology.locate(request.wire_address)
        async with ctx.locks.hold(nodes=[request.node_id], settings=["disks"]):
            old = ctx.state.nodes.get(request.node_id)
            self._check_identity(old, request)
            new = entry_of(request, old, self._disks_in_use(old, request), now_ms=ctx.wall_ms())
            if place is not None:
                new = replace(new, region=place.region, rack=place.rack)
            if old is None or new != replace(old, mod_revision=new.mod_revision):
                changes = ctx.changes()
                changes.put(NODE, old, new)
                mutation.record(changes, node_id=new.node_id)
                await ctx.commit(changes)
                log.info(
                    "node_registered node_id=%d wire=%s disks=%d place=/%s/%s process=%016x",
                    *(new.node_id, new.wire_address, len(new.disks), new.region, new.rack, new.process_id),
                )
            self._note_registered(old, request)
        return self._registered(request.node_id)

    def heartbeat(self, request: sm.HeartbeatRequest) -> sm.HeartbeatReply:
        node = self._ctx.state.nodes.get(request.node_id)
        reply = sm.HeartbeatReply(leader=self._ctx.leader)
        if node is None or node.process_id != request.process_id:
            # The process is not, or no longer, the node's: nothing else of the heartbeat counts
            reply.register_again = True
            return reply
        now_s = self._ctx.clock()
        status = self.status(request.node_id)
        self._beat(request.node_id, status.health, now_s)
        status.disks = tuple(request.disks[:DISKS_MAX])
        status.load = request.load
        status.copies = {copy.task_id: copy for copy in request.copies}
        status.copies_as_of_s = now_s
        self._candidates.note_changed(node.node_id)
        self._note_disks(node, status, now_s)
        if request.bad_replicas:
            self._on_bad(request.bad_replicas)
        reply.mode = node.mode
        reply.report_replicas, status.report_wanted = status.report_wanted, False
        return reply

    def _check_identity(self, old: NodeEntry | None, request: sm.RegisterNodeRequest) -> None:
        node_id = request.node_id
        if old is not None and old.mode == sm.NODE_MODE_DECOMMISSIONED:
            detail = f"node {node_id} was decommissioned: format its disks to use the machine as a new node"
            raise InvalidArgument(what="node_id", detail=detail)
        if old is not None and old.process_id != request.process_id and old.wire_address != request.wire_address:
            # At the same address the old process is certainly gone, because the port is taken. A new manager gives
            # the old process as much time for a heartbeat as it would need to be considered silent.
            age_s = self.status(node_id).health.age_s(self._ctx.clock())
            if age_s <= self._config.suspect_after_s:
                detail = f"process {old.process_id:016x} at {old.wire_address} was alive {age_s:.1f} s ago"
                raise AlreadyExists(kind="node", name=str(node_id), detail=detail)
        wanted = {disk.disk_uuid for disk in request.disks}
        for other in self._ctx.state.nodes.values():
            if other.node_id == node_id:
                continue
            for disk in other.disks:
                if disk.disk_uuid in wanted:
                    detail = f"disk {disk.disk_uuid} belongs to node {other.node_id}, so node {node_id} cannot have it"
                    raise InvalidArgument(what="disks", detail=detail)

    def _disks_in_use(self, old: NodeEntry | None, request: sm.RegisterNodeRequest) -> list[Disk]:
        """Disks of the node that the registration does not name, although metadata has replicas on them."""
        reported = {disk.disk_uuid for disk in request.disks}
        missing = [disk for disk in old.disks if disk.disk_uuid not in reported] if old is not None else []
        if not missing:
            return []
        state, node_id = self._ctx.state, request.node_id
        replicas = (state.extents[extent_id].replica_on(node_id) for extent_id in state.extents_on(node_id))
        used = {replica.disk_uuid for replica in replicas if replica is not None}
        return [disk for disk in missing if disk.disk_uuid in used]

    def _note_registered(self, old: NodeEntry | None, request: sm.RegisterNodeRequest) -> None:
        now_s = self._ctx.clock()
        status = self._statuses.get(request.node_id)
        if status is None or (old is None and not status.health.heard):
            status = self._statuses[request.node_id] = NodeStatus(NodeHealth(self._config, since_s=now_s))
        if old is not None and old.process_id != request.process_id:
            status.copies = {}  # a new process does not know the tasks of the old one
        self._beat(request.node_id, status.health, now_s)
        status.disks = tuple(request.disks[:DISKS_MAX])
        status.report_wanted = True
        self._candidates.note_changed(request.node_id)
        self._given.pop(request.process_id, None)

    def _note_disks(self, node: NodeEntry, status: NodeStatus, now_s: float) -> None:
        """Note since when disks are offline or not reported, although metadata has them."""
        usable = {disk.disk_uuid for disk in status.disks if disk.state != en.DiskInfo.OFFLINE}
        for disk in node.disks:
            if disk.disk_uuid in usable:
                status.gone_disks_since_s.pop(disk.disk_uuid, None)
            elif disk.disk_uuid not in status.gone_disks_since_s:
                status.gone_disks_since_s[disk.disk_uuid] = now_s
                log.error("disk_gone node_id=%d disk=%s", node.node_id, disk.disk_uuid)

    async def _give_id(self, process_id: int) -> int:
        """A new node id; the same one if the same process asks again."""
        if process_id not in self._given:
            node_id = await self._ctx.ids.take(1)
            while node_id in self._ctx.state.nodes:  # an operator may have configured a node with this id
                node_id = await self._ctx.ids.take(1)
            if len(self._given) >= GIVEN_IDS_MAX:
                del self._given[next(iter(self._given))]
            self._given[process_id] = node_id
        return self._given[process_id]

    def _registered(self, node_id: int) -> sm.RegisterNodeReply:
        heartbeat_ms = int(1000 * self._config.heartbeat_s)
        return sm.RegisterNodeReply(node_id=node_id, cluster=self._ctx.config.cluster, heartbeat_ms=heartbeat_ms)

    # --- health ----------------------------------------------------------------------------------------------

    def status(self, node_id: int) -> NodeStatus:
        status = self._statuses.get(node_id)
        if status is None:
            status = self._statuses[node_id] = self._new_status(self._ctx.state.nodes.get(node_id))
        return status

    def _new_status(self, node: NodeEntry | None) -> NodeStatus:
        was_dead = node is not None and node.dead
        return NodeStatus(NodeHealth(self._config, since_s=self._begun_s, was_dead=was_dead))

    def judge(self, node: NodeEntry, now_s: float) -> Health:
        until_s = NEVER_S
        if node.mode == sm.NODE_MODE_MAINTENANCE:
            until_s = now_s + (node.mode_until_ms - self._ctx.wall_ms()) / 1000
        return self.status(node.node_id).health.judge(now_s, maintenance_until_s=until_s)

    def _beat(self, node_id: int, health: NodeHealth, now_s: float) -> None:
        health.beat(now_s)
        if health.judge(now_s) is Health.ALIVE:
            self._up_until_s[node_id] = now_s + self._config.suspect_after_s
        else:
            self._up_until_s.pop(node_id, None)

    def seems_down(self, node_id: int) -> bool:
        """Whether the node is suspect or worse, after it had time for a heartbeat in this term."""
        now_s = self._ctx.clock()
        if now_s < self._up_until_s.get(node_id, NEVER_S):
            return False
        node = self._ctx.state.nodes.get(node_id)
        if node is None:
            return True
        judged = self.judge(node, now_s)
        in_grace = now_s < self._begun_s + self._config.leader_grace_s
        if not self.status(node_id).health.heard and in_grace:
            return judged is Health.DEAD
        return judged is not Health.ALIVE

    def give_up_s(self, node: NodeEntry, now_s: float, *, delay_s: float) -> float:
        """When recovery from this node's death may begin. A node in maintenance is waited for."""
        if node.mode == sm.NODE_MODE_MAINTENANCE and node.mode_until_ms > self._ctx.wall_ms():
            return float("inf")
        return self.status(node.node_id).health.give_up_s(now_s, delay_s=delay_s)

    async def run_once(self, now_s: float) -> None:
        """Store which nodes have died or come back, and end maintenance that is over."""
        for node in list(self._ctx.state.nodes.values()):
            if node.mode == sm.NODE_MODE_DECOMMISSIONED and not self._ctx.state.extents_on(node.node_id):
                continue
            try:
                await self._review(node, now_s)
            except NeveError as error:
                # Another change came first, or etcd is unavailable: the next pass tries again.
                log.warning("node_not_reviewed node_id=%d error=%s", node.node_id, error)

    async def _review(self, node: NodeEntry, now_s: float) -> None:
        judged = self.judge(node, now_s)
        new = node
        if judged is Health.DEAD and not node.dead:
            new = replace(new, health=sm.NODE_HEALTH_DEAD)
        elif judged is Health.ALIVE and node.dead:
            new = replace(new, health=sm.NODE_HEALTH_ALIVE)
        if node.mode == sm.NODE_MODE_MAINTENANCE and node.mode_until_ms <= self._ctx.wall_ms():
            new = replace(new, mode=sm.NODE_MODE_NORMAL, mode_until_ms=0, mode_reason="")
        if new is node:
            if judged is Health.ALIVE:
                self.status(node.node_id).health.stored_alive()
            return
        async with self._ctx.locks.hold(nodes=[node.node_id]):
            if self._ctx.state.nodes.get(node.node_id) != node:
                return
            changes = self._ctx.changes()
            changes.put(NODE, node, new)
            await self._ctx.commit(changes)
        if new.health != node.health:
            level = logging.ERROR if new.dead else logging.INFO
            age_s = self.status(node.node_id).health.age_s(now_s)
            log.log(level, "node_%s node_id=%d silent_s=%.1f", judged.value, node.node_id, age_s)
        if new.mode != node.mode:
            log.info("node_maintenance_over node_id=%d", node.node_id)

    # --- placement -------------------------------------------------------------------------------------------

    def choose(self, request: PlacementRequest) -> list[NodeChoice]:
        """Choose nodes for a new extent. Warnings are logged; `NotEnoughNodes` has the reason for each node."""
        wish = Wish(
            replicas=request.replicas,
            strict=request.strict,
            room_bytes_min=self._ctx.config.placing.free_bytes_min,
            room_bytes_liked=request.extent_bytes_max,
            avoid=request.avoid,
            excluded=request.excluded,
        )
        policy = policy_named(request.policy or self._ctx.config.defaults.placement)
        placed = policy.new_ensemble(self.candidates(), wish, self._ctx.rng)
        for warning in placed.warnings:
            log.warning("placement_not_as_wished policy=%s problem=%s", policy.name, warning)
        return [NodeChoice(node_id) for node_id in placed.node_ids]

    def check_policy(self, name: str) -> None:
        policy_named(name or self._ctx.config.defaults.placement)

    def candidates(self) -> list[Candidate]:
        return self._candidates.all()

    def _candidate(self, node: NodeEntry, now_s: float) -> Candidate:
        stopped_regions = self._ctx.state.settings.stopped_regions
        return candidate_of(node, self.status(node.node_id), self.judge(node, now_s), stopped_regions)

    # --- for people ------------------------------------------------------------------------------------------

    def node_record(self, node: NodeEntry, hold_ups: Sequence[str] = ()) -> sm.NodeRecord:
        now_s = self._ctx.clock()
        status = self.status(node.node_id)
        judged = Health.DEAD if node.dead else self.judge(node, now_s)
        stored = [
            en.DiskInfo(disk_uuid=d.disk_uuid, state=d.state, capacity_bytes=d.capacity_bytes) for d in node.disks
        ]
        return sm.NodeRecord(
            node_id=node.node_id,
            wire_address=node.wire_address,
            grpc_address=node.grpc_address,
            location=sm.NodeLocation(region=node.region, rack=node.rack, zone=node.zone, labels=dict(node.labels)),
            disks=status.disks or stored,
            mode=node.mode,
            health=HEALTH_MESSAGES[judged],
            version=common_pb2.Version(protocol=node.protocol, build=node.build),
            heartbeat_age_ms=int(1000 * status.health.age_s(now_s)),
            load=status.load,
            hold_ups=hold_ups,
        )
