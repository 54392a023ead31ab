"""Flushes memtables: writes tables of them, oldest first.

Invariants: a memtable is flushed when it is closed and completely acknowledged. Reads find its entries in it until the
            manifest that names its table is acknowledged, and then in the table;
            a failed or cancelled flush loses nothing, since the log has everything.
"""

from __future__ import annotations

import asyncio
import logging

from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.memtable import EVERYTHING, Memtable
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.tables.committer import Committer
from neve.partition_server.tables.entry_columns import rows_of
from neve.partition_server.tables.table import Table, open_table
from neve.partition_server.tables.table_writer import TableWriter

log = logging.getLogger(__name__)

SLICE_ENTRIES = 500  # converted to rows at a time, in about a millisecond
FREED_ENTRIES = 2_000


class Flusher:
    def __init__(self, store: Store, committer: Committer) -> None:
        self._store = store
        self._committer = committer
        self._lock = asyncio.Lock()

    def rotate(self) -> None:
        """Close the active memtable if it has entries, and start a new one."""
        store = self._store
        memtable = store.active
        if memtable.last_seq or memtable.pending:
            memtable.closed = True
            store.view = View((store.new_memtable(), *store.view.memtables), store.view.tables)
            store.rotated_s = store.loop.time()

    async def flush_closed(self) -> None:
        """Flush all closed memtables whose writes are acknowledged."""
        while await self._flush_one():
            pass
        await self._dismantle()  # memtables that snapshots needed until now

    async def flush_all(self) -> None:
        """Flush everything that was acknowledged before this call. Waits for pending writes."""
        self.rotate()
        number = self._store.view.memtables[0].number
        while self._store.view.memtables[-1].number < number:  # by number: another task may flush the next one too
            if not await self._flush_one():
                await self._store.streams.log.flush()  # until the memtable's last write is acknowledged
                await asyncio.sleep(0)  # and applied
                self._store.check_readable()

    async def _flush_one(self) -> bool:
        """Flush the oldest closed memtable. False if none is ready."""
        async with self._lock:
            store = self._store
            await self._committer.idle()  # a cancelled caller may have left a change in progress
            memtable = store.view.memtables[-1]
            if not memtable.closed or memtable.pending:
                return False
            with store.writing_table():  # until the acknowledged manifest names it and the view has it
                table = await self._write(memtable)
                await self._committer.commit(added=[table] if table is not None else [], flushed=memtable)
            log.info(
                "memtable_flushed partition_id=%d entries=%d table_bytes=%d",
                *(store.partition_id, len(memtable), table.size_bytes if table is not None else 0),
            )
            await self._dismantle()
            return True

    async def _dismantle(self) -> None:
        """Free flushed memtables in steps: freeing a hundred thousand entries at once would block the loop."""
        unseen = self._store.unseen
        while unseen:
            await _emptied(unseen.pop().entries)

    async def let_go(self) -> None:
        """The partition has ended: empty its memtables now.

        Much of a partition is in reference cycles, so this memory would otherwise wait for a collection of old objects.
        """
        store = self._store
        assert store.error is not None, "a read could take what is not there any more for what never was"
        memtables = (*store.view.memtables, *store.held, *store.unseen)
        store.view = View((store.new_memtable(),))
        for memtable in memtables:
            await _emptied(memtable.entries)
        await _emptied(store.pending)
        store.held.clear()
        store.unseen.clear()
        store.sessions.clear()

    async def _write(self, memtable: Memtable) -> Table | None:
        store = self._store
        if not memtable.entries:
            return None
        writer = TableWriter(store.streams.row, store.config, record_bytes_max=store.record_bytes_max)
        try:
            for run in memtable.runs(b"", b"", EVERYTHING):
                for at in range(0, len(run), SLICE_ENTRIES):
                    rows = rows_of(
                        run[at : at + SLICE_ENTRIES],
                        value_threshold_bytes=store.config.value_threshold_bytes,
                        record_bytes_max=store.record_bytes_max,
                    )
                    await writer.add(rows)
                    await asyncio.sleep(0)
            position, _ = await writer.finish()
        finally:
            await writer.abandon()
        return await open_table(store.row, store.cache, position, clip_start=store.start, clip_end=store.end)


async def _emptied(entries: dict[bytes, Entry]) -> None:
    while entries:
        for _ in range(min(len(entries), FREED_ENTRIES)):
            entries.popitem()
        await asyncio.sleep(0)
