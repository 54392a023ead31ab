"""The stored form of the manager's records: to and from the messages of proto/records.proto.

Invariants: decoding what was encoded gives an equal record (but for `mod_revision`, which etcd keeps);
            a format that is newer than this code is refused: it could be misread;
            what is cached here is a part of a record that cannot change: it is looked up by all that it was made of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeVar

from neve.proto import common_pb2
from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import UnsupportedVersion
from neve.proto.fields import SMALL, SMALL_MAX, VARINTS, sized, varint
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
    StreamCall,
    Task,
    shared,
)

FORMAT = 1
STREAM_FORMAT = 2  # since a stream's young extents stand in its record


def _check_format(what: str, number: int, newest: int = FORMAT) -> None:
    if number > newest:
        raise UnsupportedVersion(what=what, version=number, supported_min=1, supported_max=newest)


def replica_message(replica: ReplicaAt) -> common_pb2.Replica:
    return common_pb2.Replica(node_id=replica.node_id, disk_uuid=replica.disk_uuid, incarnation=replica.incarnation)


def replica_at(message: common_pb2.Replica) -> ReplicaAt:
    return ReplicaAt(message.node_id, shared(message.disk_uuid), message.incarnation)


def seal_message(seal: ExtentSeal) -> common_pb2.Seal:
    return common_pb2.Seal(length=seal.length, eversion=seal.eversion, digest=seal.digest)


def label_messages(labels: Labels) -> list[pb.Label]:
    return [pb.Label(key=key, value=value) for key, value in labels]


# --- streams and extents, which are written for every allocation: by hand, from parts that are encoded once -----------


CACHED_MAX = 8192  # of each kind: extents and streams of the last seconds; policies, labels, places
PACKED_IDS_MAX = 1_000_000  # extent ids of all lists at hand: some MiB

_places: dict[tuple[int, str], bytes] = {}  # by node and disk: a replica in an extent's record, up to its incarnation
_bodies: dict[int, tuple[object, bytes]] = {}  # by extent id
_confirmed: dict[tuple[int, ...], bytes] = {}
_stems: dict[int, tuple[object, bytes]] = {}  # by stream id
_policies: dict[Policy, bytes] = {}
_labels: dict[Labels, tuple[bytes, ...]] = {}

_CALL = struct.Struct("<BQBQBIBIBQBQBQ")  # tag and value of each field of a `StreamCall`
LINKED_BY = b"\x72" + SMALL[_CALL.size]
_INCARNATION = struct.Struct("<Q")

K = TypeVar("K")
V = TypeVar("V")


def keep(cache: dict[K, V], key: K, value: V) -> V:
    if len(cache) >= CACHED_MAX:
        cache.clear()
    cache[key] = value
    return value


def place_of(node_id: int, disk_uuid: str) -> bytes:
    """The encoded `Replica` up to its incarnation, which is the last 8 bytes of it."""
    parts = [b"\x08", varint(node_id)] if node_id else []
    if disk_uuid:
        parts += (b"\x12", sized(disk_uuid.encode()))
    return b"".join((*parts, b"\x19"))


def place_in_record(node_id: int, disk_uuid: str) -> bytes:
    """The same as it stands in an extent's record."""
    place = place_of(node_id, disk_uuid)
    return b"\x22" + SMALL[len(place) + 8] + place


def extent_body(extent: Extent) -> bytes:
    """What stays the same of an extent from its making until a replica is replaced: the fields 2, 4, 8, 9 and 10."""
    made_of = extent[2:6]
    found = _bodies.get(extent.extent_id)
    if found is not None and found[0] == made_of:
        return found[1]
    return keep(_bodies, extent.extent_id, (made_of, new_body(extent)))[1]


def new_body(extent: Extent) -> bytes:
    """The same for who keeps it itself."""
    extent_id, _, replicas, extent_bytes_max, created_ms, stream_id, *_ = extent
    parts = [
        b"\x08\x01\x10",
        varint(extent_id),
        b"\x40",
        VARINTS[extent_bytes_max],
        b"\x48",
        VARINTS[created_ms],
        b"\x50",
        varint(stream_id),
    ]
    for node_id, disk_uuid, incarnation in replicas:
        place = _places.get((node_id, disk_uuid))
        if place is None:
            place = keep(_places, (node_id, disk_uuid), place_in_record(node_id, disk_uuid))
        parts += (place, _INCARNATION.pack(incarnation))
    return b"".join(parts)


def encode_extent(extent: Extent, body: bytes = b"") -> bytes:
    """`body`: what `extent_body` gave for it, if that is at hand."""
    _, eversion, _, _, _, _, seal, confirmed, all_took_part, _, conflict = extent
    parts = [body or extent_body(extent), b"\x18", SMALL[eversion] if eversion <= SMALL_MAX else varint(eversion)]
    if seal is not None:
        encoded = encoded_seal(seal)
        parts += (b"\x2a", SMALL[len(encoded)], encoded)
    if confirmed:
        parts.append(packed_nodes(confirmed))
    if all_took_part:
        parts.append(b"\x38\x01")
    if conflict:
        parts.append(b"\x58\x01")
    return b"".join(parts)


def packed_nodes(node_ids: tuple[int, ...]) -> bytes:
    """Those that have confirmed."""
    found = _confirmed.get(node_ids)
    if found is None:
        packed = b"\x32" + sized(b"".join([varint(node_id) for node_id in node_ids]))
        found = keep(_confirmed, node_ids, packed)
    return found


def encoded_seal(seal: ExtentSeal | None) -> bytes:
    assert seal is not None, "it is open"
    length, eversion, digest = seal
    if length <= SMALL_MAX and eversion <= SMALL_MAX:
        head = b"\x08" + SMALL[length] + b"\x10" + SMALL[eversion]
    else:
        head = b"\x08" + varint(length) + b"\x10" + varint(eversion)
    return head + b"\x1a" + SMALL[len(digest)] + digest if digest else head


class _PackedIds:
    """Lists of extents as packed fields. One is long, and mostly the one before with one more behind."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[tuple[int, ...], bytes]] = {}  # by stream id
        self._ids = 0  # in all of them

    def of(self, stream: Stream) -> bytes:
        ids = stream.extent_ids
        before, packed = self._found.get(stream.stream_id, ((), b""))
        if before is ids:
            return packed
        if ids and before == ids[:-1]:
            packed += varint(ids[-1])
        else:
            packed = b"".join([varint(extent_id) for extent_id in ids])
        if self._ids > PACKED_IDS_MAX or len(self._found) >= CACHED_MAX:
            self._found.clear()
            self._ids, before = 0, ()
        self._ids += len(ids) - len(before)
        self._found[stream.stream_id] = (ids, packed)
        return packed


packed_ids = _PackedIds().of


def encoded_policy(policy: Policy) -> bytes:
    """As a field of a message: its length before it."""
    found = _policies.get(policy)
    if found is None:
        replicas, no_sync, extent_bytes_max, placement, strict = policy
        message = sm.StreamPolicy(
            replicas=replicas, no_sync=no_sync, extent_bytes_max=extent_bytes_max, placement=placement, strict=strict
        )
        found = keep(_policies, policy, sized(message.SerializeToString()))
    return found


def encoded_labels(labels: Labels) -> tuple[bytes, ...]:
    """Each as a `Label`, which is what an entry of a map of texts is, too."""
    if not labels:
        return ()
    found = _labels.get(labels)
    if found is None:
        found = keep(_labels, labels, tuple(label.SerializeToString() for label in label_messages(labels)))
    return found


def stream_stem(stream: Stream) -> bytes:
    """What never changes of a stream: the fields 1 to 4, 7, 8, 10 and 13."""
    made_of = (stream.name, stream.lock, stream.policy, stream.labels, stream.created_ms, stream.made_by)
    found = _stems.get(stream.stream_id)
    if found is not None and found[0] == made_of:
        return found[1]
    return keep(_stems, stream.stream_id, (made_of, new_stem(stream)))[1]


def new_stem(stream: Stream) -> bytes:
    """The same for who keeps it itself, or does not need it soon."""
    parts = [b"\x08\x02\x10", varint(stream.stream_id)]
    if stream.name:
        parts += (b"\x1a", sized(stream.name.encode()))
    if stream.lock:
        parts += (b"\x22", sized(stream.lock.encode()))
    parts += (b"\x3a", encoded_policy(stream.policy), b"\x50", VARINTS[stream.created_ms])
    parts += [b"\x42" + sized(label) for label in encoded_labels(stream.labels)]
    if stream.made_by is not None:
        parts += (b"\x6a", sized(encode_call(stream.made_by)))
    return b"".join(parts)


def encode_new_stream(stream: Stream, tail: Extent) -> bytes:
    """As `encode_stream` does it for one that was just made, with its only extent; nothing of it is kept."""
    young = (encode_extent(tail, new_body(tail)),)
    return stream_record(stream, new_stem(stream), varint(tail.extent_id), young, stream.version, stream.linked_by)


def encode_stream(stream: Stream, young: Iterable[Extent] = ()) -> bytes:
    """`young`: those of its extents that have no key of their own."""
    encoded = [encode_extent(extent) for extent in young]
    return stream_record(stream, stream_stem(stream), packed_ids(stream), encoded, stream.version, stream.linked_by)


def stream_record(
    stream: Stream, stem: bytes, ids: bytes, young: Iterable[bytes], version: int, linked_by: StreamCall | None
) -> bytes:
    """The same from parts that are encoded already: `stream_stem`, `packed_ids`, `encode_extent`; and with what is new
    about the stream, for who does not make its next version first."""
    _, _, _, _, sealed, _, _, _, _, truncated_before, _, _, _, after_hole = stream
    parts = [stem, b"\x48", SMALL[version] if version <= SMALL_MAX else varint(version)]
    if ids:
        parts += (b"\x2a", SMALL[len(ids)] if len(ids) <= SMALL_MAX else varint(len(ids)), ids)
    if sealed:
        parts.append(b"\x30\x01")
    if truncated_before:
        parts += (b"\x58", varint(truncated_before))
    for encoded in young:
        parts += (b"\x62", SMALL[len(encoded)], encoded)
    if linked_by is not None:
        parts += (LINKED_BY, encode_call(linked_by))
    if after_hole:
        parts += (b"\x7a", sized(b"".join(map(varint, after_hole))))
    return b"".join(parts)


def encode_call(call: StreamCall) -> bytes:
    client_id, call_id, (method_id, crc32c, created_ms, _, extents, _) = call
    sealed_id, linked_id = extents or (0, 0)
    how = (0x09, client_id, 0x11, call_id, 0x1D, method_id, 0x25, crc32c, 0x29, created_ms)
    return _CALL.pack(*how, 0x31, sealed_id, 0x39, linked_id)


def _decode_call(call: pb.StreamCall, stream_id: int) -> StreamCall:
    extents = (call.sealed_extent_id, call.linked_extent_id) if call.linked_extent_id else ()
    replay = Replay(call.method_id, call.request_crc32c, call.created_ms, (stream_id,), extents)
    return StreamCall(call.client_id, call.call_id, replay)


def decode_stream(value: bytes, mod_revision: int) -> tuple[Stream, list[Extent]]:
    """The stream, and those of its extents that had no key of their own when it was written."""
    record = pb.StreamRecord.FromString(value)
    _check_format("stream record", record.format, STREAM_FORMAT)
    policy = record.policy
    stream = Stream(
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
        _decode_call(record.made_by, record.stream_id) if record.HasField("made_by") else None,
        _decode_call(record.linked_by, record.stream_id) if record.HasField("linked_by") else None,
        tuple(record.after_hole),
    )
    return stream, [_extent(extent, 0) for extent in record.young]


def decode_extent(value: bytes, mod_revision: int) -> Extent:
    return _extent(pb.ExtentRecord.FromString(value), mod_revision)


def _extent(record: pb.ExtentRecord, mod_revision: int) -> Extent:
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
        record.conflict,
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
    parts = [
        b"\x08\x01\x10" + varint(replay.method_id),
        b"\x1d" + replay.request_crc32c.to_bytes(4, "little"),
        b"\x20" + varint(replay.created_ms),
    ]
    if replay.stream_ids:
        parts.append(b"\x2a" + sized(b"".join(map(varint, replay.stream_ids))))
    if replay.extent_ids:
        parts.append(b"\x32" + sized(b"".join(map(varint, replay.extent_ids))))
    if replay.node_id:
        parts.append(b"\x38" + varint(replay.node_id))
    return b"".join(parts)


def decode_replay(value: bytes) -> Replay:
    return _replay(pb.ReplayRecord.FromString(value))


def _replay(record: pb.ReplayRecord) -> Replay:
    _check_format("replay record", record.format)
    return Replay(
        record.method_id,
        record.request_crc32c,
        record.created_ms,
        tuple(record.stream_ids),
        tuple(record.extent_ids),
        record.node_id,
    )
