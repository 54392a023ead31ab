"""The region map (key ranges and their partition servers) and the partition servers, as of one metadata revision.

Invariants: a record is never changed, only replaced by a transaction that compares its mod revision;
            a record of an unknown format is refused, because no map is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from neve.meta import keys
from neve.meta.txn import KeyValue
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import UnsupportedVersion

FORMAT = 1

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Stored(Generic[R]):
    record: R
    mod_revision: int
    lease_id: int = 0


class RegionsState:
    """The decoded records. It implements `follower.Followed`."""

    def __init__(self, root: bytes) -> None:
        self.revision = 0
        self.regions: dict[int, Stored[pm.RegionRecord]] = {}
        self.servers: dict[int, Stored[pm.PartitionServerEntry]] = {}
        self.map: Stored[pm.RegionMapRecord] | None = None  # None: the cluster has no regions yet
        self._root = root
        self._map_key = keys.region_map_key(root)

    @property
    def version(self) -> int:
        return self.map.record.version if self.map is not None else 0

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None:
        for kv in kvs:
            self.put_key(kv)
        self.revision = max(self.revision, revision)

    def put_key(self, kv: KeyValue) -> None:
        if kv.key == self._map_key:
            self.map = _stored(pm.RegionMapRecord(), kv)
            return
        kind, number = self._kind(kv.key)
        if kind == keys.REGIONS:
            self.regions[number] = _stored(pm.RegionRecord(), kv)
        elif kind == keys.PARTITION_SERVERS:
            self.servers[number] = _stored(pm.PartitionServerEntry(), kv)

    def delete_key(self, key: bytes) -> None:
        if key == self._map_key:
            self.map = None
            return
        kind, number = self._kind(key)
        if kind == keys.REGIONS:
            self.regions.pop(number, None)
        elif kind == keys.PARTITION_SERVERS:
            self.servers.pop(number, None)

    def _kind(self, key: bytes) -> tuple[bytes, int]:
        kind, slash, name = key[len(self._root) :].partition(b"/")
        kind += slash
        return (kind, int(name, 16)) if kind in (keys.REGIONS, keys.PARTITION_SERVERS) else (b"", 0)


def decode_region(value: bytes) -> pm.RegionRecord:
    return _checked(pm.RegionRecord.FromString(value))


def _stored(record: R, kv: KeyValue) -> Stored[R]:
    record.ParseFromString(kv.value)
    return Stored(_checked(record), kv.mod_revision, kv.lease_id)


def _checked(record: R) -> R:
    version = record.format  # type: ignore[attr-defined]
    if version != FORMAT:
        what = type(record).__name__
        raise UnsupportedVersion(what=what, version=version, supported_min=FORMAT, supported_max=FORMAT)
    return record
