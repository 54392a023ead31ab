"""Distinguishes a damaged record of the journal from a torn one where no later record promises anything. No I/O.

Protocol rule 13. After a power cut the last group of records may be partly written. No reply covered it, so that is no
damage. A bit that flipped after the group was synced is damage: the record was acknowledged and cannot be read. There
are two proofs of that:

    one bit      with one bit changed, the record is valid. The CRC is linear, so that bit is found without trying all:
                 the difference of the checksums is followed backwards, byte by byte, until it is that of a single bit
    one sector   a valid record behind it begins in the same sector. Disks write sectors whole, so this one was
                 written, and whatever is wrong in it changed later. The record's extent is unknown

Invariants: a place that holds bytes of an earlier use of the segment is neither;
            a torn write is taken for a flipped bit only by chance: once in some thousands for records of 256 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neve.extent_node.journal.format import (
    ALIGN_BYTES,
    CRC_FROM,
    END_MAGIC,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    Record,
    decode_record,
    find_records,
    walk_records_from,
)
from neve.proto.crc import Buffer, crc32c

SECTOR_BYTES = 512
SEARCH_BYTES_MAX = 4 << 20  # a garbled size must not cost minutes; real records are far smaller

_POLYNOMIAL = 0x82F63B78  # CRC32C, reflected


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where an acknowledged record may have been. `record` is that record, if known."""

    position: int
    record: Record | None


def find_damage(data: Buffer, position: int, segment_number: int, seed: int) -> Iterator[Damage]:
    """All damage of a segment from a position on, which is a record's or the chain's end."""
    raw = bytes(data)
    while True:
        for whole in walk_records_from(raw, position, segment_number, seed):
            position = whole.end_position
            if whole.is_end:
                return
        record = _with_one_bit_changed(raw, position, segment_number, seed)
        if record is not None:
            yield Damage(position, record)
            position = record.end_position
            continue
        behind = (found for found in find_records(raw, position, seed) if found.segment_number == segment_number)
        next_one = next(behind, None)
        if next_one is None:
            return
        if next_one.position // SECTOR_BYTES == position // SECTOR_BYTES:
            yield Damage(position, None)
        position = next_one.position


def _with_one_bit_changed(data: bytes, position: int, segment_number: int, seed: int) -> Record | None:
    """The record of this segment that is here except for one bit."""
    if position % ALIGN_BYTES or position + RECORD_HEADER_BYTES > len(data):
        return None
    if decode_record(data, position, seed) is not None:
        return None  # whole: it belongs to an earlier use of the file
    for at, bit in _candidates(data, position, seed):
        tried = bytearray(data[position : position + RECORD_HEADER_BYTES + SEARCH_BYTES_MAX])
        tried[at - position] ^= 1 << bit
        record = decode_record(bytes(tried), position, seed, data_from=position)
        if record is not None and record.segment_number == segment_number:
            return record
    return None


def _candidates(data: bytes, position: int, seed: int) -> Iterator[tuple[int, int]]:
    """The bits that may have flipped: (byte in `data`, bit)."""
    for wanted in (RECORD_MAGIC, END_MAGIC):
        differs = int.from_bytes(data[position : position + 4], "little") ^ int.from_bytes(wanted, "little")
        if differs.bit_count() == 1:
            yield position + (differs.bit_length() - 1) // 8, (differs.bit_length() - 1) % 8
    for number in range(32):  # bits of the size: each gives another range that the checksum covers
        yield position + CRC_FROM + number // 8, number % 8
    size_bytes = int.from_bytes(data[position + CRC_FROM : position + CRC_FROM + 4], "little")
    end = position + RECORD_HEADER_BYTES + size_bytes
    if end > len(data) or size_bytes > SEARCH_BYTES_MAX:
        return
    stored = int.from_bytes(data[position + 4 : position + CRC_FROM], "little")
    difference = crc32c(data[position + CRC_FROM : end], seed) ^ stored
    if difference.bit_count() == 1:
        number = difference.bit_length() - 1
        yield position + 4 + number // 8, number % 8
    for steps in range(end - position - CRC_FROM):
        bit = _SINGLE_BITS.get(difference)
        if bit is not None:
            yield end - 1 - steps, bit
            return
        index = _BY_TOP_BYTE[difference >> 24]
        difference = (difference ^ _TABLE[index]) << 8 & 0xFFFFFFFF | index


def _table() -> list[int]:
    table = []
    for value in range(256):
        register = value
        for _ in range(8):
            register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        table.append(register)
    return table


_TABLE = _table()
_BY_TOP_BYTE = {entry >> 24: index for index, entry in enumerate(_TABLE)}
_SINGLE_BITS = {_TABLE[1 << bit]: bit for bit in range(8)}  # how one wrong bit in the last byte changes the checksum
assert len(_BY_TOP_BYTE) == 256
