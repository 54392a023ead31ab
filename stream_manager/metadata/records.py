"""The manager's records: streams, extents, nodes, tasks, quotas and settings, as immutable values.

For streams and extents it also has the tables of the fields in their messages. A new field of a stream or an extent
is added here, to the class and to the table below it, and to the messages of proto/records.proto and
proto/stream_manager.proto. The kinds of records are listed in record_kinds.py.

Invariants: a record is never changed, only replaced; `mod_revision` is that of its key in etcd and is not part of the
            stored value;
            an open extent has no seal; a sealed one has a seal, even at length 0 (scenario T6);
            `confirmed` names only nodes of `replicas`, and is empty while the extent is open (protocol rule 20).

A manager holds up to a million extents in memory, so equal disk uuids, policies and sets of nodes are one object
(`shared`). Records that are created on every call are tuples: creating a frozen dataclass of ten fields takes three
times as long.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

from neve.meta import keys
from neve.proto import common_pb2, field_tables
from neve.proto import extent_node_pb2 as en
from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import UnsupportedVersion
from neve.proto.field_tables import Field
from neve.proto.fields import sized, varint
from neve.proto.stream_policy import StreamPolicy, policy_bytes

Labels = tuple[tuple[str, str], ...]

EXTENT_BYTES_LIMIT = 2 << 30  # of any extent: the size that nodes are designed for
REPLICAS_MAX = 7  # of any extent

T = TypeVar("T")
_SHARED_MAX = 100_000  # distinct small values: far more than a real cluster has; bounds the memory for made-up ones
_shared_values: dict[object, object] = {}


def shared(value: T) -> T:
    """Return one object for all equal values."""
    found = _shared_values.get(value)
    if found is None:
        if len(_shared_values) >= _SHARED_MAX:
            _shared_values.clear()
        found = _shared_values[value] = value
    return found  # type: ignore[return-value]


# --- streams --------------------------------------------------------------------------------------------------


class Replay(NamedTuple):
    """The record that a call was executed, with what its reply can be rebuilt from (protocol rule 26)."""

    method_id: int
    request_crc32c: int
    created_ms: int
    stream_ids: tuple[int, ...] = ()
    extent_ids: tuple[int, ...] = ()
    node_id: int = 0


class StreamCall(NamedTuple):
    """A call whose replay record is stored inside the record of the stream that it wrote."""

    client_id: int
    call_id: int
    replay: Replay


class Stream(NamedTuple):
    stream_id: int
    name: str  # empty: it has no name
    lock: str
    extent_ids: tuple[int, ...]  # the last one is the tail
    sealed: bool
    policy: StreamPolicy
    labels: Labels
    version: int  # the number of changes
    created_ms: int
    truncated_before: int = 0
    mod_revision: int = 0
    made_by: StreamCall | None = None
    # The call that linked the last extent. For earlier extents the list itself shows what followed (protocol rule 16).
    linked_by: StreamCall | None = None
    after_hole: tuple[int, ...] = ()  # extents that do not continue a record begun in the extent before them

    @property
    def tail_id(self) -> int | None:
        """The last extent. It may be sealed; then the next owner or the writer's next roll links a new one."""
        return self.extent_ids[-1] if self.extent_ids else None

    def changed(
        self,
        extent_ids: tuple[int, ...],
        *,
        sealed: bool | None = None,
        truncated_before: int | None = None,
        linked_by: StreamCall | None = None,
    ) -> Stream:
        """The next version, with another list. `linked_by`: the call that linked the last extent; None: unchanged."""
        return self._replace(
            extent_ids=extent_ids,
            sealed=self.sealed if sealed is None else sealed,
            version=self.version + 1,
            truncated_before=self.truncated_before if truncated_before is None else truncated_before,
            mod_revision=0,
            linked_by=linked_by or self.linked_by,
        )

    def with_list(
        self,
        extent_ids: tuple[int, ...],
        *others: Stream,
        empty: Container[int] = (),
        truncated_before: int | None = None,
    ) -> Stream:
        """The next version, with a list combined from this stream's extents and those of `others`.

        `after_hole` is computed anew. Leaving out an extent that is in `empty` makes no hole, because a record may
        continue across it.
        """
        follows: set[tuple[int, int]] = set()
        for stream in (self, *others):
            holes = set(stream.after_hole)
            before: list[int] = []  # what the next extent continues: the last one and, past empty ones, those before it
            for extent_id in stream.extent_ids:
                if extent_id in holes:
                    before = []
                follows.update((each, extent_id) for each in before)
                before = [*before, extent_id] if extent_id in empty else [extent_id]
        after_hole = tuple(pair[1] for pair in itertools.pairwise(extent_ids) if pair not in follows)
        return self.changed(extent_ids, truncated_before=truncated_before)._replace(after_hole=after_hole)

    def at(self, mod_revision: int) -> Stream:
        """A copy with this mod revision. Creations and rolls make several; `_replace` takes four times as long."""
        values = [*self]
        values[_STREAM_REVISION] = mod_revision
        return Stream._make(values)


_STREAM_REVISION = Stream._fields.index("mod_revision")


def check_first_extent(stream: Stream, tail: Extent) -> None:
    """Check that a stream is created together with its first extent, which is young.

    Only this function requires an extent. Otherwise a stream without extents is valid: truncation can leave one.
    """
    assert tail.young, f"{tail} has a key"
    assert stream.extent_ids == (tail.extent_id,), stream


# --- extents --------------------------------------------------------------------------------------------------


class ReplicaAt(NamedTuple):
    """A replica's node, disk and file incarnation. A tuple, because a million extents have three each."""

    node_id: int
    disk_uuid: str
    incarnation: int


class ExtentSeal(NamedTuple):
    length: int
    eversion: int
    digest: bytes  # empty until the first replica has confirmed


class Extent(NamedTuple):
    """An extent. While `mod_revision` is 0 it is young: it has no key and is stored in its stream's record."""

    extent_id: int
    eversion: int
    replicas: tuple[ReplicaAt, ...]
    extent_bytes_max: int
    created_ms: int
    stream_id: int  # the stream that it was created for
    seal: ExtentSeal | None = None
    confirmed: tuple[int, ...] = ()  # node ids, in the order of `replicas`
    all_took_part: bool = False
    mod_revision: int = 0
    # An append met different bytes on a replica: digests are compared before any replica is trusted (protocol rule 7).
    conflict: bool = False

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple([replica.node_id for replica in self.replicas])

    @property
    def all_confirmed(self) -> bool:
        """Every replica has confirmed the seal. False for an extent without replicas."""
        return self.seal is not None and len(self.confirmed) == len(self.replicas) > 0

    def sealed_at(self, length: int, *, all_took_part: bool, conflict: bool = False) -> Extent:
        """The record that the seal's transaction writes (protocol rule 19): no replica has confirmed yet."""
        assert self.seal is None, self
        eversion = self.eversion + 1
        return self._replace(
            eversion=eversion,
            seal=ExtentSeal(length, eversion, b""),
            all_took_part=all_took_part,
            mod_revision=0,
            conflict=conflict,
        )

    def at(self, mod_revision: int) -> Extent:
        """A copy with this mod revision."""
        values = [*self]
        values[_EXTENT_REVISION] = mod_revision
        return Extent._make(values)

    @property
    def young(self) -> bool:
        return not self.mod_revision

    def replica_on(self, node_id: int) -> ReplicaAt | None:
        for replica in self.replicas:
            if replica.node_id == node_id:
                return replica
        return None

    def with_confirmed(self, node_ids: tuple[int, ...] | list[int], digest: bytes) -> Extent:
        """The record after these nodes have confirmed the seal with this digest (protocol rule 20)."""
        assert self.seal is not None, self
        assert self.seal.digest in (b"", digest), self
        before = self.confirmed
        confirmed = shared(tuple([n for n in self.node_ids if n in node_ids or n in before]))
        seal = ExtentSeal(self.seal.length, self.seal.eversion, digest)
        return self._replace(seal=seal, confirmed=confirmed)


_EXTENT_REVISION = Extent._fields.index("mod_revision")


def check_replicas(extent: Extent) -> None:
    """Check that an extent has replicas, each on a different node. Only this function requires replicas."""
    assert len(set(extent.node_ids)) == len(extent.replicas) > 0, extent


class Versioned:
    """Base class of dataclasses with a field `mod_revision`."""

    __slots__ = ()

    def at(self, mod_revision: int) -> Self:
        """A copy with this mod revision."""
        return replace(self, mod_revision=mod_revision)  # type: ignore[type-var]


# --- nodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disk:
    disk_uuid: str
    state: en.DiskInfo.State
    capacity_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeEntry(Versioned):
    """What etcd stores about a node. Its usage, load and heartbeats are in the leader's memory (registry.py)."""

    node_id: int
    wire_address: str
    grpc_address: str = ""
    region: str = ""
    rack: str = ""
    zone: str = ""
    labels: Labels = ()
    disks: tuple[Disk, ...] = ()
    mode: sm.NodeMode = sm.NODE_MODE_NORMAL
    mode_until_ms: int = 0
    mode_reason: str = ""
    health: sm.NodeHealth = sm.NODE_HEALTH_ALIVE  # stored only if DEAD; otherwise it is what the last leader saw
    process_id: int = 0
    protocol: int = 0
    build: str = ""
    registered_ms: int = 0
    mod_revision: int = 0

    @property
    def dead(self) -> bool:
        return self.health == sm.NODE_HEALTH_DEAD


# --- tasks, names, quotas, settings ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task(Versioned):
    """A recovery task. An extent has at most one at a time."""

    task_id: int
    extent_id: int
    kind: sm.RecoveryTask.Kind
    lost: ReplicaAt | None
    target: ReplicaAt | None
    eversion: int
    created_ms: int
    attempts: int = 0
    last_error: str = ""
    mod_revision: int = 0


@dataclass(frozen=True, slots=True)
class Quota(Versioned):
    """Limits for the streams with a label whose text `key=value` begins with `prefix`. 0: unlimited."""

    prefix: str
    streams_max: int = 0
    extents_max: int = 0
    bytes_max: int = 0
    mod_revision: int = 0


@dataclass(frozen=True, slots=True)
class Settings(Versioned):
    """The cluster's settings. There is one record."""

    stopped_regions: tuple[str, ...] = ()
    mod_revision: int = 0


# --- the messages of streams and extents --------------------------------------------------------------------------

PLACES_MAX = 8192

_CALL = struct.Struct("<BQBQBIBIBQBQBQ")  # tag and value of each field of a `StreamCall`: all have a fixed size


def _call_bytes(call: StreamCall) -> bytes:
    replay = call.replay
    sealed_id, linked_id = replay.extent_ids or (0, 0)
    who = (0x09, call.client_id, 0x11, call.call_id, 0x1D, replay.method_id, 0x25, replay.request_crc32c)
    return _CALL.pack(*who, 0x29, replay.created_ms, 0x31, sealed_id, 0x39, linked_id)


def _read_call(field: str, record: pb.StreamRecord) -> StreamCall | None:
    if not record.HasField(field):
        return None
    call: pb.StreamCall = getattr(record, field)
    extents = (call.sealed_extent_id, call.linked_extent_id) if call.linked_extent_id else ()
    replay = Replay(call.method_id, call.request_crc32c, call.created_ms, (record.stream_id,), extents)
    return StreamCall(call.client_id, call.call_id, replay)


incarnation_bytes: Callable[[int], bytes] = struct.Struct("<Q").pack


@functools.lru_cache(maxsize=PLACES_MAX)
def place_bytes(node_id: int, disk_uuid: str) -> bytes:
    """The encoded `Replica` up to the value of its incarnation."""
    node = b"\x08" + varint(node_id) if node_id else b""
    disk = b"\x12" + sized(disk_uuid.encode()) if disk_uuid else b""
    return node + disk + b"\x19"


def replica_bytes(replica: ReplicaAt) -> bytes:
    return place_bytes(replica.node_id, replica.disk_uuid) + incarnation_bytes(replica.incarnation)


def replica_message(replica: ReplicaAt) -> common_pb2.Replica:
    return common_pb2.Replica(node_id=replica.node_id, disk_uuid=replica.disk_uuid, incarnation=replica.incarnation)


def replica_at(message: common_pb2.Replica) -> ReplicaAt:
    return ReplicaAt(message.node_id, shared(message.disk_uuid), message.incarnation)


def _seal_bytes(seal: ExtentSeal) -> bytes:
    head = b"\x08" + varint(seal.length) + b"\x10" + varint(seal.eversion)  # both are written even if 0
    return head + b"\x1a" + sized(seal.digest) if seal.digest else head


def seal_message(seal: ExtentSeal) -> common_pb2.Seal:
    return common_pb2.Seal(length=seal.length, eversion=seal.eversion, digest=seal.digest)


def _read_seal(record: pb.ExtentRecord) -> ExtentSeal | None:
    seal = record.seal
    return ExtentSeal(seal.length, seal.eversion, seal.digest) if record.HasField("seal") else None


# Fields are written in this order. `stored`: field numbers in StreamRecord; `shown`: in StreamInfo.
STREAM_FIELDS = (
    Field("stream_id", field_tables.number, stored=2, shown=1),
    Field("name", field_tables.text, stored=3, shown=2),
    Field("lock", field_tables.text, stored=4, shown=3),
    Field(
        "policy",
        field_tables.message(policy_bytes),
        stored=7,
        shown=6,
        read=lambda record: shared(StreamPolicy.of(record.policy)),
    ),
    Field("created_ms", field_tables.number, stored=10, shown=10),
    Field(
        "labels",
        field_tables.text_pairs,
        stored=8,
        shown=7,
        read=lambda record: shared(tuple([(label.key, label.value) for label in record.labels])),
    ),
    Field("made_by", field_tables.message(_call_bytes), stored=13, read=functools.partial(_read_call, "made_by")),
    Field("version", field_tables.number, stored=9, shown=8),
    Field("mod_revision", field_tables.number, shown=9),
    Field("extent_ids", field_tables.growing, stored=5, shown=4, read=lambda record: tuple(record.extent_ids)),
    Field("sealed", field_tables.flag, stored=6, shown=5),
    Field("truncated_before", field_tables.number, stored=11, shown=11),
    Field("young", field_tables.messages(lambda extent: extent_bytes(extent)), stored=12),  # extents without a key
    Field("linked_by", field_tables.message(_call_bytes), stored=14, read=functools.partial(_read_call, "linked_by")),
    Field("after_hole", field_tables.packed, stored=15, shown=12, read=lambda record: tuple(record.after_hole)),
)

# Fields are written in this order. `stored`: field numbers in ExtentRecord; `shown`: in ExtentInfo.
EXTENT_FIELDS = (
    Field("extent_id", field_tables.number, stored=2, shown=1),
    Field("extent_bytes_max", field_tables.number, stored=8, shown=5),
    Field("created_ms", field_tables.number, stored=9, shown=6),
    Field("stream_id", field_tables.number, stored=10),
    Field(
        "replicas",
        field_tables.messages(replica_bytes),
        stored=4,
        read=lambda record: tuple([replica_at(replica) for replica in record.replicas]),
    ),
    Field("located", field_tables.messages(bytes), shown=3),  # the replicas with their addresses (describe.py)
    Field("eversion", field_tables.number, stored=3, shown=2),
    Field("seal", field_tables.message(_seal_bytes), stored=5, shown=4, read=_read_seal),
    Field("confirmed", field_tables.packed, stored=6, read=lambda record: shared(tuple(record.confirmed_node_ids))),
    Field("all_took_part", field_tables.flag, stored=7),
    Field("mod_revision", field_tables.number, shown=7),
    Field("conflict", field_tables.flag, stored=11),
)

STREAM_FORMAT = 2  # 2: the record contains the stream's young extents
EXTENT_FORMAT = 1
_STREAM_HEAD = b"\x08" + varint(STREAM_FORMAT)
_EXTENT_HEAD = b"\x08" + varint(EXTENT_FORMAT)

_encode_stream = field_tables.encoder(STREAM_FIELDS, "stored", given="young")
_encode_extent = field_tables.encoder(EXTENT_FIELDS, "stored")
_decode_stream = field_tables.decoder(STREAM_FIELDS, given="young")
_decode_extent = field_tables.decoder(EXTENT_FIELDS)


def check_format(what: str, number: int, newest: int) -> None:
    if number > newest:
        raise UnsupportedVersion(what=what, version=number, supported_min=1, supported_max=newest)


def stream_bytes(stream: Stream, young: Iterable[Extent] = ()) -> bytes:
    """The stored form. `young`: the stream's extents that have no key of their own."""
    return _STREAM_HEAD + _encode_stream(stream, young)


def read_stream(value: bytes, mod_revision: int) -> tuple[Stream, list[Extent]]:
    """The stream, and its extents that had no key of their own when it was written."""
    record = pb.StreamRecord.FromString(value)
    check_format("stream record", record.format, STREAM_FORMAT)
    stream = Stream(**_decode_stream(record), mod_revision=mod_revision)
    return stream, [_read_extent(extent, 0) for extent in record.young]


def extent_bytes(extent: Extent) -> bytes:
    return _EXTENT_HEAD + _encode_extent(extent)


def read_extent(value: bytes, mod_revision: int) -> Extent:
    return _read_extent(pb.ExtentRecord.FromString(value), mod_revision)


def _read_extent(record: pb.ExtentRecord, mod_revision: int) -> Extent:
    check_format("extent record", record.format, EXTENT_FORMAT)
    return Extent(**_decode_extent(record), mod_revision=mod_revision)


# --- keys -----------------------------------------------------------------------------------------------------

STREAMS, EXTENTS, NODES, NAMES, TASKS = b"streams/", b"extents/", b"nodes/", b"names/", b"recovery/"
REPLAY, QUOTAS, SETTINGS, COMMITS, IDS = b"replay/", b"quotas/", b"settings/", b"commits/", b"ids"
SETTINGS_NAME = "cluster"


root_of = keys.root_of
id_text = keys.id_text


def election_prefix(root: bytes) -> bytes:
    return root + b"leader"
