"""Merges tables: reads them in parallel, drops dead entries and writes one table in their place.

Invariants: a merge reads whole tables in order: a table that cannot be read completely is not replaced;
            deletes and expired objects are dropped only if no older table can have their keys;
            one merge at a time; it yields to the loop after each piece of about a thousand entries;
            a cancelled merge changes no table, and leaves unused records in the row stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing

from neve.partition_server.engine.shared import Store
from neve.partition_server.tables import core_merge
from neve.partition_server.tables.committer import Committer
from neve.partition_server.tables.core_compaction import Choice, Policy, TableFacts, choose
from neve.partition_server.tables.entry_columns import Rows, concatenate
from neve.partition_server.tables.table import Table, open_table
from neve.partition_server.tables.table_format import Block
from neve.partition_server.tables.table_writer import TableWriter

log = logging.getLogger(__name__)

PIECE_ENTRIES = 200  # at least this many of one table are merged at a time
PIECE_BYTES = 256 << 10


class Compactor:
    def __init__(self, store: Store, committer: Committer) -> None:
        self._store = store
        self._committer = committer
        self._lock = asyncio.Lock()

    def choice(self) -> Choice | None:
        """Return which tables to merge now."""
        config = self._store.config
        policy = Policy(
            config.tables_max,
            config.size_ratio,
            config.space_waste_max,
            expired_ms_max=int(config.expired_s_max * 1000),
        )
        return choose([_facts(table) for table in self._store.view.tables], policy, now_ms=self._store.wall_ms())

    async def run_one(self) -> bool:
        """Merge the tables that should be merged now, if any. Returns whether there were some."""
        async with self._lock:
            await self._committer.idle()  # a cancelled caller may have left a change in progress
            choice = self.choice()
            if choice is None:
                return False
            await self._merge(self._store.view.tables[choice.first : choice.last], choice.reason)
            return True

    async def run_all(self) -> None:
        """Merge all tables into one and drop everything dead."""
        async with self._lock:
            await self._committer.idle()  # a cancelled caller may have left a change in progress
            tables = self._store.view.tables
            if tables:
                await self._merge(tables, "full")

    async def _merge(self, tables: Sequence[Table], reason: str) -> None:
        store = self._store
        older = store.view.tables[store.view.tables.index(tables[-1]) + 1 :]
        is_last = not any(table.overlaps(each) for table in tables for each in older)
        with store.writing_table():
            writer = TableWriter(store.streams.row, store.config, record_bytes_max=store.record_bytes_max)
            dropped = 0
            try:
                async with AsyncExitStack() as stack:
                    cursors = [_Cursor(table) for table in tables]
                    for cursor in cursors:
                        await stack.enter_async_context(aclosing(cursor.blocks))  # type: ignore[type-var]
                    async for pieces in _side_by_side(cursors):
                        merged = core_merge.merge(pieces, is_last=is_last, now_ms=store.wall_ms())
                        dropped += merged.dropped
                        await asyncio.sleep(0)
                        await writer.add(merged.rows)
                        store.pace.merged(len(merged.rows))
                        await asyncio.sleep(0)
                added: list[Table] = []
                if writer.entries:
                    position, _ = await writer.finish()
                    added = [
                        await open_table(store.row, store.cache, position, clip_start=store.start, clip_end=store.end)
                    ]
            finally:
                await writer.abandon()
            await self._committer.commit(added=added, replaced=tables)
        store.work.set()
        log.info(
            "tables_merged partition_id=%d reason=%s tables=%d read_bytes=%d written_bytes=%d dropped=%d",
            *(store.partition_id, reason, len(tables), sum(table.size_bytes for table in tables)),
            *(sum(table.size_bytes for table in added), dropped),
        )


class _Cursor:
    """A table's progress in a merge. `rows` are read and not merged yet."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.blocks: AsyncIterator[Block] = table.blocks()
        self.rows: Rows | None = None
        self.ended = False

    async def fill(self) -> None:
        """Read a piece of rows, unless the table is at its end."""
        pieces = [self.rows] if self.rows is not None and len(self.rows) else []
        entries = sum(map(len, pieces))
        size_bytes = 0
        while not self.ended and entries < PIECE_ENTRIES and size_bytes < PIECE_BYTES:
            block = await anext(self.blocks, None)
            if block is None:
                self.ended = True
                break
            rows = core_merge.clip(block.rows(), self.table.clip_start, self.table.clip_end)
            if len(rows):
                pieces.append(rows)
                entries += len(rows)
                size_bytes += block.memory_bytes
        self.rows = concatenate(pieces) if pieces else None


async def _side_by_side(cursors: Sequence[_Cursor]) -> AsyncIterator[list[Rows]]:
    """Iterate over pieces of all tables with the same range of keys, in table order: each key is in one piece."""
    while True:
        for cursor in cursors:
            if cursor.rows is None or len(cursor.rows) < PIECE_ENTRIES:
                await cursor.fill()
        ends = [cursor.rows.keys[-1] for cursor in cursors if cursor.rows is not None and not cursor.ended]
        boundary = min(ends, default=None)
        pieces: list[Rows] = []
        for cursor in cursors:
            rows = cursor.rows
            if rows is None:
                continue
            if boundary is None:
                head, cursor.rows = rows, None
            else:
                head, rest = core_merge.split_at(rows, boundary)
                cursor.rows = rest if len(rest) else None
            if len(head):
                pieces.append(head)
        if pieces:
            yield pieces
        if boundary is None:
            return


def _facts(table: Table) -> TableFacts:
    footer = table.footer
    return TableFacts(
        size_bytes=table.size_bytes,
        entries=footer.entries,
        deletes=footer.deletes,
        is_clipped=table.is_clipped,
        expires_ms_min=footer.expires_ms_min,
    )
