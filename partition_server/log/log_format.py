"""The records of a partition's log stream. docs/formats/log.md has the grammar and examples.

    record := header | body       header: 64 bytes, little-endian

Invariants: one record is one write, applied as a whole or not at all; its seq is above that of every earlier record;
            a PART belongs to nothing until a later record names it;
            there is no I/O here; the stream's blocks already have a checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat

from neve.partition_server.engine.entry import (
    DELETE,
    PART_BYTES,
    PUT,
    BatchEntry,
    Entry,
    Parts,
    decode_parts,
    encode_parts,
)
from neve.proto.crc import Buffer, crc32c_bytes
from neve.proto.errors import UnsupportedVersion

FORMAT = 1

# format, kind, key bytes, value crc, seq, client, call, completed below, modified, expires, value bytes
_HEADER = struct.Struct("<BBHIQQQQQQQ")
HEADER_BYTES = _HEADER.size
_VERSION = struct.Struct("<Q")
VERSION_BYTES = _VERSION.size
# for one operation of a batch: kind, zero, key bytes, value crc, expires, value bytes, parts
_OPERATION = struct.Struct("<BBHIQQI")
OPERATION_BYTES = _OPERATION.size


class Kind(IntEnum):
    """The kinds of records; 0 is not used."""

    PUT = 1  # body: key, value
    PUT_PARTS = 2  # body: key, parts; the value is in those parts of earlier records
    DELETE = 3  # body: key
    BATCH = (
        4  # body: operations; `value bytes` is their number, and each has a seq of its own, counted from the header's
    )
    PART = 5  # body: key, bytes; seq 0; `client` is the upload, `completed below` the offset in the object
    MOVE = 6  # body: version, key, value: an object as it was, in a new place
    MOVE_PARTS = 7  # body: version, key, parts
    LOADED = 8  # no body; an owner has loaded the partition, and read up to here: `client` is the partition


class BadRecord(ValueError):
    """The bytes are not a record of this format."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The call behind a write, as the log keeps it. Client 0: results are not remembered."""

    client_id: int = 0
    call_id: int = 0
    completed_below: int = 0


NOBODY = Caller()


@dataclass(slots=True)
class LogRecord:
    """A decoded record. A PART has one entry, with the record as its data, that belongs to no object yet."""

    kind: int
    seq: int
    client_id: int
    call_id: int
    completed_below: int
    modified_ms: int
    entries: list[Entry]


# --- making records ------------------------------------------------------------------------------------------


def encode_put(
    key: bytes, value: Buffer, *, seq: int, caller: Caller, modified_ms: int, expires_ms: int, crc: int
) -> tuple[bytes, Entry]:
    """Return the record and its entry, whose value is inside the record."""
    size_bytes = len(value)
    header = _HEADER.pack(
        *(FORMAT, 1, len(key), crc, seq, caller.client_id, caller.call_id, caller.completed_below),
        *(modified_ms, expires_ms, size_bytes),
    )
    data = b"".join((header, key, value))
    value_at = HEADER_BYTES + len(key)
    return data, Entry(key, PUT, seq, seq, modified_ms, expires_ms, crc, size_bytes, data, value_at, None)


def encode_puts(
    keys: Sequence[bytes],
    values: Sequence[Buffer],
    *,
    seq: int,
    client_id: int,
    call_ids: Sequence[int],
    completed_below: int,
    modified_ms: int,
    ttls_ms: Sequence[int],
) -> tuple[list[bytes], list[Entry]]:
    """The same for many puts of one client, with seqs from `seq` on. Without `ttls_ms`, none expires."""
    pack, join, checksum = _HEADER.pack, b"".join, crc32c_bytes
    records: list[bytes] = []
    entries: list[Entry] = []
    for key, value, call_id, ttl_ms in zip(keys, values, call_ids, ttls_ms or repeat(0, len(keys)), strict=True):
        if type(value) is not bytes:
            value = bytes(value)
        crc, size_bytes, key_bytes = checksum(value), len(value), len(key)
        expires_ms = modified_ms + ttl_ms if ttl_ms else 0
        header = pack(
            FORMAT, 1, key_bytes, crc, seq, client_id, call_id, completed_below, modified_ms, expires_ms, size_bytes
        )
        data = join((header, key, value))
        records.append(data)
        entries.append(
            Entry(key, 1, seq, seq, modified_ms, expires_ms, crc, size_bytes, data, HEADER_BYTES + key_bytes, None)
        )
        seq += 1
    return records, entries


def encode_put_parts(
    key: bytes,
    parts: Parts,
    *,
    seq: int,
    caller: Caller,
    modified_ms: int,
    expires_ms: int,
    crc: int,
    size_bytes: int,
) -> tuple[bytes, Entry]:
    header = _HEADER.pack(
        *(FORMAT, Kind.PUT_PARTS, len(key), crc, seq, caller.client_id, caller.call_id, caller.completed_below),
        *(modified_ms, expires_ms, size_bytes),
    )
    data = b"".join((header, key, encode_parts(parts)))
    return data, Entry(key, PUT, seq, seq, modified_ms, expires_ms, crc, size_bytes, b"", 0, parts)


def encode_delete(key: bytes, *, seq: int, caller: Caller, modified_ms: int) -> tuple[bytes, Entry]:
    header = _HEADER.pack(
        *(FORMAT, Kind.DELETE, len(key), 0, seq, caller.client_id, caller.call_id, caller.completed_below),
        *(modified_ms, 0, 0),
    )
    return header + key, Entry(key, DELETE, seq, seq, modified_ms, 0, 0, 0, b"", 0, None)


@dataclass(frozen=True, slots=True)
class BatchPut:
    """A put of a batch: its value, or the parts that were written before."""

    key: bytes
    value: Buffer | Parts
    expires_ms: int
    crc: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BatchDelete:
    key: bytes


def encode_batch(
    operations: Sequence[BatchPut | BatchDelete], *, seq: int, caller: Caller, modified_ms: int
) -> tuple[bytes, list[Entry]]:
    pieces: list[Buffer] = [
        _HEADER.pack(
            *(FORMAT, Kind.BATCH, 0, 0, seq, caller.client_id, caller.call_id, caller.completed_below),
            *(modified_ms, 0, len(operations)),
        )
    ]
    for each in operations:
        if isinstance(each, BatchDelete):
            pieces += (_OPERATION.pack(Kind.DELETE, 0, len(each.key), 0, 0, 0, 0), each.key)
            continue
        in_parts = isinstance(each.value, tuple)
        kind = Kind.PUT_PARTS if in_parts else Kind.PUT
        count = len(each.value) if in_parts else 0
        pieces.append(_OPERATION.pack(kind, 0, len(each.key), each.crc, each.expires_ms, each.size_bytes, count))
        pieces += (each.key, encode_parts(each.value) if isinstance(each.value, tuple) else each.value)
    data = b"".join(pieces)
    return data, decode(data).entries


def encode_part(key: bytes, value: Buffer, *, upload_id: int, offset: int) -> tuple[bytes, int]:
    """Return the record and the offset of the bytes in it."""
    header = _HEADER.pack(FORMAT, Kind.PART, len(key), 0, 0, upload_id, 0, offset, 0, 0, len(value))
    return b"".join((header, key, value)), HEADER_BYTES + len(key)


def encode_move(entry: Entry, value: Buffer | Parts, *, seq: int) -> tuple[bytes, Entry]:
    """The same object with a new seq and its value in a new place, here or in these parts."""
    in_parts = isinstance(value, tuple)
    kind = Kind.MOVE_PARTS if in_parts else Kind.MOVE
    key = entry.key
    header = _HEADER.pack(
        *(FORMAT, kind, len(key), entry.crc, seq, 0, 0, 0, entry.modified_ms, entry.expires_ms, entry.size_bytes)
    )
    body = encode_parts(value) if isinstance(value, tuple) else value
    data = b"".join((header, _VERSION.pack(entry.version), key, body))
    return data, decode(data).entries[0]


def encode_loaded(partition_id: int, *, modified_ms: int) -> bytes:
    return _HEADER.pack(FORMAT, Kind.LOADED, 0, 0, 0, partition_id, 0, 0, modified_ms, 0, 0)


# --- reading records -----------------------------------------------------------------------------------------


def decode(data: bytes) -> LogRecord:
    """Decode a record. Raises BadRecord or UnsupportedVersion."""
    if len(data) < HEADER_BYTES:
        raise BadRecord(f"{len(data)} bytes, less than a header")
    form, kind, key_bytes, crc, seq, *caller, modified_ms, expires_ms, size_bytes = _HEADER.unpack_from(data)
    client_id, call_id, completed_below = caller
    if form != FORMAT:
        raise UnsupportedVersion(what="log record", version=form, supported_min=FORMAT, supported_max=FORMAT)
    at = HEADER_BYTES + key_bytes
    key = data[HEADER_BYTES:at]
    if kind == 1:  # PUT, the most frequent kind
        entry = Entry(key, PUT, seq, seq, modified_ms, expires_ms, crc, size_bytes, data, at, None)
        end = at + size_bytes
    elif kind == Kind.PUT_PARTS:
        parts = _decode_parts(data[at:])
        entry = Entry(key, PUT, seq, seq, modified_ms, expires_ms, crc, size_bytes, b"", 0, parts)
        end = len(data)
        _check_parts(parts, size_bytes)
    elif kind == Kind.DELETE:
        entry = Entry(key, DELETE, seq, seq, modified_ms, 0, 0, 0, b"", 0, None)
        end = at
    elif kind == Kind.BATCH:
        entries = _decode_batch(data, seq=seq, modified_ms=modified_ms, count=size_bytes)
        return LogRecord(kind, seq, client_id, call_id, completed_below, modified_ms, entries)
    elif kind == Kind.PART:
        entry = Entry(key, PUT, 0, 0, 0, 0, 0, size_bytes, data, at, None)
        end = at + size_bytes
    elif kind in (Kind.MOVE, Kind.MOVE_PARTS):
        entry = _decode_move(data, kind, key_bytes, seq, modified_ms, expires_ms, crc, size_bytes)
        end = len(data)
    elif kind == Kind.LOADED:
        return LogRecord(kind, 0, 0, 0, 0, modified_ms, [])
    else:
        raise BadRecord(f"kind {kind}")
    if end != len(data):
        raise BadRecord(f"kind {kind}: {len(data)} bytes instead of {end}")
    return LogRecord(kind, seq, client_id, call_id, completed_below, modified_ms, [entry])


def _decode_move(
    data: bytes, kind: int, key_bytes: int, seq: int, modified_ms: int, expires_ms: int, crc: int, size_bytes: int
) -> Entry:
    at = HEADER_BYTES + _VERSION.size
    end = at + key_bytes
    if len(data) < end:
        raise BadRecord(f"{len(data)} bytes, less than a key of {key_bytes}")
    (version,) = _VERSION.unpack_from(data, HEADER_BYTES)
    key = data[at:end]
    if kind == Kind.MOVE:
        if len(data) != end + size_bytes:
            raise BadRecord(f"{len(data)} bytes instead of {end + size_bytes}")
        return Entry(key, PUT, seq, version, modified_ms, expires_ms, crc, size_bytes, data, end, None)
    parts = _decode_parts(data[end:])
    _check_parts(parts, size_bytes)
    return Entry(key, PUT, seq, version, modified_ms, expires_ms, crc, size_bytes, b"", 0, parts)


def _decode_batch(data: bytes, *, seq: int, modified_ms: int, count: int) -> list[Entry]:
    entries: list[Entry] = []
    entry: Entry
    at = HEADER_BYTES
    for number in range(seq, seq + count):
        if len(data) - at < OPERATION_BYTES:
            raise BadRecord(f"a batch of {count} ends in its operation {number - seq}")
        kind, _, key_bytes, crc, expires_ms, size_bytes, parts_count = _OPERATION.unpack_from(data, at)
        at += OPERATION_BYTES
        key = data[at : at + key_bytes]
        at += key_bytes
        if kind == Kind.PUT:
            value = data[at : at + size_bytes]
            put = BatchEntry(key, PUT, number, number, modified_ms, expires_ms, crc, size_bytes, value, 0, None)
            put.record_at, put.record_bytes = at, len(data)
            entry = put
            at += size_bytes
        elif kind == Kind.PUT_PARTS:
            parts = _decode_parts(data[at : at + parts_count * PART_BYTES])
            _check_parts(parts, size_bytes)
            entry = Entry(key, PUT, number, number, modified_ms, expires_ms, crc, size_bytes, b"", 0, parts)
            at += parts_count * PART_BYTES
        elif kind == Kind.DELETE:
            entry = Entry(key, DELETE, number, number, modified_ms, 0, 0, 0, b"", 0, None)
        else:
            raise BadRecord(f"kind {kind} in a batch")
        entries.append(entry)
    if at != len(data):
        raise BadRecord(f"a batch of {len(data)} bytes instead of {at}")
    return entries


def _decode_parts(data: bytes) -> Parts:
    try:
        return decode_parts(data)
    except struct.error as error:
        raise BadRecord(f"{len(data)} bytes of parts: {error}") from None


def _check_parts(parts: Parts, size_bytes: int) -> None:
    if sum(part.length for part in parts) != size_bytes:
        raise BadRecord(f"the parts of a value of {size_bytes} bytes: {parts}")
