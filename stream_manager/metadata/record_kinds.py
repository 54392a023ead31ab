"""The kinds of records: the keys of each kind and the encoding of its records. A new kind is one more row.

`State` keeps a table for each kind, `Changes` puts and deletes records of any kind, and followers watch all of them.

Invariants: an encoded record decodes to an equal record, except for `mod_revision`, which etcd keeps;
            a format that is newer than this code is refused, because it could be misread.
Not here:   replay records, which are not part of a `State` (replay.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from neve.proto import common_pb2
from neve.proto import records_pb2 as pb
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.records import (
    Disk,
    Labels,
    NodeEntry,
    Quota,
    Settings,
    Task,
    Versioned,
    check_format,
    replica_at,
    replica_message,
    shared,
)

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Name(Versioned):
    """The stream to which a name belongs."""

    name: str
    stream_id: int
    mod_revision: int = 0


class Record(Protocol):
    """A record with the mod revision of its key."""

    @property
    def mod_revision(self) -> int: ...

    def at(self, mod_revision: int) -> Self:
        """A copy with this mod revision."""


Id = TypeVar("Id", int, str)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[Id, R]):
    """One kind of records.

    `key` in `key_of` and `parse_ident` is the part after the prefix: 16 hex digits or a text.
    """

    prefix: bytes  # of its keys, below the cluster's root
    ident: Callable[[R], Id]
    encode: Callable[[R], bytes]
    decode: Callable[[bytes, bytes, int], R]  # from key, value and mod revision
    parse_ident: Callable[[bytes], Id]
    key_of: Callable[[Id], bytes]

    def key(self, root: bytes, ident: Id) -> bytes:
        return root + self.prefix + self.key_of(ident)

    def __repr__(self) -> str:
        return f"Kind({self.prefix!r})"


def _by_id(
    prefix: bytes, ident: Callable[[R], int], encode: Callable[[R], bytes], decode: Callable[[bytes, int], R]
) -> Kind[int, R]:
    return Kind(prefix, ident, encode, lambda _, value, revision: decode(value, revision), _parse_id, r.id_text)


def _by_text(
    prefix: bytes, ident: Callable[[R], str], encode: Callable[[R], bytes], decode: Callable[[bytes, bytes, int], R]
) -> Kind[str, R]:
    return Kind(prefix, ident, encode, decode, bytes.decode, str.encode)


def _parse_id(key: bytes) -> int:
    return int(key, 16)


# --- how each is stored ---------------------------------------------------------------------------------------------


def _label_messages(labels: Labels) -> list[pb.Label]:
    return [pb.Label(key=key, value=value) for key, value in labels]


def _node_bytes(node: NodeEntry) -> bytes:
    return pb.NodeEntryRecord(
        format=FORMAT,
        node_id=node.node_id,
        wire_address=node.wire_address,
        grpc_address=node.grpc_address,
        region=node.region,
        rack=node.rack,
        zone=node.zone,
        labels=_label_messages(node.labels),
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


def _read_node(value: bytes, mod_revision: int) -> NodeEntry:
    record = pb.NodeEntryRecord.FromString(value)
    check_format("node record", record.format, FORMAT)
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


def _task_bytes(task: Task) -> bytes:
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


def _read_task(value: bytes, mod_revision: int) -> Task:
    record = pb.TaskRecord.FromString(value)
    check_format("task record", record.format, FORMAT)
    return Task(
        task_id=record.task_id,
        extent_id=record.extent_id,
        kind=record.kind,
        lost=replica_at(record.lost) if record.HasField("lost") else None,
        target=replica_at(record.target) if record.HasField("target") else None,
        eversion=record.eversion,
        created_ms=record.created_ms,
        attempts=record.attempts,
        last_error=record.last_error,
        mod_revision=mod_revision,
    )


def _name_bytes(name: Name) -> bytes:
    return pb.NameRecord(format=FORMAT, stream_id=name.stream_id).SerializeToString()


def _read_name(key: bytes, value: bytes, mod_revision: int) -> Name:
    record = pb.NameRecord.FromString(value)
    check_format("name record", record.format, FORMAT)
    return Name(key.decode(), record.stream_id, mod_revision)


def _quota_bytes(quota: Quota) -> bytes:
    return pb.QuotaRecord(
        format=FORMAT,
        prefix=quota.prefix,
        streams_max=quota.streams_max,
        extents_max=quota.extents_max,
        bytes_max=quota.bytes_max,
    ).SerializeToString()


def _read_quota(_: bytes, value: bytes, mod_revision: int) -> Quota:
    record = pb.QuotaRecord.FromString(value)
    check_format("quota record", record.format, FORMAT)
    return Quota(record.prefix, record.streams_max, record.extents_max, record.bytes_max, mod_revision)


def _settings_bytes(settings: Settings) -> bytes:
    return pb.SettingsRecord(format=FORMAT, stopped_regions=settings.stopped_regions).SerializeToString()


def _read_settings(_: bytes, value: bytes, mod_revision: int) -> Settings:
    record = pb.SettingsRecord.FromString(value)
    check_format("settings record", record.format, FORMAT)
    return Settings(tuple(record.stopped_regions), mod_revision)


# --- the table ------------------------------------------------------------------------------------------------------

# A stream's record also contains its young extents, which `State` and `Changes` read and write separately.
STREAM = _by_id(r.STREAMS, lambda stream: stream.stream_id, r.stream_bytes, lambda *stored: r.read_stream(*stored)[0])
EXTENT = _by_id(r.EXTENTS, lambda extent: extent.extent_id, r.extent_bytes, r.read_extent)
NODE = _by_id(r.NODES, lambda node: node.node_id, _node_bytes, _read_node)
TASK = _by_id(r.TASKS, lambda task: task.extent_id, _task_bytes, _read_task)  # at most one for each extent
NAME = _by_text(r.NAMES, lambda name: name.name, _name_bytes, _read_name)
QUOTA = _by_text(r.QUOTAS, lambda quota: quota.prefix, _quota_bytes, _read_quota)
SETTINGS = _by_text(r.SETTINGS, lambda settings: r.SETTINGS_NAME, _settings_bytes, _read_settings)

KINDS: dict[bytes, Kind[Any, Any]] = {kind.prefix: kind for kind in (EXTENT, NAME, NODE, QUOTA, TASK, SETTINGS, STREAM)}
