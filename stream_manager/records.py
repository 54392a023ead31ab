"""What the manager knows of streams, extents, nodes and tasks: values, and their keys.

Invariants: a record is never changed, only replaced; `mod_revision` is its key's in etcd and is not part of the value;
            an open extent has no seal, a sealed one has, also at length 0 (T6);
            `confirmed` names nodes of `replicas` only, and is empty while the extent is open (20).

A million extents are held at once: disk uuids, policies and sets of nodes are shared (`shared`), not made for each.
What is made for every call is a tuple: a frozen dataclass of ten fields takes three times as long to make.
"""

from __future__ import annotations

import itertools
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from neve.meta import keys
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm

Labels = tuple[tuple[str, str], ...]

EXTENT_BYTES_LIMIT = 2 << 30  # of any extent: what nodes are made for
REPLICAS_MAX = 7  # of any extent

T = TypeVar("T")
_new = tuple.__new__  # a record from a tuple of all its fields: half the time of the class's own constructor
_SHARED_MAX = 100_000  # distinct small values; far above what a cluster has, and a bound if they are made up
_shared_values: dict[object, object] = {}


def shared(value: T) -> T:
    """One object for all equal values."""
    found = _shared_values.get(value)
    if found is None:
        if len(_shared_values) >= _SHARED_MAX:
            _shared_values.clear()
        found = _shared_values[value] = value
    return found  # type: ignore[return-value]


# --- streams --------------------------------------------------------------------------------------------------


class Policy(NamedTuple):
    """What a stream was created with, the cluster's defaults filled in."""

    replicas: int
    no_sync: bool
    extent_bytes_max: int
    placement: str  # empty: the cluster's default, whatever it is by then
    strict: bool


class Replay(NamedTuple):
    """That a call was executed, and what its answer is made of (26)."""

    method_id: int
    request_crc32c: int
    created_ms: int
    stream_ids: tuple[int, ...] = ()
    extent_ids: tuple[int, ...] = ()
    node_id: int = 0


class StreamCall(NamedTuple):
    """A call whose replay record is part of the stream that it wrote."""

    client_id: int
    call_id: int
    replay: Replay


class Stream(NamedTuple):
    stream_id: int
    name: str  # empty: none
    lock: str
    extent_ids: tuple[int, ...]  # the last one is the tail
    sealed: bool
    policy: Policy
    labels: Labels
    version: int  # counts the changes
    created_ms: int
    truncated_before: int = 0
    mod_revision: int = 0
    made_by: StreamCall | None = None
    linked_by: StreamCall | None = None  # the last extent; of earlier ones the list itself tells what followed (16)
    after_hole: tuple[int, ...] = ()  # extents that do not go on what the one before them in the list has begun

    @property
    def tail_id(self) -> int | None:
        """The last extent. It may be sealed: then the next owner, or the writer's next roll, links a new one."""
        return self.extent_ids[-1] if self.extent_ids else None

    def changed(
        self, extent_ids: tuple[int, ...], *, sealed: bool | None = None, truncated_before: int | None = None
    ) -> Stream:
        """The next version, with another list."""
        return Stream(
            self.stream_id,
            self.name,
            self.lock,
            extent_ids,
            self.sealed if sealed is None else sealed,
            self.policy,
            self.labels,
            self.version + 1,
            self.created_ms,
            self.truncated_before if truncated_before is None else truncated_before,
            0,
            self.made_by,
            self.linked_by,
            self.after_hole,
        )

    def with_list(
        self,
        extent_ids: tuple[int, ...],
        *others: Stream,
        empty: Container[int] = (),
        truncated_before: int | None = None,
    ) -> Stream:
        """The next version with a list that is put together from this stream's, with holes, and from others'. Where one
        that is `empty` is left out there is no hole: a record may have gone on over it."""
        follows: set[tuple[int, int]] = set()
        for stream in (self, *others):
            holes = set(stream.after_hole)
            before: list[int] = []  # what the next one goes on: the last, and if that is empty, the one before it
            for extent_id in stream.extent_ids:
                if extent_id in holes:
                    before = []
                follows.update((each, extent_id) for each in before)
                before = [*before, extent_id] if extent_id in empty else [extent_id]
        after_hole = tuple(pair[1] for pair in itertools.pairwise(extent_ids) if pair not in follows)
        return self.changed(extent_ids, truncated_before=truncated_before)._replace(after_hole=after_hole)

    def linked(self, call: StreamCall) -> Stream:
        """This version, as written by that call."""
        return self._replace(linked_by=call)

    def at(self, mod_revision: int) -> Stream:
        """As committed at this revision. `_replace` takes twice as long."""
        return _new(Stream, (*self[:10], mod_revision, *self[11:]))


# --- extents --------------------------------------------------------------------------------------------------


class ReplicaAt(NamedTuple):
    """A replica by (node, disk), and which making of the file it is. A tuple: a million extents have three each."""

    node_id: int
    disk_uuid: str
    incarnation: int


class ExtentSeal(NamedTuple):
    length: int
    eversion: int
    digest: bytes  # empty until the first replica has confirmed


class Extent(NamedTuple):
    """`mod_revision` is 0 while the extent is young: it has no key of its own and stands in its stream's record."""

    extent_id: int
    eversion: int
    replicas: tuple[ReplicaAt, ...]
    extent_bytes_max: int
    created_ms: int
    stream_id: int  # that it was made for
    seal: ExtentSeal | None = None
    confirmed: tuple[int, ...] = ()  # node ids, in the order of `replicas`
    all_took_part: bool = False
    mod_revision: int = 0
    conflict: bool = False  # an append met other bytes on a replica: digests are compared before one is believed (7)

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple([replica[0] for replica in self.replicas])

    @property
    def all_confirmed(self) -> bool:
        return self.seal is not None and len(self.confirmed) == len(self.replicas)

    def sealed_at(self, length: int, *, all_took_part: bool, conflict: bool = False) -> Extent:
        """As the transaction of rule 19 writes it: nobody has confirmed yet."""
        assert self.seal is None, self
        extent_id, eversion, replicas, size, created, stream_id, *_ = self
        eversion += 1
        seal = _new(ExtentSeal, (length, eversion, b""))
        return _new(
            Extent,
            (extent_id, eversion, replicas, size, created, stream_id, seal, (), all_took_part, 0, conflict),
        )

    def at(self, mod_revision: int) -> Extent:
        """As committed at this revision."""
        return _new(Extent, (*self[:9], mod_revision, self[10]))

    @property
    def young(self) -> bool:
        return not self.mod_revision

    def replica_on(self, node_id: int) -> ReplicaAt | None:
        for replica in self.replicas:
            if replica.node_id == node_id:
                return replica
        return None

    def with_confirmed(self, node_ids: tuple[int, ...] | list[int], digest: bytes) -> Extent:
        """As after these nodes confirmed the seal with this digest (20)."""
        assert self.seal is not None, self
        assert self.seal.digest in (b"", digest), self
        before = self.confirmed
        confirmed = shared(tuple([r[0] for r in self.replicas if r[0] in node_ids or r[0] in before]))
        seal = _new(ExtentSeal, (self.seal.length, self.seal.eversion, digest))
        return _new(Extent, (*self[:6], seal, confirmed, *self[8:]))


def new_extent(
    extent_id: int,
    eversion: int,
    replicas: tuple[ReplicaAt, ...],
    extent_bytes_max: int,
    created_ms: int,
    stream_id: int,
) -> Extent:
    """One that was just made: open, and young."""
    return _new(
        Extent,
        (extent_id, eversion, replicas, extent_bytes_max, created_ms, stream_id, None, (), False, 0, False),
    )


# --- nodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disk:
    disk_uuid: str
    state: en.DiskInfo.State
    capacity_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """What is kept of a node. Usage, load and the age of its heartbeat are the leader's own, in registry.py."""

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
    health: sm.NodeHealth = sm.NODE_HEALTH_ALIVE  # DEAD is stored; the rest is what the last leader saw
    process_id: int = 0
    protocol: int = 0
    build: str = ""
    registered_ms: int = 0
    mod_revision: int = 0

    @property
    def dead(self) -> bool:
        return self.health == sm.NODE_HEALTH_DEAD


# --- tasks, quotas, settings --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """A recovery: one for an extent at a time."""

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
class Quota:
    """Bounds for streams with a label whose text `key=value` begins with `prefix`; 0: not bounded."""

    prefix: str
    streams_max: int = 0
    extents_max: int = 0
    bytes_max: int = 0
    mod_revision: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    stopped_regions: tuple[str, ...] = ()
    mod_revision: int = 0


# --- keys -----------------------------------------------------------------------------------------------------

STREAMS, EXTENTS, NODES, NAMES, TASKS, REPLAY, QUOTAS, SETTINGS, COMMITS, IDS = (
    b"streams/",
    b"extents/",
    b"nodes/",
    b"names/",
    b"recovery/",
    b"replay/",
    b"quotas/",
    b"settings/",
    b"commits/",
    b"ids",
)
SETTINGS_NAME = b"cluster"


root_of = keys.root_of
id_text = keys.id_text


def election_prefix(root: bytes) -> bytes:
    return root + b"leader"
