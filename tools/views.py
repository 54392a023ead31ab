"""The managers' replies as rows for people and as values for scripts. Pure: messages in, plain values out.

Invariants: the two say the same; JSON has exact numbers with units in their names, rows have what a person compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neve.client.command.tables import Cell, human_age, human_bytes
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm

Value = dict[str, object]

NODE_COLUMNS = (
    "node",
    "health",
    "mode",
    "address",
    "location",
    "disks",
    "used",
    "free",
    "extents",
    "heartbeat",
    "notes",
)
EXTENT_COLUMNS = ("extent", "state", "length", "eversion", "replicas", "streams")
TASK_COLUMNS = ("extent", "kind", "left", "lost", "target", "progress", "attempts", "age", "last error")
QUOTA_COLUMNS = ("prefix", "streams", "extents", "bytes")


def mode_name(mode: int) -> str:
    return _enum_name(sm.NodeMode, mode, "NODE_MODE_")


def health_name(health: int) -> str:
    return _enum_name(sm.NodeHealth, health, "NODE_HEALTH_")


def some(notes: Sequence[str], shown: int = 2) -> str:
    """The first ones, for a line; JSON has them all."""
    more = f"; and {len(notes) - shown} more" if len(notes) > shown else ""
    return "; ".join(notes[:shown]) + more


def takes_extents(node: sm.NodeRecord) -> bool:
    """May a new extent be placed here?"""
    return (
        node.health == sm.NODE_HEALTH_ALIVE
        and node.mode == sm.NODE_MODE_NORMAL
        and any(disk.state == pb.DiskInfo.WRITABLE for disk in node.disks)
    )


# --- the whole cluster -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the cluster well, and what if one more node stops?"""

    data_in_danger: bool  # one more lost node would leave extents without a readable replica
    writes_in_danger: bool  # one more lost node would leave too few for a new extent
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems


def verdict(status: sm.ClusterStatusReply, *, replicas: int) -> Verdict:
    """`replicas` is how many a stream has by default."""
    usable = sum(map(takes_extents, status.nodes))
    problems = []
    if not status.leader.address:
        problems.append("no manager leads")
    if status.under_replicated:
        problems.append(f"{status.under_replicated} extents have fewer replicas than they should")
    if status.one_loss_from_danger:
        problems.append(
            f"{status.one_loss_from_danger} extents would lose their last readable replica with one more node"
        )
    for health, word in ((sm.NODE_HEALTH_DEAD, "dead"), (sm.NODE_HEALTH_SUSPECT, "suspect")):
        names = [
            str(node.node_id)
            for node in status.nodes
            if node.health == health and node.mode != sm.NODE_MODE_DECOMMISSIONED
        ]
        if names:
            problems.append(f"node {', '.join(names)} {'is' if len(names) == 1 else 'are'} {word}")
    problems += [
        f"disk {disk.disk_uuid} of node {node.node_id} is {_disk_state(disk.state)}: {disk.reason or 'no reason given'}"
        for node in status.nodes
        for disk in node.disks
        if disk.state != pb.DiskInfo.WRITABLE and node.mode != sm.NODE_MODE_DECOMMISSIONED
    ]
    if usable < replicas:
        problems.append(f"{usable} nodes can take an extent, and a stream needs {replicas}")
    return Verdict(status.one_loss_from_danger > 0, usable <= replicas, tuple(problems))


def status_rows(status: sm.ClusterStatusReply, *, replicas: int) -> list[tuple[str, str]]:
    """One screen: label and text."""
    judged = verdict(status, replicas=replicas)
    alive = sum(node.health == sm.NODE_HEALTH_ALIVE for node in status.nodes)
    used, capacity = disk_bytes(status.nodes)
    if judged.data_in_danger:
        danger = f"YES: {status.one_loss_from_danger} extents would have no readable replica left"
    else:
        danger = "no: every extent would keep a readable replica"
    if judged.writes_in_danger:
        usable = sum(map(takes_extents, status.nodes))
        danger += f"; but new extents need {replicas} nodes, and {usable} can take one now"
    return [
        ("cluster", status.cluster),
        ("leader", status.leader.address or "none"),
        ("managers", ", ".join(status.managers) or "none known"),
        ("nodes", f"{alive} alive of {len(status.nodes)}, {sum(map(takes_extents, status.nodes))} take extents"),
        ("disks", f"{human_bytes(used)} used of {human_bytes(capacity)}"),
        ("streams", f"{status.streams}"),
        ("extents", f"{status.extents}, {status.open_extents} open"),
        ("data", f"{human_bytes(status.bytes)} sealed, each byte counted once"),
        ("under-replicated", f"{status.under_replicated}"),
        ("not yet confirmed", f"{status.unconfirmed}"),
        ("recovery tasks", f"{status.tasks}"),
        ("in danger if one more node stops?", danger),
        ("problems", "\n".join(judged.problems) or "none"),
    ]


def status_value(status: sm.ClusterStatusReply, *, replicas: int) -> Value:
    judged = verdict(status, replicas=replicas)
    used, capacity = disk_bytes(status.nodes)
    return {
        "cluster": status.cluster,
        "leader": status.leader.address,
        "leader_create_revision": status.leader.create_revision,
        "managers": list(status.managers),
        "revision": status.revision,
        "streams": status.streams,
        "extents": status.extents,
        "open_extents": status.open_extents,
        "bytes": status.bytes,
        "disk_used_bytes": used,
        "disk_capacity_bytes": capacity,
        "under_replicated": status.under_replicated,
        "unconfirmed": status.unconfirmed,
        "one_loss_from_danger": status.one_loss_from_danger,
        "tasks": status.tasks,
        "data_in_danger": judged.data_in_danger,
        "writes_in_danger": judged.writes_in_danger,
        "good": judged.good,
        "problems": list(judged.problems),
        "nodes": [node_value(node) for node in status.nodes],
    }


def disk_bytes(nodes: Sequence[sm.NodeRecord]) -> tuple[int, int]:
    """Used and capacity of all disks together."""
    disks = [disk for node in nodes for disk in node.disks]
    return sum(disk.capacity_bytes - disk.free_bytes for disk in disks), sum(disk.capacity_bytes for disk in disks)


# --- lists -------------------------------------------------------------------------------------------------------


def node_row(node: sm.NodeRecord) -> list[Cell]:
    used, capacity = disk_bytes([node])
    writable = sum(disk.state == pb.DiskInfo.WRITABLE for disk in node.disks)
    place = "/".join(part for part in (node.location.region, node.location.zone, node.location.rack) if part)
    return [
        node.node_id,
        health_name(node.health),
        mode_name(node.mode),
        node.wire_address,
        place,
        f"{writable} of {len(node.disks)}",
        human_bytes(used),
        human_bytes(capacity - used),
        sum(disk.extents for disk in node.disks),
        human_age(node.heartbeat_age_ms / 1000),
        some([*(disk.reason for disk in node.disks if disk.reason), *node.hold_ups]),
    ]


def node_value(node: sm.NodeRecord) -> Value:
    return {
        "node_id": node.node_id,
        "health": health_name(node.health),
        "mode": mode_name(node.mode),
        "wire_address": node.wire_address,
        "grpc_address": node.grpc_address,
        "region": node.location.region,
        "zone": node.location.zone,
        "rack": node.location.rack,
        "labels": dict(node.location.labels),
        "heartbeat_age_ms": node.heartbeat_age_ms,
        "version": node.version.build,
        "hold_ups": list(node.hold_ups),
        "load": {
            "appends_per_s": node.load.appends_per_s,
            "append_bytes_per_s": node.load.append_bytes_per_s,
            "read_bytes_per_s": node.load.read_bytes_per_s,
            "append_ms_p99": node.load.append_ms_p99,
            "connections": node.load.connections,
            "copies": node.load.copies,
        },
        "disks": [
            {
                "disk_uuid": disk.disk_uuid,
                "state": _disk_state(disk.state),
                "capacity_bytes": disk.capacity_bytes,
                "free_bytes": disk.free_bytes,
                "extents": disk.extents,
                "reason": disk.reason,
            }
            for disk in node.disks
        ],
    }


def extent_row(extent: sm.ExtentInfo) -> list[Cell]:
    sealed = extent.HasField("seal")
    replicas = [
        f"{each.replica.node_id}{'' if each.confirmed or not sealed else '?'}" for each in extent.replicas
    ]  # ? has not confirmed the seal
    return [
        extent.extent_id,
        "sealed" if sealed else "open",
        human_bytes(extent.seal.length) if sealed else "-",
        extent.eversion,
        " ".join(replicas),
        " ".join(map(str, extent.stream_ids)),
    ]


def extent_value(extent: sm.ExtentInfo) -> Value:
    sealed = extent.HasField("seal")
    return {
        "extent_id": extent.extent_id,
        "sealed": sealed,
        "length": extent.seal.length if sealed else None,
        "digest": extent.seal.digest.hex() if sealed else "",
        "eversion": extent.eversion,
        "extent_bytes_max": extent.extent_bytes_max,
        "created_ms": extent.created_ms,
        "stream_ids": list(extent.stream_ids),
        "replicas": [
            {
                "node_id": each.replica.node_id,
                "disk_uuid": each.replica.disk_uuid,
                "address": each.address,
                "confirmed": each.confirmed,
            }
            for each in extent.replicas
        ],
    }


def task_row(task: sm.RecoveryTask, *, now_ms: int) -> list[Cell]:
    share = f"{task.copied_bytes / task.total_bytes:.0%}" if task.total_bytes else "-"
    return [
        task.extent_id,
        _task_kind(task.kind),
        task.replicas_left,
        task.lost.node_id or None,
        task.target.node_id or None,
        share,
        task.attempts,
        human_age(max(0, now_ms - task.created_ms) / 1000) if task.created_ms else None,
        task.last_error,
    ]


def task_value(task: sm.RecoveryTask) -> Value:
    return {
        "task_id": task.task_id,
        "extent_id": task.extent_id,
        "kind": _task_kind(task.kind),
        "lost_node_id": task.lost.node_id,
        "target_node_id": task.target.node_id,
        "replicas_left": task.replicas_left,
        "copied_bytes": task.copied_bytes,
        "total_bytes": task.total_bytes,
        "attempts": task.attempts,
        "created_ms": task.created_ms,
        "last_error": task.last_error,
    }


def quota_row(usage: sm.QuotaUsage) -> list[Cell]:
    def bound(used: int, limit: int) -> str:
        return f"{used} of {limit}" if limit else f"{used}, unbounded"

    quota = usage.quota
    size = f"{human_bytes(usage.bytes)} of {human_bytes(quota.bytes_max)}" if quota.bytes_max else ""
    return [
        quota.prefix,
        bound(usage.streams, quota.streams_max),
        bound(usage.extents, quota.extents_max),
        size or f"{human_bytes(usage.bytes)}, unbounded",
    ]


def quota_value(usage: sm.QuotaUsage) -> Value:
    quota = usage.quota
    return {
        "prefix": quota.prefix,
        "streams": usage.streams,
        "streams_max": quota.streams_max,
        "extents": usage.extents,
        "extents_max": quota.extents_max,
        "bytes": usage.bytes,
        "bytes_max": quota.bytes_max,
    }


def _disk_state(state: int) -> str:
    return _enum_name(pb.DiskInfo.State, state)


def _task_kind(kind: int) -> str:
    return _enum_name(sm.RecoveryTask.Kind, kind)


def _enum_name(enum: Any, value: int, prefix: str = "") -> str:
    try:
        return str(enum.Name(value)).removeprefix(prefix).lower().replace("_", "-")
    except ValueError:
        return f"unknown {value}"  # a newer manager's word
