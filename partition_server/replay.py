"""Brings a partition's memtable and sessions back from its log.

Invariants: a record is applied once: what the manifest has (by seq) is passed over;
            only keys of the partition's range count: a twin's log has the other side's records, too;
            a record that cannot be read stops the load: to pass over it would lose a write.
Neighbours: engine.py calls it; log_format.py decodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from neve.client.types import Position
from neve.partition_server.entry import GONE, PUT
from neve.partition_server.log_format import BadRecord, Caller, Kind, decode, encode_loaded
from neve.partition_server.store import Store
from neve.partition_server.stream_io import read_to_end
from neve.proto.errors import Internal

log = logging.getLogger(__name__)

SLICE_RECORDS = 300  # applied at a time: about two milliseconds


async def replay(store: Store, start: Position | None, make_room: Callable[[], Awaitable[None]]) -> int:
    """Apply all records from `start` on, `make_room` flushing when memory is full; returns how many there were."""
    records = 0
    flushed_seq = store.seq
    sessions = store.sessions
    range_start, range_end = store.start, store.end
    marker = encode_loaded(store.partition_id, modified_ms=store.wall_ms())
    limit_bytes = store.config.memtable_bytes
    streams = store.streams
    async for position, payload, _ in read_to_end(streams.client, streams.log, start, marker):
        try:
            record = decode(payload)  # type: ignore[arg-type]  # copied, hence bytes
        except BadRecord as error:
            raise Internal(detail=f"log record at {position} of partition {store.partition_id}: {error}") from error
        if record.seq_last <= flushed_seq or record.kind == Kind.PART:
            continue
        records += 1
        store.seq = max(store.seq, record.seq_last)
        store.applied += 1
        memtable = store.active
        memtable.last_seq, memtable.last_position = record.seq_last, position  # also if none of its keys is ours
        grown_bytes = 0
        for entry in record.entries:
            if range_start <= entry.key and (not range_end or entry.key < range_end):
                grown_bytes += memtable.apply(entry, position, store.applied, snapshot_applied=0)
        store.share.add(grown_bytes)
        if record.client_id:
            caller = Caller(record.client_id, record.call_id, record.completed_below)
            outcome = tuple(entry.info() if entry.kind == PUT else GONE for entry in record.entries)
            sessions.remember(caller, outcome, record.modified_ms)
        if memtable.memory_bytes >= limit_bytes or store.memory.full:
            await make_room()
        elif not records % SLICE_RECORDS:
            await asyncio.sleep(0)  # other partitions of the process are served meanwhile
    return records
