"""Reclaims extents: unused ones of the row and meta streams, and log extents, if necessary after moving live values.

Invariants: an extent leaves a stream only when an acknowledged manifest does not need it, nor any table of the view or
            of a snapshot, memtable, upload, or table being written;
            a log extent with live values leaves only after all were moved and every move was acknowledged; a failed
            move keeps the extent (scenario T40);
            a move is decided against the newest state with pending writes, and loses against any later write;
            extents are removed in the owner's name, and only while the partition is served: a closed one has dropped
            its tables and would take every extent for unused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import PUT, Entry, Part
from neve.partition_server.engine.lookups import Lookups
from neve.partition_server.engine.scans import Scans
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.engine.values import Values
from neve.partition_server.engine.writes import Writes
from neve.partition_server.log.log_format import BadRecord, decode
from neve.partition_server.tables.committer import Committer
from neve.partition_server.tables.flusher import Flusher
from neve.partition_server.tables.table import Table, extents_of
from neve.proto.errors import Internal

log = logging.getLogger(__name__)

MOVES_AT_ONCE = 32


class Reclaimer:
    def __init__(
        self,
        store: Store,
        *,
        committer: Committer,
        flusher: Flusher,
        lookups: Lookups,
        values: Values,
        writes: Writes,
        scans: Scans,
    ) -> None:
        self._store = store
        self._committer = committer
        self._flusher = flusher
        self._lookups = lookups
        self._values = values
        self._writes = writes
        self._scans = scans
        self._lock = asyncio.Lock()
        self._tidied: tuple[tuple[Table, ...], Position | None, int] | None = None
        self._meta_before = 0  # the extent at which the meta stream was last truncated
        self._in_vain: dict[int, tuple[Table, ...]] = {}  # extents that could not be removed, and the tables then

    # --- unused extents --------------------------------------------------------------------------------------

    async def tidy(self) -> None:
        """Remove unused extents from all three streams."""
        store = self._store
        state = (store.view.tables, store.log_replay_from, len(self._scans))
        if self._tidied is not None and self._tidied[0] is state[0] and self._tidied[1:] == state[1:]:
            return
        async with self._lock:
            await self._tidy_row()
            await self._tidy_log()
            await self._tidy_meta()
        self._tidied = state

    async def _tidy_row(self) -> None:
        store = self._store
        extent_ids = await self._extents(store.row.stream_id)
        used = extents_of(table for view in self._views() for table in view.tables)
        used |= extents_of(table for tables in store.committing.values() for table in tables)
        committed = store.streams.row.committed
        assert committed is not None
        begun = store.row_extents_begun() | {committed.extent_id}
        first = min((extent_ids.index(each) for each in begun if each in extent_ids), default=len(extent_ids) - 1)
        unused = [each for each in extent_ids[:first] if each not in used]
        await self._punch(store.row.stream_id, unused)

    async def _tidy_log(self) -> None:
        store = self._store
        before = await self._log_before_replay()
        unused = [each for each in before if not self._log_in_use(each)]
        await self._punch(store.log.stream_id, unused)
        left = [each for each in before if each not in unused]
        known = {each: store.log_lengths[each] for each in left if each in store.log_lengths}
        unknown = [each for each in left if each not in known]
        if unknown:
            for info in await store.streams.client.admin.describe_extents(unknown):
                if info.HasField("seal"):
                    known[info.extent_id] = info.seal.length
        store.log_lengths = known

    async def _tidy_meta(self) -> None:
        """Truncate the meta stream before the newest manifest."""
        position = self._committer.position
        if position is not None and position.extent_id != self._meta_before:
            await self._store.streams.client.truncate(self._store.meta.stream_id, position, owner=self._store.owner())
            self._meta_before = position.extent_id

    async def _extents(self, stream_id: int) -> list[int]:
        return list((await self._store.streams.client.stream(stream_id)).extent_ids)

    async def _log_before_replay(self) -> list[int]:
        """Return the log extents that are needed only for their values."""
        start = self._store.log_replay_from
        if start is None:
            return []
        extent_ids = await self._extents(self._store.log.stream_id)
        if start.extent_id not in extent_ids:
            self._store.ensure_owner()  # otherwise the next owner may have flushed and removed it
            raise Internal(detail=f"the log does not have {start}, where its replay begins")
        return extent_ids[: extent_ids.index(start.extent_id)]

    def _views(self) -> Iterable[View]:
        return (self._store.view, *self._scans.views())

    def _log_in_use(self, extent_id: int) -> bool:
        """Whether anything refers to the extent."""
        if any(extent_id in table.log_references for table in self._store.view.tables):
            return True
        return self._held_beside_tables(extent_id)

    def _held_beside_tables(self, extent_id: int) -> bool:
        """Whether memtables, uploads or snapshots refer to the extent."""
        store = self._store
        if extent_id in store.pins:
            return True
        if any(extent_id in memtable.log_refs for view in self._views() for memtable in view.memtables):
            return True
        return any(extent_id in table.log_references for view in self._scans.views() for table in view.tables)

    async def _punch(self, stream_id: int, extent_ids: Sequence[int]) -> None:
        if extent_ids:
            await self._store.streams.client.punch(stream_id, extent_ids, owner=self._store.owner())
            log.info(
                "extents_given_back partition_id=%d stream_id=%d extents=%s",
                *(self._store.partition_id, stream_id, ",".join(map(str, extent_ids))),
            )

    # --- moving live values ----------------------------------------------------------------------------------

    def worth_it(self) -> list[int]:
        """Return log extents with so few live values that moving them pays."""
        store = self._store
        ratio = store.config.log_garbage_ratio
        tables = store.view.tables
        self._in_vain = {each: seen for each, seen in self._in_vain.items() if seen is tables}
        return [
            extent_id
            for extent_id, garbage_bytes in store.discardable().items()
            if garbage_bytes >= store.log_lengths[extent_id] * ratio and extent_id not in self._in_vain
        ]

    async def reclaim(self, extent_ids: Sequence[int]) -> tuple[list[int], list[int], int]:
        """Move the live values of these log extents and remove the extents. Returns removed, kept, bytes moved.

        An extent that is not in the stream is in neither list.
        """
        store = self._store
        async with self._lock:
            there = await self._extents(store.log.stream_id)
            wanted = [each for each in dict.fromkeys(extent_ids) if each in there]
            before = await self._log_before_replay()
            if any(each not in before or self._held_beside_tables(each) for each in wanted):
                await self._flusher.flush_all()
                before = await self._log_before_replay()
            punched: list[int] = []
            moved_bytes = 0
            for extent_id in wanted:
                if extent_id not in before:
                    continue  # too new: it still has to be replayed
                if extent_id in store.pins:
                    continue  # its upload may become an object, and reach a table, while values are moved
                moved_bytes += await self._move_all(extent_id)
                if not self._held_beside_tables(extent_id):
                    await self._punch(store.log.stream_id, [extent_id])
                    store.log_lengths.pop(extent_id, None)
                    punched.append(extent_id)
            kept = [each for each in wanted if each not in punched]
            for extent_id in kept:
                self._in_vain[extent_id] = store.view.tables
        return punched, kept, moved_bytes

    async def _move_all(self, extent_id: int) -> int:
        """Move every live value out of the extent; raises if one could not be moved. Returns the bytes moved."""
        store = self._store
        moved_bytes = 0
        keys: dict[bytes, None] = {}
        records = store.streams.client.read(store.log.stream_id, start=Position(extent_id, 0))
        async with aclosing(records):  # type: ignore[type-var]  # it is a generator
            async for position, payload, _ in records:
                if position.extent_id != extent_id:
                    break
                try:
                    entries = decode(payload).entries  # type: ignore[arg-type]  # copied, hence bytes
                except BadRecord as error:
                    raise Internal(detail=f"log record at {position}: {error}") from error
                for entry in entries:
                    if entry.kind == PUT and store.owns(entry.key):
                        keys[entry.key] = None
                if len(keys) >= MOVES_AT_ONCE:
                    moved_bytes += await self._move_keys(extent_id, list(keys))
                    keys.clear()
        return moved_bytes + await self._move_keys(extent_id, list(keys))

    async def _move_keys(self, extent_id: int, keys: Sequence[bytes]) -> int:
        current = await self._lookups.current(keys)
        live = [entry for entry in current.values() if entry is not None and refers(entry, extent_id)]
        moves = await asyncio.gather(*(self._move(entry, extent_id) for entry in live), return_exceptions=True)
        for outcome in moves:
            if isinstance(outcome, BaseException):
                raise outcome
        return sum(outcome for outcome in moves if isinstance(outcome, int))

    async def _move(self, entry: Entry, extent_id: int) -> int:
        """Move one object. On return, no newest value of it is in the extent."""
        size_max = self._store.part_bytes
        if entry.size_bytes <= size_max:
            value = b"".join(await self._values.read(entry))
            await self._writes.move(entry, value)
            return len(value)
        parts: list[Part] = []
        pinned: list[Part] = []
        moved_bytes = 0
        try:
            at = 0
            for part in entry.parts or ():
                if part.extent_id == extent_id:
                    value = b"".join(await self._values.read(entry, at, part.length))
                    made = await self._writes.write_parts(entry.key, value, upload_id=0, offset=at)
                    pinned += made
                    parts += made
                    moved_bytes += part.length
                else:
                    parts.append(part)
                at += part.length
            await self._writes.move(entry, tuple(parts))
        finally:
            self._writes.release_parts(None, tuple(pinned))
        return moved_bytes


def refers(entry: Entry, extent_id: int) -> bool:
    return any(part.extent_id == extent_id for part in entry.parts or ())
