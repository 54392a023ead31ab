"""Applies the journal's records to replicas on start (rules 11, 13).

Bytes above an extent's own last sync are whatever a power cut left of them; the journal has the truth for those that it
holds. A record is written at its place if the extent is whole up to there; what stands there already must be equal, or
not a valid block.

Invariants: nothing is written beyond a gap, to a sealed replica, or to another making of the file (T26);
            a valid block is never replaced by other bytes: that is damage, and the replica becomes doubtful;
            equal bytes are written again: a sync that failed just before the end may have left them in the page cache
            as clean, and the sync that follows would then not write them (T23);
            everything applied is synced before the journal begins afresh, by the caller.
Neighbours: `journal_replay` gives the records, `store_start` calls this and makes doubts durable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from neve.extent_node import blocks
from neve.extent_node.disk import Disk
from neve.extent_node.journal_format import Record
from neve.extent_node.journal_replay import Chain
from neve.extent_node.replica import Replica, read_exactly
from neve.extent_node.store_label import write_all

log = logging.getLogger(__name__)

_WALK_BYTES = 4 << 20


@dataclass(slots=True)
class Target:
    """A replica that has records in the journal."""

    valid_end: int  # [first record, valid_end) are valid blocks
    durable_end: int = 0  # what its records prove
    problem: str = ""  # why it must be doubtful


@dataclass(slots=True)
class Replay:
    targets: dict[Replica, Target] = field(default_factory=dict)
    missing_disks: set[int] = field(default_factory=set)  # short ids: their records are given up
    records: int = 0
    bytes_written: int = 0
    skipped: int = 0


def replay(chain: Chain, disks: Mapping[int, Disk], replicas: Mapping[int, Replica]) -> Replay:
    """Apply all records and sync every replica that had one; blocks."""
    result = Replay()
    for record, payload in chain.records():
        disk = disks.get(record.disk)
        if disk is None:
            result.missing_disks.add(record.disk)
            continue
        found = replicas.get(record.extent_id)
        if found is None or not _is_for(record, found, disk):
            result.skipped += 1
            continue
        result.records += 1
        _apply(result, record, payload, found)
    for found, target in result.targets.items():
        _sync(found, target)
    return result


def _is_for(record: Record, found: Replica, disk: Disk) -> bool:
    return found.disk is disk and found.state.meta.incarnation == record.incarnation and found.state.seal is None


def _apply(result: Replay, record: Record, payload: memoryview, found: Replica) -> None:
    target = result.targets.get(found)
    try:
        if target is None:
            found.open()
            target = result.targets[found] = Target(valid_end=_valid_end(found, record.offset))
        target.durable_end = max(target.durable_end, record.offset + record.payload_bytes)
        if not target.problem:
            target.problem = _apply_to(result, record, payload, found, target)
    except OSError as error:
        if target is None:
            target = result.targets[found] = Target(valid_end=0)
        target.problem = f"its records could not be replayed: {error}"


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


def _sync(found: Replica, target: Target) -> None:
    found.known_durable_end = target.durable_end
    if target.problem:
        log.error("replay_refused extent_id=%016x problem=%s", found.extent_id, target.problem)
        return
    try:
        found.sync_data()
        size_bytes = found.fs.fstat(found.fd).size_bytes
    except OSError as error:
        target.problem = f"it could not be synced after the replay: {error}"
        return
    if size_bytes > found.state.length:
        found.state.note_appended(size_bytes)
