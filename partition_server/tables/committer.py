"""Changes what a partition is made of: writes the manifest, and when that is acknowledged, replaces the view.

Invariants: one change at a time; the view changes after the manifest, and always if that is acknowledged: a change that
            has begun is not broken off, since what goes to the meta stream and is not in the view would be taken for
            garbage;
            behind the manifest that a merge is told of there is none: else it would bring back what was replaced,
            and whose extents were given back;
            a manifest names only tables whose every record is acknowledged, and sessions whose results are.
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
        self.position: Position | None = None  # and where it is

    async def commit(
        self, *, added: Sequence[Table] = (), replaced: Sequence[Table] = (), flushed: Memtable | None = None
    ) -> Position:
        """Put `added` in the place of `replaced`, or in front of all tables; `flushed` is covered by them."""
        task = self._store.loop.create_task(self._commit(added, replaced, flushed))
        committing = self._store.committing  # a caller that goes away leaves the change to itself, and its tables to us
        committing[task] = added
        task.add_done_callback(committing.pop)
        return await self._outcome_of(task)

    async def commit_last(self) -> Position:
        """The manifest that stays the newest: no change is made behind it."""
        return await self._outcome_of(self._store.loop.create_task(self._commit((), (), None, is_last=True)))

    async def _outcome_of(self, task: asyncio.Task[Position]) -> Position:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._ended_alone)
            raise

    def _ended_alone(self, task: asyncio.Task[Position]) -> None:
        """Its caller has gone away: nobody else sees what became of it."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NeveError):
            log.info("manifest_not_written partition_id=%d error=%s", self._store.partition_id, error)
        else:
            log.error("manifest_failed partition_id=%d", self._store.partition_id, exc_info=error)

    async def idle(self) -> None:
        """Wait until no change is under way."""
        async with self._lock:
            pass

    async def _commit(
        self, added: Sequence[Table], replaced: Sequence[Table], flushed: Memtable | None, *, is_last: bool = False
    ) -> Position:
        store = self._store
        async with self._lock:
            if self._is_over:
                raise Overloaded(what="partition", detail=f"partition {store.partition_id} is frozen")
            store.check_readable()  # one that was closed has let its tables go: a manifest would name none
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
    """The newest first: what replaces tables comes in their place."""
    if not replaced:
        return (*added, *tables)
    first = next(number for number, table in enumerate(tables) if table is replaced[0])
    assert list(tables[first : first + len(replaced)]) == list(replaced), "tables to be replaced are neighbours"
    return (*tables[:first], *added, *tables[first + len(replaced) :])
