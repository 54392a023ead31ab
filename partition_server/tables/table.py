"""An open table of the row stream: its index and bloom filters are in memory, its blocks come through the cache.

Invariants: only keys of the clip count: after a split, two partitions share a table, each with its own clip;
            a table never changes; if its records are gone, it was replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import Entry
from neve.partition_server.log.stream_io import OwnStream
from neve.partition_server.tables.block_cache import BlockCache
from neve.partition_server.tables.table_format import (
    BLOOM,
    FOOTER,
    INDEX,
    BadTable,
    Block,
    TableFilters,
    TableIndex,
    decode_block,
    decode_filters,
    decode_index,
    unpack,
)
from neve.proto import common_pb2
from neve.proto import partition_records_pb2 as records
from neve.proto.errors import Internal, NotFound, UnsupportedVersion

FOOTER_FORMAT = 1


class Table:
    """An open table, made by `open_table`."""

    __slots__ = (
        "_cache",
        "_row",
        "clip_end",
        "clip_start",
        "filters",
        "first_key",
        "footer",
        "index",
        "last_key",
        "log_references",
        "position",
        "row_extents",
        "seq_max",
        "size_bytes",
    )

    def __init__(
        self,
        row: OwnStream,
        cache: BlockCache[Block],
        position: Position,
        footer: records.TableFooter,
        index: TableIndex,
        filters: TableFilters,
        *,
        clip_start: bytes,
        clip_end: bytes,
    ) -> None:
        self._row = row
        self._cache = cache
        self.position = position
        self.footer = footer
        self.index = index
        self.filters = filters
        self.clip_start = clip_start
        self.clip_end = clip_end
        self.first_key: bytes = max(footer.first_key, clip_start)
        self.last_key: bytes = footer.last_key  # may be outside the clip; `has_range` and `may_contain` check both
        self.seq_max: int = footer.seq_max
        self.size_bytes: int = footer.data_bytes
        self.row_extents = frozenset([*footer.row_extents, position.extent_id])
        self.log_references = {each.extent_id: each.bytes for each in footer.log_references}

    @property
    def memory_bytes(self) -> int:
        return self.index.memory_bytes + self.filters.memory_bytes

    @property
    def is_clipped(self) -> bool:
        """Whether it has keys outside the clip."""
        footer = self.footer
        return footer.first_key < self.clip_start or bool(self.clip_end and footer.last_key >= self.clip_end)

    def entry(self) -> records.TableEntry:
        """The table as a manifest describes it."""
        return records.TableEntry(
            footer=common_pb2.Position(extent_id=self.position.extent_id, offset=self.position.offset),
            clip_start=self.clip_start,
            clip_end=self.clip_end,
            seq_min=self.footer.seq_min,
            seq_max=self.footer.seq_max,
            entries=self.footer.entries,
            size_bytes=self.size_bytes,
        )

    # --- one key ---------------------------------------------------------------------------------------------

    def may_contain(self, key: bytes, hashed: int) -> bool:
        """Whether it may have the key. False is certain."""
        if key < self.first_key or key > self.last_key or (self.clip_end and key >= self.clip_end):
            return False
        return self.filters.may_contain(self.index.block_of(key), hashed)

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key that it may have."""
        position = self.index.position(self.index.block_of(key))
        block = self._cache.get(position)
        if block is None:
            block = await self._read(position)
        return block.find(key)

    async def block(self, number: int) -> Block:
        position = self.index.position(number)
        return self._cache.get(position) or await self._read(position)

    async def _read(self, position: Position) -> Block:
        payload = await self._row.read_record(position)
        block = self._decode(position, payload)
        self._cache.put(position, block)
        return block

    def _decode(self, position: Position, payload: bytes | memoryview) -> Block:
        try:
            return decode_block(payload)
        except BadTable as error:
            raise Internal(detail=f"table {self.position}, block at {position}: {error}") from error

    # --- ranges ----------------------------------------------------------------------------------------------

    def has_range(self, start: bytes, end: bytes) -> bool:
        """Whether it may have keys of [start, end)."""
        if self.clip_end and start >= self.clip_end:
            return False
        return start <= self.last_key and (not end or self.first_key < end)

    def overlaps(self, other: Table) -> bool:
        """Whether both may have a common key."""
        ours_end, theirs_end = self.clip_end, other.clip_end
        first, last = max(self.first_key, other.first_key), min(self.last_key, other.last_key)
        return first <= last and not (ours_end and first >= ours_end) and not (theirs_end and first >= theirs_end)

    async def blocks(self) -> AsyncIterator[Block]:
        """Iterate over the blocks that overlap the clip, in order, with read-ahead and without the cache."""
        index = self.index
        first = index.block_of(self.first_key)
        last = len(index.last_keys)
        if self.clip_end:
            last = min(last, index.block_of(self.clip_end) + 1)
        if first >= last:
            return
        number = first
        wanted = index.position(number)
        records_ = self._row.client.read(self._row.stream_id, start=wanted, copy=False)
        async with aclosing(records_):  # type: ignore[type-var]  # it is a generator
            async for record in records_:
                if record.position != wanted:
                    continue  # of another table that was written at the same time
                yield self._decode(wanted, record.payload)
                number += 1
                if number == last:
                    return
                wanted = index.position(number)
        while number < last:  # the very end of the stream may not be readable yet on all replicas
            yield await self.block(number)
            number += 1


async def open_table(
    row: OwnStream, cache: BlockCache[Block], position: Position, *, clip_start: bytes, clip_end: bytes
) -> Table:
    """Open a table: read its footer, index and filters."""
    try:
        footer = records.TableFooter.FromString(unpack(FOOTER, await row.read_record(position)))
        if footer.format != FOOTER_FORMAT:
            raise UnsupportedVersion(
                what="table", version=footer.format, supported_min=FOOTER_FORMAT, supported_max=FOOTER_FORMAT
            )
        index = decode_index(unpack(INDEX, await _joined(row, footer.index)))
        filters = decode_filters(unpack(BLOOM, await _joined(row, footer.bloom)))
    except BadTable as error:
        raise Internal(detail=f"table {position}: {error}") from error
    except NotFound as error:
        raise Internal(detail=f"table {position} is not in its stream: {error}") from error
    return Table(row, cache, position, footer, index, filters, clip_start=clip_start, clip_end=clip_end)


async def _joined(row: OwnStream, pieces: Iterable[common_pb2.Position]) -> bytes:
    found = [await row.read_record(Position(piece.extent_id, piece.offset)) for piece in pieces]
    return b"".join(found)


def extents_of(tables: Iterable[Table]) -> set[int]:
    """Return the extents of these tables in the row stream."""
    return {extent_id for table in tables for extent_id in table.row_extents}
