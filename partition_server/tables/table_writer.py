"""Writes a table into the row stream: blocks as they fill, then index, bloom filters and footer.

Invariants: a table exists when its footer is acknowledged, and belongs to the partition when a manifest names it:
            what a crash leaves incomplete belongs to nothing;
            at most two pieces of `append_bytes` are in flight at a time;
            a step blocks the loop for about a millisecond.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

import numpy as np

from neve.client.streams.types import Position
from neve.client.streams.writer import Writer
from neve.partition_server.engine.config import EngineConfig
from neve.partition_server.tables.bloom import key_hashes, make_filter
from neve.partition_server.tables.core_merge import add_references
from neve.partition_server.tables.entry_columns import DELETED, IN_PARTS, U64, Rows, concatenate
from neve.partition_server.tables.table_format import (
    BLOCK,
    BLOOM,
    FOOTER,
    FORMAT,
    INDEX,
    Packer,
    encode_block,
    encode_filters,
    encode_index,
    pack_message,
)
from neve.proto import common_pb2
from neve.proto import partition_records_pb2 as records

BLOOM_BITS_PER_KEY = 10  # about 1 % of the lookups of absent keys read a block
FILTER_KEYS = 16_384  # in one filter, which takes a millisecond to make
ENTRY_OVERHEAD_BYTES = 20  # approximate size of an entry in a block, beside key and value
BLOCK_ENTRIES_MAX = 4_000
SLICE_BLOCKS = 4  # made at a time, in about two milliseconds


class TableWriter:
    def __init__(self, row: Writer, config: EngineConfig, *, record_bytes_max: int) -> None:
        self._row = row
        self._record_bytes_max = record_bytes_max
        self._config = config
        self._packer = Packer(config.zstd_level)
        self._rest: Rows | None = None  # too few rows for a block
        self._blocks: list[bytes] = []  # packed, not appended yet
        self._blocks_bytes = 0
        self._sending: asyncio.Task[Sequence[Position]] | None = None
        self._extents = array("Q")  # of the appended blocks
        self._offsets = array("Q")
        self._last_keys: list[bytes] = []
        self._hashes: list[U64] = []
        self._hashed = 0
        self._filters: list[bytes] = []
        self._filter_starts: list[int] = [0]
        self._references: dict[int, int] = {}
        self._footer = records.TableFooter(format=FORMAT)

    @property
    def entries(self) -> int:
        return self._footer.entries

    async def add(self, rows: Rows) -> None:
        """Add rows, which follow all earlier ones."""
        if not len(rows):
            return
        footer = self._footer
        if not footer.entries:
            footer.first_key = rows.keys[0]
            footer.seq_min = int(rows.seqs.min())
        footer.entries += len(rows)
        footer.last_key = rows.keys[-1]
        footer.seq_min = min(footer.seq_min, int(rows.seqs.min()))
        footer.seq_max = max(footer.seq_max, int(rows.seqs.max()))
        footer.deletes += int((rows.kinds == DELETED).sum())
        footer.value_bytes += int(rows.sizes.sum())
        expiring = rows.expires_ms[rows.expires_ms > 0]
        if len(expiring):
            first = int(expiring.min())
            footer.expires_ms_min = min(footer.expires_ms_min or first, first)
        for index in np.flatnonzero(rows.kinds == IN_PARTS).tolist():
            add_references(self._references, rows.values[index])
        if self._rest is not None:
            rows = concatenate([self._rest, rows])
        await self._cut(rows, all_of_it=False)

    async def _cut(self, rows: Rows, *, all_of_it: bool) -> None:
        """Make blocks of the rows. The remainder is kept for the next call, unless `all_of_it`."""
        sizes = np.fromiter(map(len, rows.keys), dtype=np.int64, count=len(rows))
        sizes += np.fromiter(map(len, rows.values), dtype=np.int64, count=len(rows))
        ends = (sizes + ENTRY_OVERHEAD_BYTES).cumsum()
        first, done_bytes, blocks = 0, 0, 0
        while first < len(rows):
            last = int(np.searchsorted(ends, done_bytes + self._config.block_bytes)) + 1
            last = min(last, first + BLOCK_ENTRIES_MAX)
            if last > len(rows):
                if not all_of_it:
                    break
                last = len(rows)
            self._block(rows.slice(first, last))
            done_bytes = int(ends[last - 1])
            first = last
            blocks += 1
            if self._blocks_bytes >= self._config.append_bytes:
                await self._send()
            elif not blocks % SLICE_BLOCKS:
                await asyncio.sleep(0)
        self._rest = rows.slice(first, len(rows)) if first < len(rows) else None

    def _block(self, rows: Rows) -> None:
        raw = encode_block(rows)
        packed = self._packer.pack(BLOCK, raw)
        self._footer.raw_bytes += len(raw)
        self._footer.data_bytes += len(packed)
        self._blocks.append(packed)
        self._blocks_bytes += len(packed)
        self._last_keys.append(rows.keys[-1])
        self._hashes.append(key_hashes(rows.keys))
        self._hashed += len(rows)
        if self._hashed >= FILTER_KEYS:
            self._end_filter()

    def _end_filter(self) -> None:
        hashes = np.concatenate(self._hashes)
        self._filters.append(make_filter(hashes, BLOOM_BITS_PER_KEY))
        self._filter_starts.append(len(self._last_keys))
        self._hashes.clear()
        self._hashed = 0

    async def _send(self) -> None:
        blocks, self._blocks, self._blocks_bytes = self._blocks, [], 0
        await self._sent()
        if blocks:
            self._sending = asyncio.ensure_future(self._row.append_many(blocks))
            await asyncio.sleep(0)  # its first step fixes its place in the stream

    async def _sent(self) -> None:
        if self._sending is not None:
            for extent_id, offset in await self._sending:
                self._extents.append(extent_id)
                self._offsets.append(offset)
            self._sending = None

    async def finish(self) -> tuple[Position, records.TableFooter]:
        """Write the remainder, index, filters and footer. Returns the place of the footer. Needs at least one row."""
        if self._rest is not None:
            await self._cut(self._rest, all_of_it=True)
        await self._send()
        await self._sent()
        if self._hashed:
            self._end_filter()
        footer = self._footer
        assert footer.entries, "a table without an entry"
        assert len(self._offsets) == len(self._last_keys)
        index = self._packer.pack(INDEX, encode_index(self._last_keys, self._extents, self._offsets))
        at_index = await self._row.append_many(self._pieces(index))
        bloom = self._packer.pack(BLOOM, encode_filters(self._filter_starts[: len(self._filters)], self._filters))
        at_bloom = await self._row.append_many(self._pieces(bloom))
        footer.index.extend(map(_message, at_index))
        footer.bloom.extend(map(_message, at_bloom))
        footer.blocks = len(self._last_keys)
        footer.data_bytes += len(index) + len(bloom)
        extents = dict.fromkeys([*self._extents, *(position.extent_id for position in (*at_index, *at_bloom))])
        footer.row_extents.extend(extents)
        for extent_id, size_bytes in sorted(self._references.items()):
            footer.log_references.add(extent_id=extent_id, bytes=size_bytes)
        return await self._row.append(pack_message(FOOTER, footer)), footer

    def _pieces(self, data: bytes) -> list[bytes]:
        """Split data into pieces that each fit into one block of the stream.

        A record of several blocks could span extents whose order a merge of partitions changes.
        """
        step = self._record_bytes_max
        return [data[at : at + step] for at in range(0, len(data), step)]

    async def abandon(self) -> None:
        """Give up the table. What was sent stays in the stream until its extent is removed."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._sending = None


def _message(position: Position) -> common_pb2.Position:
    return common_pb2.Position(extent_id=position.extent_id, offset=position.offset)
