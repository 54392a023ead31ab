"""Caches of placement: the nodes as candidates, and the ensembles (sets of nodes) chosen ahead of time.

Examining every node for each new extent would cost more than the rest of its creation: with a hundred nodes it takes
longer than etcd. What distinguishes nodes, room and load, arrives with heartbeats, which are rarer than new extents.

Invariants: a node whose record has changed, or that sent a heartbeat, is examined again before the next choice;
            so are all nodes after `CANDIDATES_KEPT_S`, or when the cluster's settings have changed;
            an ensemble is used only while every node's registration is as it was when it was chosen, and for at most
            `ENSEMBLES_KEPT_S`;
            a request that avoids or excludes nodes gets a choice of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import NodeEntry, Settings
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.core.health import NEVER_S, Health
from neve.stream_manager.nodes.entries import MODE_WORDS
from neve.stream_manager.placement.placement import Candidate
from neve.stream_manager.term.context import NodeChoice, PlacementRequest

CANDIDATES_KEPT_S = 0.5  # far shorter than the silence that makes a node suspect

ENSEMBLES_KEPT_S = 0.25
ENSEMBLES_AHEAD = 24  # per policy; a busy manager uses them in rotation
POLICIES_MAX = 100  # distinct policies: names, replica counts, sizes


class Reported(Protocol):
    """What a node has reported in this term."""

    @property
    def disks(self) -> Sequence[en.DiskInfo]: ...  # empty: no heartbeat has arrived
    @property
    def load(self) -> sm.NodeLoad: ...
    @property
    def copies(self) -> Mapping[int, en.CopyStatusReply]: ...


def candidate_of(node: NodeEntry, reported: Reported, judged: Health, stopped_regions: Collection[str]) -> Candidate:
    writable = [disk for disk in reported.disks if disk.state == en.DiskInfo.WRITABLE]
    rooms = [disk.free_bytes for disk in writable]
    capacity = sum(disk.capacity_bytes for disk in writable)
    if not reported.disks:  # use the disks of its registration
        rooms = [disk.capacity_bytes for disk in node.disks if disk.state == en.DiskInfo.WRITABLE]
        capacity = sum(rooms)
    if node.dead or judged is Health.DEAD:
        barred = "dead" if judged is Health.DEAD else "back from the dead, and not steady for long enough"
    elif node.mode != sm.NODE_MODE_NORMAL:
        barred = MODE_WORDS.get(node.mode, "in an unknown mode")
    elif node.region in stopped_regions:
        barred = f"region {node.region!r} is stopped"
    elif not rooms:
        reasons = [f"disk {disk.disk_uuid}: {disk.reason or 'not writable'}" for disk in reported.disks[:3]]
        barred = "no writable disk" + (f" ({'; '.join(reasons)})" if reasons else "")
    else:
        barred = ""
    running = sum(copy.state == en.CopyStatusReply.RUNNING for copy in reported.copies.values())
    return Candidate(
        node_id=node.node_id,
        region=node.region,
        rack=node.rack,
        barred=barred,
        alive=judged is Health.ALIVE,
        room_bytes=max(rooms, default=0),
        capacity_bytes=capacity,
        free_bytes=sum(rooms),
        append_bytes_per_s=reported.load.append_bytes_per_s,
        copies=reported.load.copies or running,
    )


class Candidates:
    """All nodes as candidates for placement."""

    def __init__(
        self, state: State, clock: Callable[[], float], make_candidate: Callable[[NodeEntry, float], Candidate]
    ) -> None:
        self._state = state
        self._clock = clock
        self._make_candidate = make_candidate
        self._kept: dict[int, Candidate] = {}
        self._kept_until_s = NEVER_S
        self._changed: dict[int, None] = {}  # nodes to examine again
        self._settings_seen: Settings | None = None
        state.listen(NODE, self._on_node)

    def all(self) -> list[Candidate]:
        now_s, state = self._clock(), self._state
        if now_s >= self._kept_until_s or self._settings_seen is not state.settings:
            self._kept = {node.node_id: self._make_candidate(node, now_s) for node in state.nodes.values()}
            self._kept_until_s, self._settings_seen = now_s + CANDIDATES_KEPT_S, state.settings
        else:
            for node_id in self._changed:
                if (node := state.nodes.get(node_id)) is not None:
                    self._kept[node_id] = self._make_candidate(node, now_s)
                else:
                    self._kept.pop(node_id, None)
        self._changed.clear()
        return list(self._kept.values())

    def note_changed(self, node_id: int) -> None:
        """Note a heartbeat or a registration of this node."""
        self._changed[node_id] = None

    def _on_node(self, old: NodeEntry | None, new: NodeEntry | None) -> None:
        changed = new or old
        assert changed is not None
        self._changed[changed.node_id] = None


class Ensembles:
    """Nodes for new extents, chosen ahead of time for each policy."""

    def __init__(
        self,
        state: State,
        choose: Callable[[PlacementRequest], list[NodeChoice]],
        clock: Callable[[], float],
        *,
        default: str,
    ) -> None:
        self._state = state
        self._choose_anew = choose
        self._clock = clock
        self._default = default  # name of the policy for streams that name none
        self._chosen: dict[StreamPolicy, list[list[NodeChoice]]] = {}
        self._next = 0
        self._since_s = 0.0
        state.listen(NODE, self._on_node)

    def choose(
        self, policy: StreamPolicy, *, avoid: frozenset[int] = frozenset(), excluded: frozenset[int] = frozenset()
    ) -> list[NodeChoice]:
        """Choose as many different nodes as replicas. `NotEnoughNodes` says why that is not possible."""
        if avoid or excluded:
            return self._choose(policy, avoid, excluded)
        now_s = self._clock()
        if now_s - self._since_s > ENSEMBLES_KEPT_S or len(self._chosen) > POLICIES_MAX:
            self._chosen.clear()
            self._since_s = now_s
        ahead = self._chosen.get(policy)
        if ahead is None:
            ahead = self._chosen[policy] = []
        if len(ahead) < ENSEMBLES_AHEAD:
            ahead.append(self._choose(policy, avoid, excluded))
            return ahead[-1]
        self._next += 1
        return ahead[self._next % ENSEMBLES_AHEAD]

    def _choose(self, policy: StreamPolicy, avoid: frozenset[int], excluded: frozenset[int]) -> list[NodeChoice]:
        request = PlacementRequest(
            replicas=policy.replicas,
            extent_bytes_max=policy.extent_bytes_max,
            policy=policy.placement or self._default,
            strict=policy.strict,
            avoid=avoid,
            excluded=excluded,
        )
        choices = self._choose_anew(request)
        assert len({choice.node_id for choice in choices}) == policy.replicas, choices
        return choices

    def _on_node(self, old: NodeEntry | None, new: NodeEntry | None) -> None:
        self._chosen.clear()
