"""Commits changes of a partition's tables: writes the manifest and, when it is acknowledged, replaces the view.

Invariants: one change at a time. The view changes after the manifest, and always if the manifest is acknowledged: a
            change that has begun is never cancelled, because tables that the meta stream names and the view lacks would
            be taken for garbage;
            no manifest follows the one that a merge of partitions uses: it would restore replaced tables, whose extents
            were removed;
            a manifest names only tables whose records are all acknowledged, and sessions whose results are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from neve.client.streams.types import Position
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.tables import manifest as manifests
from neve.partition_server.tables.table import Table
from neve.proto import partition_records_pb2 as records
from neve.proto.errors import NeveError, Overloaded

log = logging.getLogger(__name__)


class Committer:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._is_over = False
        self.number = 0  # of the last manifest
        self.position: Position | None = None  # of the last manifest

    async def commit(
        self, *, added: Sequence[Table] = (), replaced: Sequence[Table] = (), flushed: Memtable | None = None
    ) -> Position:
        """Replace `replaced` by `added`, or put `added` before all tables; it contains the memtables in `flushed`."""
        task = self._store.loop.create_task(self._commit(added, replaced, flushed))
        committing = self._store.committing  # keeps the tables in use if the caller is cancelled and the change goes on
        committing[task] = added
        task.add_done_callback(committing.pop)
        return await self._outcome_of(task)

    async def commit_last(self) -> Position:
        """Write the manifest that stays the newest: no change follows it."""
        return await self._outcome_of(self._store.loop.create_task(self._commit((), (), None, is_last=True)))

    async def _outcome_of(self, task: asyncio.Task[Position]) -> Position:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._ended_alone)
            raise

    def _ended_alone(self, task: asyncio.Task[Position]) -> None:
        """The caller was cancelled, so the outcome is logged here."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NeveError):
            log.info("manifest_not_written partition_id=%d error=%s", self._store.partition_id, error)
        else:
            log.error("manifest_failed partition_id=%d", self._store.partition_id, exc_info=error)

    async def idle(self) -> None:
        """Wait until no change is in progress."""
        async with self._lock:
            pass

    async def _commit(
        self, added: Sequence[Table], replaced: Sequence[Table], flushed: Memtable | None, *, is_last: bool = False
    ) -> Position:
        store = self._store
        async with self._lock:
            if self._is_over:
                raise Overloaded(what="partition", detail=f"partition {store.partition_id} is frozen")
            store.check_readable()  # a closed partition has dropped its tables: a manifest would name none
            self._is_over = is_last
            tables = _changed(store.view.tables, added, replaced)
            seq, replay_from = store.flushed_seq, store.log_replay_from
            if flushed is not None and flushed.last_seq > seq:
                seq, replay_from = flushed.last_seq, flushed.last_position
            message = self._manifest(tables, seq, replay_from)
            position = await store.streams.meta.append(manifests.encode(message))
            self.number, self.position = message.number, position
            store.flushed_seq, store.log_replay_from = seq, replay_from
            memtables = tuple(each for each in store.view.memtables if each is not flushed)
            store.view = View(memtables, tables)
            if flushed is not None:
                store.note_flushed(flushed)
            store.unstall()
        log.info(
            "manifest_written partition_id=%d number=%d tables=%d seq=%d replay_from=%s",
            *(store.partition_id, self.number, len(tables), seq, replay_from),
        )
        return position

    def _manifest(self, tables: Sequence[Table], seq: int, replay_from: Position | None) -> records.Manifest:
        store = self._store
        store.sessions.expire(store.wall_ms())
        message = records.Manifest(
            format=manifests.FORMAT,
            partition_id=store.partition_id,
            map_version=max(store.region.version, store.region.merged_at),
            start=store.start,
            end=store.end,
            number=self.number + 1,
            seq=seq,
            tables=[table.entry() for table in tables],
            sessions=manifests.encode_sessions(store.sessions),
            written_ms=store.wall_ms(),
        )
        if replay_from is not None:
            message.log_replay_from.CopyFrom(manifests.message_of(replay_from))
        for extent_id, size_bytes in sorted(store.discardable().items()):
            message.discards.add(extent_id=extent_id, bytes=size_bytes)
        return message


def _changed(tables: Sequence[Table], added: Sequence[Table], replaced: Sequence[Table]) -> tuple[Table, ...]:
    """Return the tables, newest first, with `added` in the place of `replaced`."""
    if not replaced:
        return (*added, *tables)
    first = next(number for number, table in enumerate(tables) if table is replaced[0])
    assert list(tables[first : first + len(replaced)]) == list(replaced), "tables to be replaced are neighbours"
    return (*tables[:first], *added, *tables[first + len(replaced) :])
