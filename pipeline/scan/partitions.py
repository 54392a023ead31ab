"""The partitions of a snapshot: their tables and logs as rows of entries, from which liveness is computed.

A partition is its last manifest's tables, clipped to its range, and the log behind `log_replay_from`. Whichever
manifest was read, the log from there on has everything that came later: the newest entry of a key over both counts.

Invariants: regions, streams and extents are of one revision; an entry is given for the partition that has its key;
            what cannot be read or decoded raises: a partition that is half seen must not look like garbage (T36).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from neve.client.streams.core.reader import RecordAssembler
from neve.client.streams.types import Position, Record
from neve.partition_server.engine.entry import PUT, Entry, Part
from neve.partition_server.log import log_format
from neve.partition_server.tables import manifest
from neve.partition_server.tables.table_format import FOOTER, INDEX, BadTable, decode_block, decode_index, unpack
from neve.pipeline.scan.connections import Link
from neve.pipeline.scan.snapshot import Snapshot
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_records_pb2 as records
from neve.proto.errors import Internal

RECORD_BYTES_MAX = 1 << 30
MANIFESTS_AT_A_TIME = 32


@dataclass(frozen=True, slots=True)
class Reach:
    """Extents of a stream, in its order, each with how far it is read."""

    extents: tuple[tuple[int, int], ...]  # id, end
    after_hole: frozenset[int] = (
        frozenset()
    )  # extents that do not continue the record at the end of the extent before them

    def from_position(self, start: Position | None) -> Iterator[tuple[int, int, int]]:
        """(id, start, end) of the extents from a position on; an error if the stream does not have the position."""
        if start is None:
            yield from ((extent_id, 0, end) for extent_id, end in self.extents)
            return
        ids = [extent_id for extent_id, _ in self.extents]
        if start.extent_id not in ids:
            raise Internal(detail=f"{start} is not in its stream any more: the partition has changed during the scan")
        for at, (extent_id, end) in enumerate(self.extents[ids.index(start.extent_id) :]):
            yield extent_id, start.offset if at == 0 else 0, end


@dataclass(frozen=True, slots=True)
class PartitionToRead:
    """The data that a task needs to return the entries of a table, or of the log to be replayed."""

    partition_id: int
    start: bytes
    end: bytes
    footer: Position | None  # of the table; None: the log
    log: Reach
    replay_from: Position | None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    region: pm.RegionRecord
    pinned: frozenset[int]  # log extents that are, or may be, needed for a replay
    reads: tuple[PartitionToRead, ...]


async def records_of(link: Link, reach: Reach, start: Position | None = None) -> AsyncIterator[Record]:
    """The whole records from a position on, up to where the scan reads."""
    assembler = RecordAssembler(record_bytes_max=RECORD_BYTES_MAX)
    for extent_id, begin, end in reach.from_position(start):
        if extent_id in reach.after_hole:
            assembler.begin_anew()
        at = begin
        while at < end:
            before = at
            chunks = link.reader.chunks(extent_id, at, follow=False, stop=end)
            async with aclosing(chunks):
                async for chunk in chunks:
                    for block in chunk.blocks:
                        if block.offset >= end:
                            break
                        at = block.end
                        record = assembler.push(extent_id, block, copy=True)
                        if record is not None:
                            yield record
                    if at >= end or not chunk.blocks:
                        break
            if at == before:
                raise Internal(detail=f"extent {extent_id} ends at {at}, and {end} was readable before")


async def record_at(link: Link, reach: Reach, position: Position) -> bytes:
    async for record in records_of(link, reach, position):
        if record.position != position:
            break
        return bytes(record.payload)
    raise Internal(detail=f"no record at {position}: the partition has changed during the scan")


# --- planning ------------------------------------------------------------------------------------------------


async def plan_partitions(link: Link, taken: Snapshot, partition_id: int = 0) -> list[PartitionPlan]:
    """All partitions, or one."""
    at_a_time = asyncio.Semaphore(MANIFESTS_AT_A_TIME)

    async def one(region: pm.RegionRecord) -> PartitionPlan:
        async with at_a_time:
            return await _plan(link, taken, region)

    chosen = [stored.record for stored in taken.regions.regions.values()]
    return list(await asyncio.gather(*(one(region) for region in chosen if partition_id in (0, region.partition_id))))


async def reach_of(link: Link, taken: Snapshot, stream_id: int) -> Reach:
    ends = []
    stream = taken.stream(stream_id)
    for extent_id in stream.extent_ids:
        info = taken.extent(extent_id)
        if link.catalog.known(extent_id) is None:
            link.catalog.note(info)
        end = info.seal.length if info.HasField("seal") else await link.committed(info)
        if end is None:
            raise Internal(detail=f"extent {extent_id} is open, and no replica tells how far it may be read")
        ends.append((extent_id, end))
    return Reach(tuple(ends), frozenset(stream.after_hole))


async def _plan(link: Link, taken: Snapshot, region: pm.RegionRecord) -> PartitionPlan:
    found, merged = await _manifest(link, taken, region)
    log = await reach_of(link, taken, region.log_stream_id)
    row = await reach_of(link, taken, region.row_stream_id)
    replay_from = None
    reads: list[PartitionToRead] = []
    partition_id = region.partition_id
    if found is not None:
        if found.HasField("log_replay_from"):
            replay_from = manifest.position_of(found.log_replay_from)
        clipped = (manifest.clip_entry(each, region.start, region.end) for each in found.tables)
        reads = [
            PartitionToRead(partition_id, e.clip_start, e.clip_end, manifest.position_of(e.footer), row, None)
            for e in clipped
            if e is not None
        ]
    if not merged:  # both sides of a merge were flushed before: until the next manifest nothing is to be replayed
        reads.append(PartitionToRead(partition_id, region.start, region.end, None, log, replay_from))
    pinned = frozenset(extent_id for extent_id, _, _ in log.from_position(None if merged else replay_from))
    return PartitionPlan(region, pinned, tuple(reads))


async def _manifest(link: Link, taken: Snapshot, region: pm.RegionRecord) -> tuple[records.Manifest | None, bool]:
    """The one that counts, and whether it is the union of two that were merged."""
    meta = await reach_of(link, taken, region.meta_stream_id)
    log_last = max(taken.stream(region.log_stream_id).extent_ids, default=0)
    row_last = max(taken.stream(region.row_stream_id).extent_ids, default=0)
    last: records.Manifest | None = None
    async for record in records_of(link, meta):
        found = manifest.decode(record.payload)
        if found is None or not manifest.counts_after(found, region.merged_at):
            continue
        if last is None or not is_later(found, region, log_last=log_last, row_last=row_last):
            last = found
    if last is not None or not region.merged_manifests:
        return last, False
    both = []
    for message in region.merged_manifests:
        position = manifest.position_of(message)
        side = manifest.decode(await record_at(link, meta, position))
        if side is None:
            raise Internal(detail=f"partition {region.partition_id}: no manifest at {position}")
        both.append(side)
    return manifest.unite(both), True


def is_later(found: records.Manifest, region: pm.RegionRecord, *, log_last: int, row_last: int) -> bool:
    """Whether the manifest points to extents that were made after the snapshot; `..._last`: the highest ids it has.

    The one before it serves as well: the log from its replay on, as far as the snapshot has it, has whatever the later
    one put into tables. Nothing else is a reason to take an older one: what is missing otherwise is an error (T36).
    """
    if found.log_replay_from.extent_id > log_last:
        return True
    ours = (each for each in found.tables if manifest.clip_entry(each, region.start, region.end) is not None)
    return any(each.footer.extent_id > row_last for each in ours)


# --- reading -------------------------------------------------------------------------------------------------


def entry_rows(link: Link, revision: int, read: PartitionToRead) -> Iterator[dict[str, Any]]:
    """The entries of a table or of a log; run to its end, or an error."""
    items = _table_entries(link, read) if read.footer is not None else _log_entries(link, read)
    while (some := link.run(anext(items, None))) is not None:
        for entry in some:
            if entry.key >= read.start and (not read.end or entry.key < read.end):
                yield _row(revision, read, entry)


async def _table_entries(link: Link, read: PartitionToRead) -> AsyncIterator[list[Entry]]:
    assert read.footer is not None
    try:
        footer = records.TableFooter.FromString(unpack(FOOTER, await record_at(link, read.log, read.footer)))
        index = decode_index(unpack(INDEX, await _joined(link, read.log, footer.index)))
        wanted = [index.position(number) for number in range(len(index.last_keys))]
        wanted.reverse()
        if wanted:
            async for record in records_of(link, read.log, wanted[-1]):
                if record.position == wanted[-1]:  # others are of tables that were written at the same time
                    wanted.pop()
                    yield decode_block(record.payload).entries(read.start, read.end)
                    if not wanted:
                        return
            raise Internal(detail=f"table {read.footer} lacks {len(wanted)} blocks")
    except BadTable as error:
        raise Internal(detail=f"table {read.footer} of partition {read.partition_id}: {error}") from error


async def _joined(link: Link, row: Reach, pieces: Sequence[common_pb2.Position]) -> bytes:
    return b"".join([await record_at(link, row, manifest.position_of(piece)) for piece in pieces])


async def _log_entries(link: Link, read: PartitionToRead) -> AsyncIterator[list[Entry]]:
    async for record in records_of(link, read.log, read.replay_from):
        try:
            found = log_format.decode(bytes(record.payload))
        except log_format.BadRecord as error:
            raise Internal(detail=f"log record {record.position}: {error}") from error
        if found.kind == log_format.Kind.PART:
            continue  # it belongs to whatever names it
        for entry in found.entries:
            entry.position = record.position
        yield found.entries


def _row(revision: int, read: PartitionToRead, entry: Entry) -> dict[str, Any]:
    parts: tuple[Part, ...] = entry.parts or ()
    if entry.kind == PUT and entry.parts is None and entry.position is not None:  # its value is in its own log record
        parts = (Part(*entry.position, entry.value_at, entry.size_bytes),)
    return {
        "revision": revision,
        "partition_id": read.partition_id,
        "key": entry.key,
        "seq": entry.seq,
        "version": entry.version,
        "deleted": entry.kind != PUT,
        "expires_ms": entry.expires_ms,
        "length": entry.size_bytes,
        "from_log": read.footer is None,
        "part_extents": [part.extent_id for part in parts],
        "part_offsets": [part.offset for part in parts],
        "part_bytes": [part.length for part in parts],
    }
