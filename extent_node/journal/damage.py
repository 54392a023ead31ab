"""Tells a damaged record of the journal from a torn one, where no later record promises anything (rule 13). No I/O.

After a power cut the last group of records may be there in part, and nobody was told of it: that is no damage. A bit
that flipped in it after it was synced is: its record was acknowledged and cannot be read. Two things are proof of that:

    one bit      with one bit changed, the record is valid. By the CRC's linearity that bit is found without trying all:
                 the difference of the checksums is followed backwards, byte by byte, until it is that of a single bit
    one sector   a valid record behind it begins in the sector in which it begins: disks write sectors whole, so that
                 this one was written, and all that is wrong in it has become so later. Whose it was is not known

Invariants: a place that holds what an earlier use of the segment left is neither;
            a torn write passes for a flipped bit by chance only: once in some thousands for records of 256 KiB.
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
SEARCH_BYTES_MAX = 4 << 20  # a garbled size must not cost minutes; records are far smaller

_POLYNOMIAL = 0x82F63B78  # CRC32C, reflected


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where an acknowledged record may have stood. `record` is what it was, if that is known."""

    position: int
    record: Record | None


def find_damage(data: Buffer, position: int, segment_number: int, seed: int) -> Iterator[Damage]:
    """All of it from a position on: of a record, or where the chain breaks."""
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
    """The record of this segment that would stand here but for one bit."""
    if position % ALIGN_BYTES or position + RECORD_HEADER_BYTES > len(data):
        return None
    if decode_record(data, position, seed) is not None:
        return None  # whole: of an earlier use of the file
    for at, bit in _candidates(data, position, seed):
        tried = bytearray(data[position : position + RECORD_HEADER_BYTES + SEARCH_BYTES_MAX])
        tried[at - position] ^= 1 << bit
        record = decode_record(bytes(tried), position, seed, data_from=position)
        if record is not None and record.segment_number == segment_number:
            return record
    return None


def _candidates(data: bytes, position: int, seed: int) -> Iterator[tuple[int, int]]:
    """Bits that may be the one: (byte in `data`, bit)."""
    for wanted in (RECORD_MAGIC, END_MAGIC):
        differs = int.from_bytes(data[position : position + 4], "little") ^ int.from_bytes(wanted, "little")
        if differs.bit_count() == 1:
            yield position + (differs.bit_length() - 1) // 8, (differs.bit_length() - 1) % 8
    for number in range(32):  # of the size: what the checksum covers is then known for each of them
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
_SINGLE_BITS = {_TABLE[1 << bit]: bit for bit in range(8)}  # what one wrong bit in the last byte does to the checksum
assert len(_BY_TOP_BYTE) == 256
