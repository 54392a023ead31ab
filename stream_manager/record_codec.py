"""The stored form of the manager's records: to and from the messages of proto/records.proto.

Invariants: decoding what was encoded gives an equal record (but for `mod_revision`, which etcd keeps);
            a format that is newer than this code is refused: it could be misread.
Neighbours: records.py has the values; state.py decodes, changes.py encodes.
"""

from __future__ import annotations

from neve.proto import common_pb2
from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import UnsupportedVersion
from neve.stream_manager.records import (
    Disk,
    Extent,
    ExtentSeal,
    Labels,
    NodeEntry,
    Policy,
    Quota,
    Replay,
    ReplicaAt,
    Settings,
    Stream,
    Task,
    shared,
)

FORMAT = 1


def _check_format(what: str, number: int) -> None:
    if number > FORMAT:
        raise UnsupportedVersion(what=what, version=number, supported_min=1, supported_max=FORMAT)


def replica_message(replica: ReplicaAt) -> common_pb2.Replica:
    return common_pb2.Replica(node_id=replica.node_id, disk_uuid=replica.disk_uuid, incarnation=replica.incarnation)


def replica_at(message: common_pb2.Replica) -> ReplicaAt:
    return ReplicaAt(message.node_id, shared(message.disk_uuid), message.incarnation)


def seal_message(seal: ExtentSeal) -> common_pb2.Seal:
    return common_pb2.Seal(length=seal.length, eversion=seal.eversion, digest=seal.digest)


def policy_message(policy: Policy) -> sm.StreamPolicy:
    return sm.StreamPolicy(
        replicas=policy.replicas,
        no_sync=policy.no_sync,
        extent_bytes_max=policy.extent_bytes_max,
        placement=policy.placement,
        strict=policy.strict,
    )


def label_messages(labels: Labels) -> list[pb.Label]:
    return [pb.Label(key=key, value=value) for key, value in labels]


def encode_stream(stream: Stream) -> bytes:
    return pb.StreamRecord(
        format=FORMAT,
        stream_id=stream.stream_id,
        name=stream.name,
        lock=stream.lock,
        extent_ids=stream.extent_ids,
        sealed=stream.sealed,
        policy=policy_message(stream.policy),
        labels=label_messages(stream.labels),
        version=stream.version,
        created_ms=stream.created_ms,
        truncated_before=stream.truncated_before,
    ).SerializeToString()


def decode_stream(value: bytes, mod_revision: int) -> Stream:
    record = pb.StreamRecord.FromString(value)
    _check_format("stream record", record.format)
    policy = record.policy
    return Stream(
        record.stream_id,
        record.name,
        record.lock,
        tuple(record.extent_ids),
        record.sealed,
        shared(Policy(policy.replicas, policy.no_sync, policy.extent_bytes_max, policy.placement, policy.strict)),
        shared(tuple((label.key, label.value) for label in record.labels)),
        record.version,
        record.created_ms,
        record.truncated_before,
        mod_revision,
    )


def encode_extent(extent: Extent) -> bytes:
    record = pb.ExtentRecord(
        format=FORMAT,
        extent_id=extent.extent_id,
        eversion=extent.eversion,
        confirmed_node_ids=extent.confirmed,
        all_took_part=extent.all_took_part,
        extent_bytes_max=extent.extent_bytes_max,
        created_ms=extent.created_ms,
        stream_id=extent.stream_id,
    )
    add = record.replicas.add
    for node_id, disk_uuid, incarnation in extent.replicas:
        add(node_id=node_id, disk_uuid=disk_uuid, incarnation=incarnation)
    if extent.seal is not None:
        record.seal.length, record.seal.eversion, record.seal.digest = extent.seal
    return record.SerializeToString()


def decode_extent(value: bytes, mod_revision: int) -> Extent:
    record = pb.ExtentRecord.FromString(value)
    _check_format("extent record", record.format)
    seal = record.seal
    return Extent(
        record.extent_id,
        record.eversion,
        tuple([replica_at(replica) for replica in record.replicas]),
        record.extent_bytes_max,
        record.created_ms,
        record.stream_id,
        ExtentSeal(seal.length, seal.eversion, seal.digest) if record.HasField("seal") else None,
        shared(tuple(record.confirmed_node_ids)),
        record.all_took_part,
        mod_revision,
    )


def encode_node(node: NodeEntry) -> bytes:
    return pb.NodeEntryRecord(
        format=FORMAT,
        node_id=node.node_id,
        wire_address=node.wire_address,
        grpc_address=node.grpc_address,
        region=node.region,
        rack=node.rack,
        zone=node.zone,
        labels=label_messages(node.labels),
        disks=[
            pb.DiskEntry(disk_uuid=disk.disk_uuid, state=disk.state, capacity_bytes=disk.capacity_bytes)
            for disk in node.disks
        ],
        mode=node.mode,
        mode_until_ms=node.mode_until_ms,
        mode_reason=node.mode_reason,
        health=node.health,
        process_id=node.process_id,
        version=common_pb2.Version(protocol=node.protocol, build=node.build),
        registered_ms=node.registered_ms,
    ).SerializeToString()


def decode_node(value: bytes, mod_revision: int) -> NodeEntry:
    record = pb.NodeEntryRecord.FromString(value)
    _check_format("node record", record.format)
    return NodeEntry(
        node_id=record.node_id,
        wire_address=record.wire_address,
        grpc_address=record.grpc_address,
        region=record.region,
        rack=record.rack,
        zone=record.zone,
        labels=tuple((label.key, label.value) for label in record.labels),
        disks=tuple(Disk(shared(disk.disk_uuid), disk.state, disk.capacity_bytes) for disk in record.disks),
        mode=record.mode,
        mode_until_ms=record.mode_until_ms,
        mode_reason=record.mode_reason,
        health=record.health,
        process_id=record.process_id,
        protocol=record.version.protocol,
        build=record.version.build,
        registered_ms=record.registered_ms,
        mod_revision=mod_revision,
    )


def encode_task(task: Task) -> bytes:
    record = pb.TaskRecord(
        format=FORMAT,
        task_id=task.task_id,
        extent_id=task.extent_id,
        kind=task.kind,
        eversion=task.eversion,
        created_ms=task.created_ms,
        attempts=task.attempts,
        last_error=task.last_error,
    )
    if task.lost is not None:
        record.lost.CopyFrom(replica_message(task.lost))
    if task.target is not None:
        record.target.CopyFrom(replica_message(task.target))
    return record.SerializeToString()


def decode_task(value: bytes, mod_revision: int) -> Task:
    record = pb.TaskRecord.FromString(value)
    _check_format("task record", record.format)
    return Task(
        record.task_id,
        record.extent_id,
        record.kind,
        replica_at(record.lost) if record.HasField("lost") else None,
        replica_at(record.target) if record.HasField("target") else None,
        record.eversion,
        record.created_ms,
        record.attempts,
        record.last_error,
        mod_revision,
    )


def encode_name(stream_id: int) -> bytes:
    return pb.NameRecord(format=FORMAT, stream_id=stream_id).SerializeToString()


def decode_name(value: bytes) -> int:
    record = pb.NameRecord.FromString(value)
    _check_format("name record", record.format)
    return record.stream_id


def encode_quota(quota: Quota) -> bytes:
    return pb.QuotaRecord(
        format=FORMAT,
        prefix=quota.prefix,
        streams_max=quota.streams_max,
        extents_max=quota.extents_max,
        bytes_max=quota.bytes_max,
    ).SerializeToString()


def decode_quota(value: bytes, mod_revision: int) -> Quota:
    record = pb.QuotaRecord.FromString(value)
    _check_format("quota record", record.format)
    return Quota(record.prefix, record.streams_max, record.extents_max, record.bytes_max, mod_revision)


def encode_settings(settings: Settings) -> bytes:
    return pb.SettingsRecord(format=FORMAT, stopped_regions=settings.stopped_regions).SerializeToString()


def decode_settings(value: bytes, mod_revision: int) -> Settings:
    record = pb.SettingsRecord.FromString(value)
    _check_format("settings record", record.format)
    return Settings(tuple(record.stopped_regions), mod_revision)


def encode_replay(replay: Replay) -> bytes:
    return pb.ReplayRecord(
        format=FORMAT,
        method_id=replay.method_id,
        request_crc32c=replay.request_crc32c,
        created_ms=replay.created_ms,
        stream_ids=replay.stream_ids,
        extent_ids=replay.extent_ids,
        node_id=replay.node_id,
    ).SerializeToString()


def decode_replay(value: bytes) -> Replay:
    record = pb.ReplayRecord.FromString(value)
    _check_format("replay record", record.format)
    return Replay(
        record.method_id,
        record.request_crc32c,
        record.created_ms,
        tuple(record.stream_ids),
        tuple(record.extent_ids),
        record.node_id,
    )
