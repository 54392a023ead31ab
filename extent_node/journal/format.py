"""The journal's bytes: segment headers and records, their encoding and scanning. No I/O. See docs/formats/journal.md.

A journal is a ring of segment files of one size. Each use of a segment file has a number higher than all before. A
record has the number and its position, so that records of an earlier use are never taken for records of this one.

Invariants: a record binds segment number, position, disk, extent, incarnation and offset to its payload by one CRC,
            seeded with the journal's uuid: a record of another journal, or inside a payload, is not valid;
            `durable_through` is a promise: all records below that LSN were on stable storage when this one was written.
            So an invalid record below it is damage, and an invalid record above it may be a torn write.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from neve.proto.crc import Buffer, crc32c

FORMAT_VERSION = 1

HEADER_MAGIC = b"NVJS"
RECORD_MAGIC = b"NVJR"
END_MAGIC = b"NVJE"

# magic, crc, format version, padding, segment number, needed from, journal uuid
_HEADER = struct.Struct("<4sIIIQQ16s")
# magic, crc, payload bytes, position, segment number, durable through, needed from, disk, extent, incarnation, offset
_RECORD = struct.Struct("<4sIIIQQQQQQQ")
CRC_FROM = 8  # the checksum covers the bytes from here on, behind itself
_MAGIC_AND_CRC, _COVERED = struct.Struct("<4sI"), struct.Struct("<IIQQQQQQQ")  # a record's header in two parts

RECORD_HEADER_BYTES = _RECORD.size
ALIGN_BYTES = 8
# The header has a sector of its own: it is written once per use of the segment, and no later write can tear it.
FIRST_POSITION = 4096

SEGMENT_BYTES_MIN = FIRST_POSITION + 4096

assert RECORD_HEADER_BYTES % ALIGN_BYTES == 0
assert _MAGIC_AND_CRC.size + _COVERED.size == RECORD_HEADER_BYTES

_PADDING = [bytes(-size_bytes % ALIGN_BYTES) for size_bytes in range(ALIGN_BYTES)]  # by payload size modulo ALIGN_BYTES


def lsn_of(segment_number: int, position: int) -> int:
    """A record's log sequence number: its place as one number that grows over all segments."""
    return segment_number << 32 | position


def segment_of(lsn: int) -> int:
    return lsn >> 32


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record: bytes of one extent, or the end of a segment (`is_end`)."""

    is_end: bool
    payload_bytes: int
    position: int
    segment_number: int
    durable_through: int  # LSN
    needed_from: int  # LSN: all records below it are in their extents' own files, on stable storage
    disk: int  # short id
    extent_id: int
    incarnation: int
    offset: int

    @property
    def lsn(self) -> int:
        return lsn_of(self.segment_number, self.position)

    @property
    def end_position(self) -> int:
        return self.position + record_bytes(self.payload_bytes)

    @property
    def payload_position(self) -> int:
        return self.position + RECORD_HEADER_BYTES


def record_bytes(payload_bytes: int) -> int:
    """The size of a record in the segment, with header and padding."""
    return RECORD_HEADER_BYTES + -(-payload_bytes // ALIGN_BYTES) * ALIGN_BYTES


def crc_seed(journal_uuid: bytes) -> int:
    return crc32c(journal_uuid)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    number: int
    needed_from: int  # LSN, as in a record: the file's earlier content is no longer needed


def encode_header(header: SegmentHeader, journal_uuid: bytes) -> bytes:
    fields = (FORMAT_VERSION, 0, header.number, header.needed_from, journal_uuid)
    body = _HEADER.pack(HEADER_MAGIC, 0, *fields)[CRC_FROM:]
    return _HEADER.pack(HEADER_MAGIC, crc32c(body, crc_seed(journal_uuid)), *fields)


def decode_header(data: Buffer, journal_uuid: bytes) -> SegmentHeader | None:
    """None if there is no valid header of this journal."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, version, _, number, needed_from, uuid = _HEADER.unpack_from(data)
    if magic != HEADER_MAGIC or version != FORMAT_VERSION or uuid != journal_uuid:
        return None
    if crc != crc32c(bytes(data[CRC_FROM : _HEADER.size]), crc_seed(journal_uuid)):
        return None
    return SegmentHeader(int(number), int(needed_from))


class Entry(NamedTuple):
    """Bytes of one extent for the journal. `holder` is the replica whose own file does not have them durably yet."""

    holder: Hashable
    disk: int
    extent_id: int
    incarnation: int
    offset: int
    payload: list[Buffer]
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.payload_bytes


def encode_records(
    entries: Iterable[Entry],
    *,
    seed: int,
    position: int,
    segment_number: int,
    durable_through: int,
    needed_from: int,
    position_max: int,
) -> tuple[list[Buffer], int, int]:
    """Encode entries, from the first one on, up to `position_max`.

    Returns the buffers to write at `position`, the number of entries in them, and the end position. One call encodes
    all, because this runs for every append.
    """
    buffers: list[Buffer] = []
    taken = 0
    pack, pack_head, extend, paddings = _COVERED.pack, _MAGIC_AND_CRC.pack, google_crc32c.extend, _PADDING
    for _, disk, extent_id, incarnation, offset, payload, size_bytes in entries:
        end = position + record_bytes(size_bytes)
        if end > position_max:
            break
        covered = pack(
            size_bytes, position, segment_number, durable_through, needed_from, disk, extent_id, incarnation, offset
        )
        crc = extend(seed, covered)
        if len(payload) == 1 and type(piece := payload[0]) is bytes:  # the usual record: one small append
            buffers += (pack_head(RECORD_MAGIC, extend(crc, piece)), covered, piece, paddings[size_bytes % ALIGN_BYTES])
        else:
            for piece in payload:
                crc = crc32c(piece, crc)
            buffers += (pack_head(RECORD_MAGIC, crc), covered, *payload, paddings[size_bytes % ALIGN_BYTES])
        position = end
        taken += 1
    return buffers, taken, position


def encode_end(*, seed: int, position: int, segment_number: int, durable_through: int, needed_from: int) -> bytes:
    """The record that ends a segment: the chain continues in the next one."""
    fields = (0, position, segment_number, durable_through, needed_from, 0, 0, 0, 0)
    header = _RECORD.pack(END_MAGIC, 0, *fields)
    return _RECORD.pack(END_MAGIC, crc32c(header[CRC_FROM:], seed), *fields)


def decode_record(data: Buffer, position: int, seed: int, *, data_from: int = 0) -> Record | None:
    """The record at this position of a segment; None if there is no valid one.

    `data` are the segment's bytes from `data_from` on.
    """
    at = position - data_from
    if at + RECORD_HEADER_BYTES > len(data):
        return None
    magic, crc, payload_bytes, *fields = _RECORD.unpack_from(data, at)
    if magic not in (RECORD_MAGIC, END_MAGIC) or fields[0] != position:
        return None
    end = at + RECORD_HEADER_BYTES + payload_bytes
    if end > len(data):
        return None
    if crc32c(memoryview(data)[at + CRC_FROM : end], seed) != crc:
        return None
    return Record(magic == END_MAGIC, payload_bytes, *fields)


def announced_end(data: Buffer, position: int, segment_number: int) -> int:
    """Where the record at this position would end by its own size field, whole or not.

    If the header is not of a record of this segment, this is the header's end.
    """
    header_end = position + RECORD_HEADER_BYTES
    if header_end > len(data):
        return header_end
    magic, _, payload_bytes, *fields = _RECORD.unpack_from(data, position)
    if magic not in (RECORD_MAGIC, END_MAGIC) or fields[:2] != [position, segment_number]:
        return header_end
    return header_end + int(payload_bytes)


@dataclass(slots=True)
class SegmentScan:
    """What one segment file contributes to the chain."""

    number: int | None  # None: never used, or without anything valid
    end_position: int = FIRST_POSITION  # behind the last record of the unbroken run
    ended: bool = False  # the run ends with an end record
    durable_through: int = 0  # the highest promise of any valid record, including those behind a broken place
    needed_from: int = 0
    records: int = 0

    def believe(self, record: Record) -> None:
        self.durable_through = max(self.durable_through, record.durable_through)
        self.needed_from = max(self.needed_from, record.needed_from)


def scan_segment(data: Buffer, journal_uuid: bytes) -> SegmentScan:
    """Walk the records from the start; behind the first invalid place, search for valid ones that make promises."""
    seed = crc_seed(journal_uuid)
    header = decode_header(data, journal_uuid)
    if header is not None:
        scan = SegmentScan(header.number, needed_from=header.needed_from)
    else:
        # Torn while the file was prepared for its next use, or damaged: the newest record shows which use this is.
        numbers = [record.segment_number for record in find_records(data, FIRST_POSITION, seed)]
        scan = SegmentScan(max(numbers, default=None))
    if scan.number is not None:
        for record in walk_records(data, scan.number, seed):
            scan.believe(record)
            scan.end_position = record.end_position
            scan.ended = record.is_end
            scan.records += 1
    if not scan.ended:
        # A record of an earlier use of this file promises nothing beyond that use, so it does no harm here.
        for record in find_records(data, scan.end_position, seed):
            scan.believe(record)
    return scan


def walk_records(data: Buffer, segment_number: int, seed: int) -> Iterator[Record]:
    """The unbroken run of this segment's records, including the end record."""
    return walk_records_from(data, FIRST_POSITION, segment_number, seed)


def walk_records_from(data: Buffer, position: int, segment_number: int, seed: int) -> Iterator[Record]:
    """The unbroken run of this segment's records from a position on, including the end record."""
    while True:
        record = decode_record(data, position, seed)
        if record is None or record.segment_number != segment_number:
            return
        yield record
        if record.is_end:
            return
        position = record.end_position


def find_records(data: Buffer, position: int, seed: int) -> Iterator[Record]:
    """All valid records at or above a position, whatever lies between them."""
    raw = bytes(data) if not isinstance(data, bytes) else data
    prefix = RECORD_MAGIC[:3]  # shared by both kinds of record
    while (position := raw.find(prefix, position)) >= 0:
        record = decode_record(raw, position, seed) if position % ALIGN_BYTES == 0 else None
        if record is not None:
            yield record
            position = record.end_position
        else:
            position += 1
