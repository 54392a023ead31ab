"""Applies the journal's records to replicas on start (protocol rules 11 and 13).

Above an extent's last sync, a power cut leaves arbitrary bytes in its file. For bytes that the journal has, the journal
is right. A record is written at its offset if the extent is whole up to there. The bytes already there must be equal,
or not a valid block.

Invariants: nothing is written beyond a gap, to a sealed replica, or to a file of another incarnation (scenario T26);
            a valid block is never replaced by other bytes: that is damage, and the replica becomes doubtful;
            equal bytes are written again: a sync that failed just before the end may have left them in the page cache
            as clean, and the next sync would then not write them (scenario T23);
            everything applied is synced before the journal begins a new chain;
            if a record's disk is absent, fails or is full, only the operator can give the record up: its segment is
            kept;
            few files are open at a time, however many have records; a shortage of descriptors is not a disk's fault
            and ends the start.
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
# Files open at a time. For the next one the oldest is synced and closed: thousands of extents may have records.
OPEN_MAX = 256


@dataclass(slots=True)
class Target:
    """A replica that has records in the journal."""

    valid_end: int  # [first record, valid_end) are valid blocks
    durable_end: int = 0  # proved by its records
    problem: str = ""  # why it must become doubtful


@dataclass(slots=True)
class Replay:
    """The outcome of a replay, and its progress while it runs."""

    targets: dict[Replica, Target] = field(default_factory=dict)
    kept: dict[int, dict[int, None]] = field(default_factory=dict)  # segment number → short ids of disks that need it
    stalled: dict[Replica, str] = field(default_factory=dict)  # replicas without room for their records → why
    failed: dict[Disk, str] = field(default_factory=dict)  # disks that failed during the replay → why
    numbers: dict[Disk, dict[int, None]] = field(default_factory=dict)  # segments with records of the disk
    applied: dict[Replica, dict[int, None]] = field(default_factory=dict)  # segments with applied records
    opened: dict[Replica, None] = field(default_factory=dict)  # not synced since their last record, oldest first
    records: int = 0
    bytes_written: int = 0
    skipped: int = 0

    def keep(self, record: Record) -> None:
        self.kept.setdefault(record.segment_number, {})[record.disk] = None

    def note_stalled(self, replica: Replica, error: OSError) -> None:
        """Keep all of its records, including those written: they are not synced, and will not be."""
        self.stalled[replica] = f"{type(error).__name__}: {error}"
        for number in self.applied.get(replica, ()):
            self.kept.setdefault(number, {})[replica.disk.short_id] = None

    def note_failed(self, disk: Disk, error: OSError) -> None:
        """Keep all records of the disk: those written are not synced."""
        self.failed.setdefault(disk, f"{type(error).__name__}: {error}")
        for number in self.numbers.get(disk, ()):
            self.kept.setdefault(number, {})[disk.short_id] = None


def replay(
    chain: Chain, disks: Mapping[int, Disk], replicas: Mapping[int, Replica], *, given_up: Set[int] = frozenset()
) -> Replay:
    """Apply all records and sync every replica that had one; blocks. `given_up`: disks whose records are dropped."""
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
        replica = replicas.get(record.extent_id)
        if replica is None or not _is_for(record, replica, disk):
            result.skipped += 1
        elif replica in result.stalled:
            result.keep(record)
        else:
            result.records += 1
            result.applied.setdefault(replica, {})[record.segment_number] = None
            _apply(result, record, payload, replica)
    for replica in list(result.opened):
        _sync_and_close(result, replica)
    return result


def _is_for(record: Record, replica: Replica, disk: Disk) -> bool:
    return replica.disk is disk and replica.state.meta.incarnation == record.incarnation and replica.state.seal is None


def _apply(result: Replay, record: Record, payload: memoryview, replica: Replica) -> None:
    try:
        _open(result, replica)
        target = result.targets.get(replica)
        if target is None:
            target = result.targets[replica] = Target(valid_end=_valid_end(replica, record.offset))
        target.durable_end = max(target.durable_end, record.offset + record.payload_bytes)
        if not target.problem:
            target.problem = _apply_to(result, record, payload, replica, target)
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        result.keep(record)
        if error.errno in FULL:
            result.note_stalled(replica, error)
        else:
            result.note_failed(replica.disk, error)


def _open(result: Replay, replica: Replica) -> None:
    """Open the file, or mark it as the most recently used."""
    if replica not in result.opened and len(result.opened) >= OPEN_MAX:
        _sync_and_close(result, next(iter(result.opened)))
    result.opened.pop(replica, None)
    replica.open()
    result.opened[replica] = None


def _sync_and_close(result: Replay, replica: Replica) -> None:
    """Make its written records durable, unless its disk has failed or is full."""
    del result.opened[replica]
    target = result.targets.get(replica)
    if target is not None and replica.disk not in result.failed and replica not in result.stalled:
        _sync(result, replica, target)
    replica.close()


def _apply_to(result: Replay, record: Record, payload: memoryview, replica: Replica, target: Target) -> str:
    end = record.offset + record.payload_bytes
    if record.offset > target.valid_end:
        return f"bytes [{target.valid_end}, {record.offset}) below a journal record are not there"
    compared = min(end, target.valid_end) - record.offset
    here = read_exactly(replica.fs, replica.fd, record.offset, compared)
    if here != payload[:compared]:
        return f"a valid block at or above {record.offset} differs from the journal's"
    write_all(replica.fs, replica.fd, bytes(payload), record.offset)
    result.bytes_written += record.payload_bytes - compared
    if end > target.valid_end:
        # The bytes behind the restored ones may be valid blocks, too.
        target.valid_end = _valid_end(replica, end)
    return ""


def _valid_end(replica: Replica, start: int) -> int:
    """The end of the run of valid blocks that begins at `start`; 0 if the file is shorter than that."""
    size_bytes = replica.fs.fstat(replica.fd).size_bytes
    if size_bytes < start:
        return 0
    end = start
    chunk_bytes = _WALK_BYTES
    while end < size_bytes:
        data = replica.fs.pread(replica.fd, min(chunk_bytes, size_bytes - end), end)
        problem = blocks.verify(data)
        whole = len(data) if problem is None else problem.offset
        if whole == 0:
            if len(data) >= min(size_bytes - end, blocks.BLOCK_BYTES_MAX):
                return end
            chunk_bytes = blocks.BLOCK_BYTES_MAX  # a block larger than the chunk
            continue
        end += whole
    return end


def _sync(result: Replay, replica: Replica, target: Target) -> None:
    replica.known_durable_end = target.durable_end
    if target.problem:
        # The applied records stay: a doubtful replica's valid bytes may be the only ones (protocol rule 18).
        log.error("replay_refused extent_id=%d problem=%s", replica.extent_id, target.problem)
    try:
        replica.sync_data()
        size_bytes = replica.fs.fstat(replica.fd).size_bytes
    except OSError as error:
        if error.errno in SHORT_OF_RESOURCES:
            raise
        result.note_failed(replica.disk, error)
        return
    if size_bytes > replica.state.length:
        replica.state.note_appended(size_bytes)
