"""Records as callers see them: stream, extent and node descriptions, made from a state."""

from __future__ import annotations

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager import record_codec as codec
from neve.stream_manager.records import Extent, NodeEntry, Stream, Task
from neve.stream_manager.state import State


def stream_info(stream: Stream) -> sm.StreamInfo:
    return sm.StreamInfo(
        stream_id=stream.stream_id,
        name=stream.name,
        lock=stream.lock,
        extent_ids=stream.extent_ids,
        sealed=stream.sealed,
        policy=codec.policy_message(stream.policy),
        labels=dict(stream.labels),
        version=stream.version,
        mod_revision=stream.mod_revision,
        created_ms=stream.created_ms,
        truncated_before=stream.truncated_before,
    )


def extent_info(state: State, extent: Extent, *, with_streams: bool = False) -> sm.ExtentInfo:
    info = sm.ExtentInfo(
        extent_id=extent.extent_id,
        eversion=extent.eversion,
        extent_bytes_max=extent.extent_bytes_max,
        created_ms=extent.created_ms,
        mod_revision=extent.mod_revision,
    )
    add, nodes = info.replicas.add, state.nodes
    for node_id, disk_uuid, incarnation in extent.replicas:
        node = nodes.get(node_id)
        added = add(address=node.wire_address, grpc_address=node.grpc_address) if node is not None else add()
        replica = added.replica  # filled in place: making messages and copying them in takes twice as long
        replica.node_id = node_id
        replica.disk_uuid = disk_uuid
        replica.incarnation = incarnation
        if node_id in extent.confirmed:
            added.confirmed = True
    if with_streams:
        info.stream_ids.extend(state.streams_of(extent.extent_id))
    if extent.seal is not None:
        info.seal.length, info.seal.eversion, info.seal.digest = extent.seal
    return info


def node_record(node: NodeEntry) -> sm.NodeRecord:
    """What metadata alone knows: on a follower there is no more. The leader adds load and the age of heartbeats."""
    return sm.NodeRecord(
        node_id=node.node_id,
        wire_address=node.wire_address,
        grpc_address=node.grpc_address,
        location=sm.NodeLocation(region=node.region, rack=node.rack, zone=node.zone, labels=dict(node.labels)),
        disks=[
            en.DiskInfo(disk_uuid=disk.disk_uuid, state=disk.state, capacity_bytes=disk.capacity_bytes)
            for disk in node.disks
        ],
        mode=node.mode,
        health=node.health,
        version=common_pb2.Version(protocol=node.protocol, build=node.build),
    )


def task_record(task: Task) -> sm.RecoveryTask:
    record = sm.RecoveryTask(
        task_id=task.task_id,
        extent_id=task.extent_id,
        kind=task.kind,
        created_ms=task.created_ms,
        attempts=task.attempts,
        last_error=task.last_error,
    )
    if task.lost is not None:
        record.lost.CopyFrom(codec.replica_message(task.lost))
    if task.target is not None:
        record.target.CopyFrom(codec.replica_message(task.target))
    return record
