"""Reading the journal on start: the chain of its records, where it ends, and whether something is missing in it.

The chain begins at the oldest record that may still be needed and goes on, record by record and segment by segment, to
the first place without a valid one. That place is the end, unless a valid record elsewhere promises that what stood
there was durable: then it is a hole (rule 13).

Invariants: nothing here writes; memory is bounded by one segment, however long the chain;
            records behind the end are given only if there is a hole: otherwise nobody was ever told of them.
Neighbours: `store_replay` applies the records to replicas and decides what a hole means for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neve.extent_node.fs import FileSystem
from neve.extent_node.journal_format import (
    Record,
    SegmentScan,
    crc_seed,
    find_records,
    lsn_of,
    scan_segment,
    segment_of,
    walk_records,
)
from neve.extent_node.journal_label import JournalLabel, slot_path


@dataclass(frozen=True, slots=True)
class _Found:
    slot: int
    scan: SegmentScan


class Chain:
    """The records that a start must look at. Make it with `read_chain`."""

    def __init__(self, fs: FileSystem, folder: str, label: JournalLabel, journal_uuid: bytes) -> None:
        self._fs = fs
        self._folder = folder
        self._label = label
        self._journal_uuid = journal_uuid
        self._found: dict[int, _Found] = {}  # by segment number
        self.first_number = label.fresh_from
        self.end_lsn = 0
        self.number_seen_max = label.fresh_from - 1
        self.hole = ""  # what is missing, in words; empty: nothing is
        self._scan()

    def _scan(self) -> None:
        if not self._label.in_use:
            return  # the last process stopped cleanly: whatever is in the segments, nobody depends on it
        promised = needed_from = 0
        missing = []
        for slot in range(self._label.slots):
            data = _read_segment(self._fs, self._folder, slot, self._label.segment_bytes)
            if data is None:
                missing.append(slot)
                continue
            scan = scan_segment(data, self._journal_uuid)
            if scan.number is None:
                continue
            self.number_seen_max = max(self.number_seen_max, scan.number)
            if scan.number >= self._label.fresh_from:
                self._found[scan.number] = _Found(slot, scan)
                promised = max(promised, scan.durable_through)
                needed_from = max(needed_from, scan.needed_from)
        self.first_number = max(self._label.fresh_from, segment_of(needed_from))
        self.end_lsn = self._follow()
        if missing:
            self.hole = f"segment file {slot_path(self._folder, missing[0])} is missing"
        elif promised > self.end_lsn:
            number, position = segment_of(self.end_lsn), self.end_lsn & 0xFFFFFFFF
            self.hole = f"no valid record in segment {number} at {position}, though later ones say that one was durable"

    def _follow(self) -> int:
        """Where the unbroken chain ends."""
        number = self.first_number
        while (found := self._found.get(number)) is not None:
            if not found.scan.ended:
                return lsn_of(number, found.scan.end_position)
            number += 1
        return lsn_of(number, 0)

    def records(self) -> Iterator[tuple[Record, memoryview]]:
        """Each record with its payload, in the order of writing. A payload lives until the next one is asked for."""
        seed = crc_seed(self._journal_uuid)
        for number in sorted(self._found):
            if number < self.first_number:
                continue
            if lsn_of(number, 0) > self.end_lsn and not self.hole:
                return
            data = _read_segment(self._fs, self._folder, self._found[number].slot, self._label.segment_bytes)
            if data is None:
                continue
            view = memoryview(data)
            position = 0
            for record in walk_records(data, number, seed):
                position = record.end_position
                if not record.is_end:
                    yield record, view[record.payload_position : record.payload_position + record.payload_bytes]
            if self.hole:
                # Bytes that were acknowledged may stand behind the hole; each is checked against its extent anyway.
                for record in find_records(data, max(position, 1), seed):
                    if record.segment_number == number and not record.is_end:
                        yield record, view[record.payload_position : record.payload_position + record.payload_bytes]


def read_chain(fs: FileSystem, folder: str, label: JournalLabel, journal_uuid: bytes) -> Chain:
    """Scan all segments; blocks for as long as reading them takes."""
    return Chain(fs, folder, label, journal_uuid)


def _read_segment(fs: FileSystem, folder: str, slot: int, segment_bytes: int) -> bytes | None:
    path = slot_path(folder, slot)
    if fs.stat(path) is None:
        return None
    fd = fs.open(path, writable=False)
    try:
        pieces = []
        offset = 0
        while offset < segment_bytes and (piece := fs.pread(fd, segment_bytes - offset, offset)):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)
    finally:
        fs.close(fd)
