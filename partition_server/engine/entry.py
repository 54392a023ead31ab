"""An entry: one version of one object, as the memtable, the log and the tables have it, and where its value is.

Invariants: `seq` orders all entries of a partition. `version` is what users see: the seq of the put that made the
            object, which a moved value keeps;
            a value is either inside `data` (the log record, or the value alone), or in parts of log records;
            an entry in memory shares nothing: entries of a batch have no common record to keep alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from neve.client.streams.types import Position
from neve.proto import partition_server_pb2 as ps

if TYPE_CHECKING:
    from neve.partition_server.engine.write import Write

PUT = 1
DELETE = 3

ENTRY_BYTES = 320  # approximate memory of an entry beside its record: the object, its key, two table slots

_PART = struct.Struct("<QQII")
PART_BYTES = _PART.size


class Part(NamedTuple):
    """`length` bytes at `at` in the payload of the log record at (extent_id, offset)."""

    extent_id: int
    offset: int
    at: int
    length: int

    @property
    def position(self) -> Position:
        return Position(self.extent_id, self.offset)


Parts = tuple[Part, ...]


def encode_parts(parts: Iterable[Part]) -> bytes:
    return b"".join([_PART.pack(*part) for part in parts])


def decode_parts(data: bytes | memoryview) -> Parts:
    """Decode parts. Raises struct.error for a length that is not a multiple of a part's."""
    return tuple(Part(*fields) for fields in _PART.iter_unpack(data))


class Info(NamedTuple):
    """The result of a call, as it is answered and remembered."""

    version: int
    size_bytes: int
    modified_ms: int
    expires_ms: int
    crc: int

    def message(self, key: bytes) -> ps.ObjectInfo:
        return ps.ObjectInfo(
            key=key,
            version=self.version,
            size_bytes=self.size_bytes,
            modified_ms=self.modified_ms,
            expires_ms=self.expires_ms,
            value_crc32c=self.crc,
        )


new_info = tuple.__new__  # new_info(Info, (version, …)) costs a third of Info(...); called for every put

GONE = Info(0, 0, 0, 0, 0)  # the result for an object that a batch has deleted


class Entry:
    """A PUT or a DELETE, as `kind` says. `older`: earlier versions that snapshots may still need."""

    __slots__ = (
        "applied",
        "crc",
        "data",
        "expires_ms",
        "key",
        "kind",
        "modified_ms",
        "older",
        "parts",
        "position",
        "seq",
        "size_bytes",
        "value_at",
        "version",
        "write",
    )

    def __init__(
        self,
        key: bytes,
        kind: int,
        seq: int,
        version: int,
        modified_ms: int,
        expires_ms: int,
        crc: int,
        size_bytes: int,
        data: bytes,
        value_at: int,
        parts: Parts | None,
    ) -> None:
        self.key = key
        self.kind = kind
        self.seq = seq
        self.version = version
        self.modified_ms = modified_ms
        self.expires_ms = expires_ms
        self.crc = crc
        self.size_bytes = size_bytes
        self.data = data
        self.value_at = value_at
        self.parts = parts
        self.position: Position | None = None  # of its log record, once that is acknowledged
        self.applied = 0  # its number in the order of acknowledgements
        self.older: Entry | None = None
        self.write: Write | None = None  # until it is acknowledged

    def info(self) -> Info:
        return Info(self.version, self.size_bytes, self.modified_ms, self.expires_ms, self.crc)

    def message(self) -> ps.ObjectInfo:
        return ps.ObjectInfo(
            key=self.key,
            version=self.version,
            size_bytes=self.size_bytes,
            modified_ms=self.modified_ms,
            expires_ms=self.expires_ms,
            value_crc32c=self.crc,
        )

    def exists(self, now_ms: int) -> bool:
        return self.kind == PUT and not (self.expires_ms and self.expires_ms <= now_ms)

    def memory_bytes(self) -> int:
        parts = self.parts
        return len(self.data) + len(self.key) + ENTRY_BYTES + (100 * len(parts) if parts is not None else 0)

    @property
    def record_at(self) -> int:
        """The offset of the value in its log record."""
        return self.value_at

    @property
    def record_bytes(self) -> int:
        """The length of that log record."""
        return len(self.data)

    def __repr__(self) -> str:
        kind = "put" if self.kind == PUT else "delete"
        return f"<{kind} {self.key!r} seq={self.seq} version={self.version} size={self.size_bytes}>"


class BatchEntry(Entry):
    """An entry whose log record is a batch's; `data` is the value alone."""

    __slots__ = ("record_at", "record_bytes")

    record_at: int
    record_bytes: int
