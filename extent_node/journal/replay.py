"""Reads the journal on start: the chain of its records, where it ends, and whether a part of it is missing.

The chain begins at the oldest record that may still be needed. It continues, record by record and segment by segment,
to the first place without a valid record. That place is the end, unless a valid record elsewhere promises that the
record there was durable, or the bytes there prove it (damage.py): then a part is missing (protocol rule 13).

Valid records behind the end are returned, too. They are whole and their extents' writers sent them, so they do no harm
even if no reply covered them; and a flipped bit in one record must not hide records of other extents behind it.

Segments kept for disks that were absent come before the chain, with the records of those disks only.

Unreadable pages count as zeros. That means a missing part only where the chain leads into such a page, or to a segment
that is not found. Elsewhere the page was never written, or its content is no longer needed.

Invariants: nothing here writes; memory is bounded by one segment, however long the chain;
            a returned payload is exactly what was written;
            a segment file with an unreadable page is reported, so that it is not used again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.journal.damage import find_damage
from neve.extent_node.journal.folder import JournalLabel, Kept, slot_path
from neve.extent_node.journal.format import (
    FIRST_POSITION,
    Record,
    SegmentScan,
    announced_end,
    crc_seed,
    find_records,
    lsn_of,
    scan_segment,
    segment_of,
)
from neve.extent_node.journal.segment_reader import SegmentBytes, read_segment


@dataclass(frozen=True, slots=True)
class _FoundSegment:
    slot: int
    scan: SegmentScan


class Chain:
    """The records that a start must apply. Made by `read_chain`."""

    def __init__(self, fs: FileSystem, folder: str, label: JournalLabel, journal_uuid: bytes) -> None:
        self._fs = fs
        self._folder = folder
        self._label = label
        self._journal_uuid = journal_uuid
        self._found: dict[int, _FoundSegment] = {}  # by segment number
        self._kept: dict[int, Kept] = {}  # by segment number; readable ones only
        self._unreadable: dict[int, list[int]] = {}  # slot → positions of its unreadable pages
        self._slots_read: set[int] = set()
        self.first_number = label.fresh_from
        self.end_lsn = 0
        self.number_seen_max = label.fresh_from - 1
        self.hole = ""  # a description of the missing part; empty: nothing is missing
        self.damaged: list[Record] = []  # acknowledged records that cannot be read
        self.broken_disks: dict[int, str] = {}  # short id → which of the segments kept for it has lost records
        self._scan()

    def _scan(self) -> None:
        promised = needed_from = 0
        missing = []
        kept_by_slot = {kept.slot: kept for kept in self._label.kept}
        for slot in range(self._label.slots):
            kept = kept_by_slot.get(slot)
            if kept is None and (not self._label.in_use or slot in self._label.bad_slots):
                continue  # no extent depends on it: the last process stopped cleanly, or did not use the slot
            data = self._read(slot)
            scan = None if data is None else scan_segment(data.content, self._journal_uuid)
            if kept is not None:
                self._check_kept(kept, scan)
            if scan is None:
                if kept is None:
                    missing.append(slot)
                continue
            if scan.number is None:
                continue
            self.number_seen_max = max(self.number_seen_max, scan.number)
            if scan.number >= self._label.fresh_from and self._label.in_use:
                self._found[scan.number] = _FoundSegment(slot, scan)
                promised = max(promised, scan.durable_through)
                needed_from = max(needed_from, scan.needed_from)
        if not self._label.in_use:
            return
        self.first_number = max(self._label.fresh_from, segment_of(needed_from))
        self.end_lsn = self._follow()
        if missing:
            self.hole = f"segment file {slot_path(self._folder, missing[0])} is missing"
        elif self._leads_to_unreadable():
            self.hole = f"the chain leads to an unreadable place of {self._unreadable_names()}"
        elif promised > self.end_lsn:
            number, position = segment_of(self.end_lsn), self.end_lsn & 0xFFFFFFFF
            self.hole = f"no valid record in segment {number} at {position}, though later ones say that one was durable"
        else:
            self._find_damage()

    def _check_kept(self, kept: Kept, scan: SegmentScan | None) -> None:
        self.number_seen_max = max(self.number_seen_max, kept.number)
        if scan is not None and scan.number == kept.number:
            self._kept[kept.number] = kept
            if scan.end_position >= kept.end_position:
                return
        for disk in kept.disks:
            self.broken_disks[disk] = f"segment {kept.number} in {slot_path(self._folder, kept.slot)}"

    def _follow(self) -> int:
        """The LSN at which the unbroken chain ends."""
        number = self.first_number
        while (found := self._found.get(number)) is not None:
            if not found.scan.ended:
                return lsn_of(number, found.scan.end_position)
            number += 1
        return lsn_of(number, 0)

    def _leads_to_unreadable(self) -> bool:
        """Whether the place where the chain ends, or the record there, cannot be read."""
        if not self._unreadable:
            return False
        found = self._found.get(segment_of(self.end_lsn))
        if found is None:  # an end record or a promise says that this segment exists
            return True
        pages = self._unreadable.get(found.slot)
        if not pages:
            return False
        data = self._read(found.slot)
        if data is None:
            return True
        position = found.scan.end_position
        return data.has_unreadable(position, announced_end(data.content, position, segment_of(self.end_lsn)))

    def _unreadable_names(self) -> str:
        return ", ".join(slot_path(self._folder, slot) for slot in sorted(self._unreadable))

    @property
    def unreadable_slots(self) -> list[int]:
        """Segment files with unreadable pages."""
        return sorted(self._unreadable)

    def _find_damage(self) -> None:
        """Look for damaged records at the chain's end: no record promises more, but the bytes there may prove it."""
        seed = crc_seed(self._journal_uuid)
        for number, found in self._found.items():
            if number < segment_of(self.end_lsn) or found.scan.ended:
                continue
            data = self._read(found.slot)
            if data is None:
                continue
            for damage in find_damage(data.content, found.scan.end_position, number, seed):
                if damage.record is None:
                    self.hole = (
                        f"a record of segment {number} at {damage.position} is damaged, and its extent is unknown"
                    )
                elif not damage.record.is_end:
                    self.damaged.append(damage.record)

    # --- for the replay --------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[Record, memoryview]]:
        """Each record with its payload, in the order of writing. A payload is valid until the next iteration."""
        seed = crc_seed(self._journal_uuid)
        in_chain = [number for number in self._found if number >= self.first_number]
        for number in sorted({*in_chain, *self._kept}):
            whole = number in in_chain
            data = self._read(self._found[number].slot if whole else self._kept[number].slot)
            if data is None:
                continue
            view = memoryview(data.content)
            for record in find_records(data.content, FIRST_POSITION, seed):
                if record.segment_number != number or record.is_end:
                    continue
                if whole or record.disk in self._kept[number].disks:
                    yield record, view[record.payload_position : record.payload_position + record.payload_bytes]

    def keep(self, number: int, disks: tuple[int, ...]) -> Kept:
        """The label's entry that keeps this segment for those disks."""
        found = self._found.get(number)
        if found is not None:
            return Kept(number, found.slot, found.scan.end_position, disks)
        earlier = self._kept[number]
        return Kept(number, earlier.slot, earlier.end_position, disks)

    def _read(self, slot: int) -> SegmentBytes | None:
        read = read_segment(self._fs, slot_path(self._folder, slot), self._label.segment_bytes)
        if read is not None and read.unreadable:
            before = self._unreadable.get(slot, [])
            if slot in self._slots_read and not set(read.unreadable) <= set(before):
                # Pages became unreadable since the first read, so what is missing cannot be determined any more.
                self.hole = self.hole or f"{slot_path(self._folder, slot)} cannot be read any more"
            self._unreadable[slot] = sorted({*before, *read.unreadable})
        self._slots_read.add(slot)
        return read


def read_chain(fs: FileSystem, folder: str, label: JournalLabel, journal_uuid: bytes) -> Chain:
    """Scan all segments; blocks for as long as reading them takes."""
    return Chain(fs, folder, label, journal_uuid)
