"""What an operator is told: the verdict on a cluster, and rows and JSON that say the same."""

from __future__ import annotations

import json

from neve.client.command import streams as stream_view
from neve.client.streams.types import Stream
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.tools import views

GIB = 1 << 30


def node(node_id: int, **fields: object) -> sm.NodeRecord:
    record = sm.NodeRecord(
        node_id=node_id,
        wire_address=f"10.0.0.{node_id}:3501",
        health=sm.NODE_HEALTH_ALIVE,
        mode=sm.NODE_MODE_NORMAL,
        heartbeat_age_ms=400,
        location=sm.NodeLocation(region="eu", rack=f"r{node_id}"),
        disks=[
            pb.DiskInfo(
                disk_uuid=f"d{node_id}",
                state=pb.DiskInfo.WRITABLE,
                capacity_bytes=10 * GIB,
                free_bytes=4 * GIB,
                extents=7,
            )
        ],
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def cluster(nodes: int = 4, **fields: object) -> sm.ClusterStatusReply:
    status = sm.ClusterStatusReply(
        cluster="main",
        leader=common_pb2.Leader(address="127.0.0.1:3402", create_revision=9),
        managers=["127.0.0.1:3401", "127.0.0.1:3402"],
        streams=3,
        extents=20,
        open_extents=3,
        bytes=5 * GIB,
        nodes=[node(number) for number in range(1, nodes + 1)],
    )
    for name, value in fields.items():
        setattr(status, name, value)
    return status


def rows(status: sm.ClusterStatusReply) -> dict[str, str]:
    return dict(views.status_rows(status, replicas=3))


def test_a_healthy_cluster_has_no_problems_and_survives_one_more_loss() -> None:
    judged = views.verdict(cluster(), replicas=3)
    assert judged == views.Verdict(data_in_danger=False, writes_in_danger=False, problems=())
    shown = rows(cluster())
    assert shown["leader"] == "127.0.0.1:3402"
    assert shown["nodes"] == "4 alive of 4, 4 take extents"
    assert shown["disks"] == "24.0 GiB used of 40.0 GiB"
    assert shown["problems"] == "none"
    assert shown["in danger if one more node stops?"].startswith("no")


def test_extents_with_one_readable_replica_are_in_danger() -> None:
    status = cluster(one_loss_from_danger=2, under_replicated=5)
    judged = views.verdict(status, replicas=3)
    assert judged.data_in_danger
    assert not judged.good
    assert "YES: 2 extents" in rows(status)["in danger if one more node stops?"]
    assert "5 extents have fewer replicas" in rows(status)["problems"]


def test_with_as_many_nodes_as_replicas_writes_are_in_danger_and_with_fewer_it_is_a_problem() -> None:
    exact = views.verdict(cluster(3), replicas=3)
    assert (exact.writes_in_danger, exact.good) == (True, True)
    assert "new extents need 3 nodes, and 3 can" in rows(cluster(3))["in danger if one more node stops?"]
    few = views.verdict(cluster(2), replicas=3)
    assert any("2 nodes can take an extent" in problem for problem in few.problems)


def test_dead_suspect_leaderless_and_failing_disks_are_problems_and_a_decommissioned_node_is_not() -> None:
    status = cluster(5)
    status.nodes[0].health = sm.NODE_HEALTH_DEAD
    status.nodes[1].health = sm.NODE_HEALTH_SUSPECT
    status.nodes[2].disks[0].state = pb.DiskInfo.READ_ONLY
    status.nodes[2].disks[0].reason = "it is full"
    status.nodes[4].health = sm.NODE_HEALTH_DEAD
    status.nodes[4].mode = sm.NODE_MODE_DECOMMISSIONED
    status.ClearField("leader")
    text = "\n".join(views.verdict(status, replicas=3).problems)
    for words in (
        "no manager leads",
        "node 1 is dead",
        "node 2 is suspect",
        "disk d3 of node 3 is read-only: it is full",
    ):
        assert words in text
    assert "5" not in text.replace("d5", "")


def test_only_an_alive_normal_node_with_a_writable_disk_takes_extents() -> None:
    assert views.takes_extents(node(1))
    assert not views.takes_extents(node(1, health=sm.NODE_HEALTH_SUSPECT))
    for mode in (sm.NODE_MODE_READ_ONLY, sm.NODE_MODE_MAINTENANCE, sm.NODE_MODE_DRAINING, sm.NODE_MODE_DECOMMISSIONED):
        assert not views.takes_extents(node(1, mode=mode))
    full = node(1)
    full.disks[0].state = pb.DiskInfo.READ_ONLY
    assert not views.takes_extents(full)


def test_every_value_is_json_and_every_row_has_its_columns() -> None:
    stream = sm.StreamInfo(
        stream_id=5, name="events", extent_ids=[7, 8], policy=sm.StreamPolicy(replicas=3), labels={"b": "2", "a": "1"}
    )
    replicas = [
        sm.ExtentReplica(replica=common_pb2.Replica(node_id=1, disk_uuid="d1"), confirmed=True),
        sm.ExtentReplica(replica=common_pb2.Replica(node_id=2, disk_uuid="d2")),
    ]
    sealed = sm.ExtentInfo(
        extent_id=7, replicas=replicas, seal=common_pb2.Seal(length=2048, digest=b"\x01\xff"), stream_ids=[5]
    )
    open_one = sm.ExtentInfo(extent_id=8, replicas=replicas)
    task = sm.RecoveryTask(
        extent_id=7, kind=sm.RecoveryTask.COPY, copied_bytes=512, total_bytes=2048, created_ms=1000, replicas_left=1
    )
    usage = sm.QuotaUsage(quota=sm.Quota(prefix="team=", streams_max=3), streams=2, bytes=4096)

    assert stream_view.row(Stream.of(stream)) == [5, "events", 2, 3, True, False, "-", "a=1 b=2"]
    assert views.extent_row(sealed) == [7, "sealed", "2.0 KiB", 0, "1 2?", "5"]
    assert views.extent_row(open_one)[1:5] == ["open", "-", 0, "1 2"]
    assert views.task_row(task, now_ms=61_000)[1:8] == ["copy", 1, None, None, "25%", 0, "60 s"]
    assert views.quota_row(usage) == ["team=", "2 of 3", "0, unbounded", "4.0 KiB, unbounded"]
    assert views.node_row(node(1))[:8] == [
        1,
        "alive",
        "normal",
        "10.0.0.1:3501",
        "eu/r1",
        "1 of 1",
        "6.0 GiB",
        "4.0 GiB",
    ]

    assert len(views.node_row(node(1))) == len(views.NODE_COLUMNS)
    assert len(stream_view.row(Stream.of(stream))) == len(stream_view.COLUMNS)
    assert len(views.extent_row(sealed)) == len(views.EXTENT_COLUMNS)
    assert len(views.task_row(task, now_ms=0)) == len(views.TASK_COLUMNS)
    assert len(views.quota_row(usage)) == len(views.QUOTA_COLUMNS)

    values = [
        views.node_value(node(1)),
        stream_view.value(Stream.of(stream)),
        views.extent_value(sealed),
        views.extent_value(open_one),
        views.task_value(task),
        views.quota_value(usage),
        views.status_value(cluster(), replicas=3),
    ]
    assert json.loads(json.dumps(values)) == values
    assert (values[2]["length"], values[2]["digest"], values[3]["length"]) == (2048, "01ff", None)


def test_a_line_shows_some_of_many_notes() -> None:
    assert views.some([]) == ""
    assert views.some(["a", "b"]) == "a; b"
    assert views.some(["a", "b", "c", "d"]) == "a; b; and 2 more"


def test_a_word_of_a_newer_manager_is_shown_and_does_not_fail() -> None:
    assert views.mode_name(99) == "unknown 99"
    assert views.health_name(sm.NODE_HEALTH_DEAD) == "dead"
    assert views.mode_name(sm.NODE_MODE_READ_ONLY) == "read-only"
