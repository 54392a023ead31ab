"""When placement looks at the nodes again, and when it chooses again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.record_kinds import NODE, SETTINGS
from neve.stream_manager.metadata.records import NODES, Disk, NodeEntry, Settings, id_text
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.core.health import Health
from neve.stream_manager.placement import cache as placement_cache
from neve.stream_manager.placement.cache import Candidates, Ensembles, candidate_of
from neve.stream_manager.placement.placement import Candidate
from neve.stream_manager.term.context import NodeChoice, PlacementRequest

GIB = 1 << 30
POLICY = StreamPolicy(replicas=2, extent_bytes_max=GIB)


@dataclass
class Heard:
    """What a node has reported, as the registry keeps it."""

    disks: Sequence[en.DiskInfo] = ()
    load: sm.NodeLoad = field(default_factory=sm.NodeLoad)
    copies: dict[int, en.CopyStatusReply] = field(default_factory=dict)


class Cluster:
    """Nodes in a state, a clock that stands, and a placement that takes the next nodes at each choice."""

    def __init__(self, *node_ids: int) -> None:
        self.state = State(b"/test/")
        self.now_s = 100.0
        self.looked_at: Counter[int] = Counter()
        self.requests: list[PlacementRequest] = []
        for node_id in node_ids:
            self.put(NodeEntry(node_id, f"host{node_id}:3501"))
        self.candidates = Candidates(self.state, lambda: self.now_s, self.make_candidate)
        self.ensembles = Ensembles(self.state, self.choose, lambda: self.now_s, default="rack")

    def put(self, new: NodeEntry) -> None:
        changes = Changes(self.state.root)
        changes.put(NODE, self.state.nodes.get(new.node_id), new)
        self.state.apply(changes, self.state.revision + 1)

    def delete(self, node_id: int) -> None:
        self.state.delete_key(self.state.root + NODES + id_text(node_id))

    def make_candidate(self, node: NodeEntry, now_s: float) -> Candidate:
        self.looked_at[node.node_id] += 1
        return Candidate(node_id=node.node_id, rack=node.rack)

    def choose(self, request: PlacementRequest) -> list[NodeChoice]:
        ids, first = sorted(self.state.nodes), len(self.requests)
        self.requests.append(request)
        return [NodeChoice(ids[(first + number) % len(ids)]) for number in range(request.replicas)]

    def chosen(self, policy: StreamPolicy = POLICY, **how: Any) -> list[int]:
        return [choice.node_id for choice in self.ensembles.choose(policy, **how)]


# --- candidates -----------------------------------------------------------------------------------------------


def test_nodes_are_looked_at_once_in_a_while_and_those_that_changed_at_once() -> None:
    cluster = Cluster(1, 2, 3)
    for _ in range(10):
        assert [node.node_id for node in cluster.candidates.all()] == [1, 2, 3]
    assert cluster.looked_at == {1: 1, 2: 1, 3: 1}
    cluster.candidates.note_changed(2)  # a heartbeat
    cluster.candidates.all()
    cluster.candidates.all()
    assert cluster.looked_at == {1: 1, 2: 2, 3: 1}
    cluster.now_s += placement_cache.CANDIDATES_KEPT_S
    cluster.candidates.all()
    assert cluster.looked_at == {1: 2, 2: 3, 3: 2}


def test_a_node_whose_record_changes_is_a_new_candidate_one_that_is_gone_is_none() -> None:
    cluster = Cluster(1, 2)
    cluster.candidates.all()
    cluster.put(replace(cluster.state.nodes[2], rack="r9"))
    cluster.put(NodeEntry(3, "host3:3501"))
    assert [(node.node_id, node.rack) for node in cluster.candidates.all()] == [(1, ""), (2, "r9"), (3, "")]
    assert cluster.looked_at == {1: 1, 2: 2, 3: 1}
    cluster.delete(1)
    assert [node.node_id for node in cluster.candidates.all()] == [2, 3]


def test_all_nodes_are_looked_at_when_the_settings_of_the_cluster_change() -> None:
    cluster = Cluster(1, 2)
    cluster.candidates.all()
    changes = Changes(cluster.state.root)
    changes.put(SETTINGS, None, Settings(stopped_regions=("us",)))
    cluster.state.apply(changes, cluster.state.revision + 1)
    cluster.candidates.all()
    assert cluster.looked_at == {1: 2, 2: 2}


DISKS = (
    en.DiskInfo(disk_uuid="a", state=en.DiskInfo.WRITABLE, capacity_bytes=9 * GIB, free_bytes=4 * GIB),
    en.DiskInfo(disk_uuid="b", state=en.DiskInfo.WRITABLE, capacity_bytes=9 * GIB, free_bytes=7 * GIB),
    en.DiskInfo(disk_uuid="c", state=en.DiskInfo.READ_ONLY, capacity_bytes=9 * GIB, free_bytes=8 * GIB, reason="full"),
)
ENTRY = NodeEntry(1, "host1:3501", region="eu", rack="r1", disks=(Disk("a", en.DiskInfo.WRITABLE, 5 * GIB),))


def test_room_is_that_of_writable_disks() -> None:
    made = candidate_of(ENTRY, Heard(DISKS), Health.ALIVE, ())
    assert (made.room_bytes, made.free_bytes, made.capacity_bytes) == (7 * GIB, 11 * GIB, 18 * GIB)
    assert (made.region, made.rack, made.alive, made.barred) == ("eu", "r1", True, "")


def test_a_node_without_a_heartbeat_has_the_room_that_it_registered_with() -> None:
    made = candidate_of(ENTRY, Heard(), Health.SUSPECT, ())
    assert (made.room_bytes, made.free_bytes, made.capacity_bytes) == (5 * GIB, 5 * GIB, 5 * GIB)
    assert (made.alive, made.barred) == (False, "")


def test_copies_are_those_that_the_load_says_or_those_that_run() -> None:
    copies = {
        1: en.CopyStatusReply(task_id=1, state=en.CopyStatusReply.RUNNING),
        2: en.CopyStatusReply(task_id=2, state=en.CopyStatusReply.DONE),
    }
    assert candidate_of(ENTRY, Heard(DISKS, copies=copies), Health.ALIVE, ()).copies == 1
    assert candidate_of(ENTRY, Heard(DISKS, sm.NodeLoad(copies=5), copies), Health.ALIVE, ()).copies == 5


@pytest.mark.parametrize(
    ("node", "disks", "judged", "why"),
    [
        (ENTRY, DISKS, Health.DEAD, "dead"),
        (replace(ENTRY, health=sm.NODE_HEALTH_DEAD), DISKS, Health.SUSPECT, "back from the dead"),
        (replace(ENTRY, mode=sm.NODE_MODE_DRAINING), DISKS, Health.ALIVE, "draining"),
        (replace(ENTRY, region="us"), DISKS, Health.ALIVE, "region 'us' is stopped"),
        (ENTRY, DISKS[2:], Health.ALIVE, "no writable disk (disk c: full)"),
        (replace(ENTRY, disks=()), (), Health.ALIVE, "no writable disk"),
    ],
)
def test_a_node_that_must_take_nothing_says_why(
    node: NodeEntry, disks: Sequence[en.DiskInfo], judged: Health, why: str
) -> None:
    assert candidate_of(node, Heard(disks), judged, ("us",)).barred.startswith(why)


# --- ensembles ------------------------------------------------------------------------------------------------


def test_a_busy_manager_chooses_a_few_times_and_goes_round_among_these() -> None:
    cluster = Cluster(1, 2, 3)
    for _ in range(4 * placement_cache.ENSEMBLES_AHEAD):
        cluster.chosen()
    assert len(cluster.requests) == placement_cache.ENSEMBLES_AHEAD
    again = Counter(tuple(cluster.chosen()) for _ in range(3 * placement_cache.ENSEMBLES_AHEAD))
    assert set(again) == {(1, 2), (2, 3), (3, 1)}
    assert len(set(again.values())) == 1  # each as often as the others
    cluster.now_s += placement_cache.ENSEMBLES_KEPT_S + 0.01
    cluster.chosen()
    assert len(cluster.requests) == placement_cache.ENSEMBLES_AHEAD + 1


def test_a_node_that_changes_ends_what_was_chosen() -> None:
    cluster = Cluster(1, 2, 3)
    for _ in range(placement_cache.ENSEMBLES_AHEAD):
        cluster.chosen()
    cluster.put(replace(cluster.state.nodes[1], mode=sm.NODE_MODE_READ_ONLY))
    cluster.chosen()
    assert len(cluster.requests) == placement_cache.ENSEMBLES_AHEAD + 1


def test_a_request_that_avoids_or_excludes_nodes_is_chosen_for_itself() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.chosen(avoid=frozenset({1}))
    cluster.chosen(excluded=frozenset({2}))
    assert [(one.avoid, one.excluded) for one in cluster.requests] == [
        (frozenset({1}), frozenset()),
        (frozenset(), frozenset({2})),
    ]
    cluster.chosen()
    assert (cluster.requests[-1].avoid, cluster.requests[-1].excluded) == (frozenset(), frozenset())
    assert len(cluster.requests) == 3  # neither of the first two was used for it


def test_each_policy_is_asked_for_as_it_is() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.chosen()
    cluster.chosen(POLICY._replace(replicas=3, placement="region", strict=True))
    found = [(one.replicas, one.extent_bytes_max, one.policy, one.strict) for one in cluster.requests]
    assert found == [(2, GIB, "rack", False), (3, GIB, "region", True)]


def test_many_policies_do_not_fill_memory() -> None:
    cluster = Cluster(1, 2)
    for number in range(3 * placement_cache.POLICIES_MAX):
        cluster.chosen(POLICY._replace(extent_bytes_max=GIB + number))
        assert len(cluster.ensembles._chosen) <= placement_cache.POLICIES_MAX + 1
