"""Applies the journal's records to replicas on start (rules 11, 13).

Bytes above an extent's own last sync are whatever a power cut left of them; the journal has the truth for those that it
holds. A record is written at its place if the extent is whole up to there; what stands there already must be equal, or
not a valid block.

Invariants: nothing is written beyond a gap, to a sealed replica, or to another making of the file (T26);
            a valid block is never replaced by other bytes: that is damage, and the replica becomes doubtful;
            equal bytes are written again: a sync that failed just before the end may have left them in the page cache
            as clean, and the sync that follows would then not write them (T23);
            everything applied is synced before the journal begins afresh;
            a record that could not be applied, because its disk is not here, fails or is full, is given up by nobody
            but the operator: its segment is kept;
            few files are open at a time, however many have records; being short of descriptors is no disk's fault and
            ends the start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from neve.extent_node.disk.disk import FULL, SHORT_OF_RESOURCES, Disk
from neve.extent_node.disk.labels import write_all
from neve.extent_node.journal.format import Record
from neve.extent_node.journal.replay import Chain
from neve.extent_node.store.replica import Replica, read_exactly
from neve.proto import blocks

log = logging.getLogger(__name__)

_WALK_BYTES = 4 << 20
# Files open at a time. The oldest is synced and closed for the next: a journal has records of thousands of extents.
OPEN_MAX = 256


@dataclass(slots=True)
class Target:
    """A replica that has records in the journal."""

    valid_end: int  # [first record, valid_end) are valid blocks
    durable_end: int = 0  # what its records prove
    problem: str = ""  # why it must be doubtful


@dataclass(slots=True)
class Replay:
    targets: dict[Replica, Target] = field(default_factory=dict)
    kept: dict[int, dict[int, None]] = field(default_factory=dict)  # segment number → short ids of disks that need it
    stalled: dict[Replica, str] = field(default_factory=dict)  # no room for its records; why
    failed: dict[Disk, str] = field(default_factory=dict)  # while its records were applied; why
    numbers: dict[Disk, dict[int, None]] = field(default_factory=dict)  # segments with records of this disk
    applied: dict[Replica, dict[int, None]] = field(default_factory=dict)  # and of this replica
    opened: dict[Replica, None] = field(default_factory=dict)  # not synced since their last record, oldest first
    records: int = 0
    bytes_written: int = 0
    skipped: int = 0

    def keep(self, record: Record) -> None:
        self.kept.setdefault(record.segment_number, {})[record.disk] = None

    def note_stalled(self, found: Replica, error: OSError) -> None:
        """All of its records stay, also those that were written: they are not synced, and will not be."""
        self.stalled[found] = f"{type(error).__name__}: {error}"
        for number in self.applied.get(found, ()):
            self.kept.setdefault(number, {})[found.disk.short_id] = None

    def note_failed(self, disk: Disk, error: OSError) -> None:
        """All of its records stay: what was written of them is not synced."""
        self.failed.setdefault(disk, f"{type(error).__name__}: {error}")
        for number in self.numbers.get(disk, ()):
            self.kept.setdefault(number, {})[disk.short_id] = None


def replay(
    chain: Chain, disks: Mapping[int, Disk], replicas: Mapping[int, Replica], *, given_up: Set[int] = frozenset()
) -> Replay:
    """Apply all records and sync every replica that had one; blocks. `given_up`: disks whose records nobody needs."""
    result = Replay()
    for record, payload in chain.records():
        if record.disk in given_up:
            result.skipped += 1
            continue
        disk = disks.get(record.disk)
        if disk is None or disk in result.failed:
            result.keep(record)
            continue
        result.numbers.setdefault(disk, {})[record.segment_number] = None
        found = replicas.get(record.extent_id)
        if found is None or not _is_for(record, found, disk):
            result.skipped += 1
        elif found in result.stalled:
            result.keep(record)
        else:
            result.records += 1
            result.applied.setdefault(found, {})[record.segment_number] = None
            _apply(result, record, payload, found)
    for found in list(result.opened):
        _sync_and_close(result, found)
    return result


def _is_for(record: Record, found: Replica, disk: Disk) -> bool:
    return found.disk is disk and found.state.meta.incarnation == record.incarnation and found.state.seal is None


def _apply(result: Replay, record: Record, payload: memoryview, found: Replica) -> None:
    try:
        _open(result, found)
        target = result.targets.get(found)
        if target is None:
            target = result.targets[found] = Target(valid_end=_valid_end(found, record.offset))
        target.durable_end = max(target.durable_end, record.offset + record.payload_bytes)
        if not target.problem:
            target.problem = _apply_to(result, record, payload, found, target)
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        result.keep(record)
        if error.errno in FULL:
            result.note_stalled(found, error)
        else:
            result.note_failed(found.disk, error)


def _open(result: Replay, found: Replica) -> None:
    """It is open, and the youngest of those that are."""
    if found not in result.opened and len(result.opened) >= OPEN_MAX:
        _sync_and_close(result, next(iter(result.opened)))
    result.opened.pop(found, None)
    found.open()
    result.opened[found] = None


def _sync_and_close(result: Replay, found: Replica) -> None:
    """What was written to it is durable, unless its disk has failed or is full."""
    del result.opened[found]
    target = result.targets.get(found)
    if target is not None and found.disk not in result.failed and found not in result.stalled:
        _sync(result, found, target)
    found.close()


def _apply_to(result: Replay, record: Record, payload: memoryview, found: Replica, target: Target) -> str:
    end = record.offset + record.payload_bytes
    if record.offset > target.valid_end:
        return f"bytes [{target.valid_end}, {record.offset}) below a journal record are not there"
    compared = min(end, target.valid_end) - record.offset
    here = read_exactly(found.fs, found.fd, record.offset, compared)
    if here != payload[:compared]:
        return f"a valid block at or above {record.offset} differs from the journal's"
    write_all(found.fs, found.fd, bytes(payload), record.offset)
    result.bytes_written += record.payload_bytes - compared
    if end > target.valid_end:
        # What was behind the bytes that are whole again may be whole, too.
        target.valid_end = _valid_end(found, end)
    return ""


def _valid_end(found: Replica, start: int) -> int:
    """The end of the run of valid blocks that begins at `start`; 0 if the file does not even reach it."""
    size_bytes = found.fs.fstat(found.fd).size_bytes
    if size_bytes < start:
        return 0
    end = start
    chunk_bytes = _WALK_BYTES
    while end < size_bytes:
        data = found.fs.pread(found.fd, min(chunk_bytes, size_bytes - end), end)
        problem = blocks.verify(data)
        whole = len(data) if problem is None else problem.offset
        if whole == 0:
            if len(data) >= min(size_bytes - end, blocks.BLOCK_BYTES_MAX):
                return end
            chunk_bytes = blocks.BLOCK_BYTES_MAX  # a block larger than the chunk
            continue
        end += whole
    return end


def _sync(result: Replay, found: Replica, target: Target) -> None:
    found.known_durable_end = target.durable_end
    if target.problem:
        # What could be applied stays: a doubtful replica's valid bytes may be the only ones (rule 18).
        log.error("replay_refused extent_id=%d problem=%s", found.extent_id, target.problem)
    try:
        found.sync_data()
        size_bytes = found.fs.fstat(found.fd).size_bytes
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        result.note_failed(found.disk, error)
        return
    if size_bytes > found.state.length:
        found.state.note_appended(size_bytes)
