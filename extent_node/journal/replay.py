"""Reading the journal on start: the chain of its records, where it ends, and whether something is missing in it.

The chain begins at the oldest record that may still be needed and goes on, record by record and segment by segment, to
the first place without a valid one. That place is the end, unless a valid record elsewhere promises that what stood
there was durable, or what stands there proves it (damage.py): then something is missing (rule 13).

Records behind the end are given, too. They are whole and were sent by their extents' writers, so that they do no harm
if nobody was told of them, and a bit that flipped in one record must not hide those of other extents behind it.

Segments that are kept for disks which were not here come before the chain, with the records of those disks only.

Pages that cannot be read count as zeros. Something is missing by that only where the chain leads into one of them, or
to a segment that is not found; what was never written there, or is not needed any more, nobody misses.

Invariants: nothing here writes; memory is bounded by one segment, however long the chain;
            a payload that is given is what was written;
            a segment file with a page that cannot be read is told, so that it is not used again.
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
        self._kept: dict[int, Kept] = {}  # by segment number, those that can be read
        self._unreadable: dict[int, list[int]] = {}  # slot → positions of its pages that cannot be read
        self._looked_through: set[int] = set()  # slots
        self.first_number = label.fresh_from
        self.end_lsn = 0
        self.number_seen_max = label.fresh_from - 1
        self.hole = ""  # what is missing, in words; empty: nothing is
        self.damaged: list[Record] = []  # records that stood there and cannot be read
        self.broken_disks: dict[int, str] = {}  # short id → which of the segments kept for it has lost records
        self._scan()

    def _scan(self) -> None:
        promised = needed_from = 0
        missing = []
        kept_by_slot = {kept.slot: kept for kept in self._label.kept}
        for slot in range(self._label.slots):
            kept = kept_by_slot.get(slot)
            if kept is None and (not self._label.in_use or slot in self._label.bad_slots):
                continue  # the last process stopped cleanly, or did not use it: nobody depends on what is in it
            data = self._read(slot)
            scan = None if data is None else scan_segment(data.content, self._journal_uuid)
            if kept is not None:
                self._look_at_kept(kept, scan)
            if scan is None:
                if kept is None:
                    missing.append(slot)
                continue
            if scan.number is None:
                continue
            self.number_seen_max = max(self.number_seen_max, scan.number)
            if scan.number >= self._label.fresh_from and self._label.in_use:
                self._found[scan.number] = _Found(slot, scan)
                promised = max(promised, scan.durable_through)
                needed_from = max(needed_from, scan.needed_from)
        if not self._label.in_use:
            return
        self.first_number = max(self._label.fresh_from, segment_of(needed_from))
        self.end_lsn = self._follow()
        if missing:
            self.hole = f"segment file {slot_path(self._folder, missing[0])} is missing"
        elif self._leads_to_unreadable():
            self.hole = f"the chain leads to what cannot be read of {self._names_of_unreadable()}"
        elif promised > self.end_lsn:
            number, position = segment_of(self.end_lsn), self.end_lsn & 0xFFFFFFFF
            self.hole = f"no valid record in segment {number} at {position}, though later ones say that one was durable"
        else:
            self._look_for_damage()

    def _look_at_kept(self, kept: Kept, scan: SegmentScan | None) -> None:
        self.number_seen_max = max(self.number_seen_max, kept.number)
        if scan is not None and scan.number == kept.number:
            self._kept[kept.number] = kept
            if scan.end_position >= kept.end_position:
                return
        for disk in kept.disks:
            self.broken_disks[disk] = f"segment {kept.number} in {slot_path(self._folder, kept.slot)}"

    def _follow(self) -> int:
        """Where the unbroken chain ends."""
        number = self.first_number
        while (found := self._found.get(number)) is not None:
            if not found.scan.ended:
                return lsn_of(number, found.scan.end_position)
            number += 1
        return lsn_of(number, 0)

    def _leads_to_unreadable(self) -> bool:
        """Whether the place where the chain ends, or the record that stands there, cannot be read."""
        if not self._unreadable:
            return False
        found = self._found.get(segment_of(self.end_lsn))
        if found is None:  # an end record says that there is such a segment, or a promise that it is needed
            return True
        pages = self._unreadable.get(found.slot)
        if not pages:
            return False
        data = self._read(found.slot)
        if data is None:
            return True
        position = found.scan.end_position
        return data.has_unreadable(position, announced_end(data.content, position, segment_of(self.end_lsn)))

    def _names_of_unreadable(self) -> str:
        return ", ".join(slot_path(self._folder, slot) for slot in sorted(self._unreadable))

    @property
    def unreadable_slots(self) -> list[int]:
        """Segment files in which something could not be read."""
        return sorted(self._unreadable)

    def _look_for_damage(self) -> None:
        """Nothing promises more than the chain has. What stands at its end may prove it all the same."""
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
                        f"a record of segment {number} at {damage.position} is damaged, and it is not known whose"
                    )
                elif not damage.record.is_end:
                    self.damaged.append(damage.record)

    # --- for the replay --------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[Record, memoryview]]:
        """Each record with its payload, in the order of writing. A payload lives until the next one is asked for."""
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
        """The entry by which this segment, which is here, stays for those disks."""
        found = self._found.get(number)
        if found is not None:
            return Kept(number, found.slot, found.scan.end_position, disks)
        earlier = self._kept[number]
        return Kept(number, earlier.slot, earlier.end_position, disks)

    def _read(self, slot: int) -> SegmentBytes | None:
        read = read_segment(self._fs, slot_path(self._folder, slot), self._label.segment_bytes)
        if read is not None and read.unreadable:
            before = self._unreadable.get(slot, [])
            if slot in self._looked_through and not set(read.unreadable) <= set(before):
                # Only since then, so that nobody can say what is missing now.
                self.hole = self.hole or f"{slot_path(self._folder, slot)} cannot be read any more"
            self._unreadable[slot] = sorted({*before, *read.unreadable})
        self._looked_through.add(slot)
        return read


def read_chain(fs: FileSystem, folder: str, label: JournalLabel, journal_uuid: bytes) -> Chain:
    """Scan all segments; blocks for as long as reading them takes."""
    return Chain(fs, folder, label, journal_uuid)
