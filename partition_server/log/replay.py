"""Replays a log: restores a partition's memtable and sessions.

Invariants: a record is applied once: records up to the manifest's seq are skipped;
            only keys of the partition's range are applied, since a twin's log has the other side's records too;
            an unreadable record stops the load, because skipping it would lose a write;
            a step blocks the loop for a few milliseconds, so that other partitions are served meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import islice

from neve.client.streams.types import Position, Record
from neve.partition_server.engine.sessions import Sessions
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.write import Outcome, remembered
from neve.partition_server.log.log_format import BadRecord, Kind, decode, encode_loaded
from neve.partition_server.log.stream_io import read_to_end
from neve.proto.errors import Internal

log = logging.getLogger(__name__)

SLICE_RECORDS = 300  # applied in one step, which takes about two milliseconds


async def replay(store: Store, start: Position | None, make_room: Callable[[], Awaitable[None]]) -> int:
    """Apply all records from `start` on and return their number. `make_room` flushes when memory is full."""
    records = 0
    flushed_seq = store.seq
    marker = encode_loaded(store.partition_id, modified_ms=store.wall_ms())
    streams = store.streams
    batches = read_to_end(streams.client, streams.log, start, marker)
    async with aclosing(batches):  # type: ignore[type-var]  # it is a generator
        async for batch in batches:
            slices = iter(batch)
            while some := list(islice(slices, SLICE_RECORDS)):
                records += _apply(store, some, flushed_seq)
                if store.active.is_full(store.config) or store.memory.full:
                    await make_room()
                else:
                    await asyncio.sleep(0)
    return records


class _Calls:
    """Calls of one client, remembered together."""

    __slots__ = ("completed_below", "results", "used_ms")

    def __init__(self) -> None:
        self.completed_below = 0
        self.results: dict[int, Outcome] = {}
        self.used_ms = 0


def _apply(store: Store, records: Sequence[Record], flushed_seq: int) -> int:
    """Apply the records that are not in a table to the active memtable. Returns how many there were."""
    memtable = store.active
    range_start, range_end = store.start, store.end
    calls: dict[int, _Calls] = {}
    count = grown_bytes = 0
    for position, payload, _ in records:
        try:
            record = decode(payload)  # type: ignore[arg-type]  # copied, hence bytes
        except BadRecord as error:
            raise Internal(detail=f"log record at {position} of partition {store.partition_id}: {error}") from error
        entries = record.entries
        seq_last = entries[-1].seq if entries else record.seq
        if seq_last <= flushed_seq or record.kind == Kind.PART:
            continue
        count += 1
        if seq_last > store.seq:
            store.seq = seq_last
        store.applied += 1
        memtable.note_record(seq_last, position)  # even if none of its keys is in range
        for entry in entries:
            if range_start <= entry.key and (not range_end or entry.key < range_end):
                grown_bytes += memtable.apply(entry, position, store.applied, snapshot_applied=0)
        if record.client_id:
            called = calls.get(record.client_id)
            if called is None:
                called = calls[record.client_id] = _Calls()
            if record.completed_below > called.completed_below:
                called.completed_below = record.completed_below
            called.results[record.call_id] = remembered(entries)
            called.used_ms = max(called.used_ms, record.modified_ms)
    store.share.add(grown_bytes)
    _remember(store.sessions, calls)
    return count


def _remember(sessions: Sessions, calls: dict[int, _Calls]) -> None:
    for client_id, called in calls.items():
        sessions.remember_all(client_id, called.completed_below, called.results, called.used_ms)
