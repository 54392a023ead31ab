"""Scans of key ranges: pages of one snapshot, for as long as it is kept.

Invariants: all pages of one snapshot show exactly what was acknowledged when the scan began;
            snapshots are bounded in number, time and memory; after that, a scan continues in a new one, after its last
            key;
            nothing that a snapshot may need is removed: the extents of its tables and values count as used.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.engine.values import Pieces, Values
from neve.partition_server.tables.table import Table
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import InvalidArgument
from neve.rpc.limits import MIB

_CONTINUATION = struct.Struct("<BQ")  # format, snapshot; followed by the next key
_FORMAT = 1

SCAN_KEYS_MAX = 10_000  # in one page
SCAN_BYTES_MAX = 4 * MIB
SNAPSHOT_IDLE_S = 30.0
SNAPSHOT_AGE_S = 300.0
VALUES_AT_ONCE = 16
INFO_BYTES = 40  # approximate size of an object's info in a reply, beside its key and value


@dataclass(slots=True)
class Snapshot:
    id: int
    view: View
    applied: int
    now_ms: int  # the time for which expiry is decided
    made_s: float
    used_s: float
    pages: int = 0  # pages being made from it


@dataclass(frozen=True, slots=True)
class ScanPage:
    """One page. `values` are consecutive views; `infos` have the sizes of the values."""

    infos: list[ps.ObjectInfo]
    values: Pieces
    continuation: bytes  # empty: complete, up to the requested end or that of the partition
    left_out: list[int]  # indexes of `infos` whose value is larger than a page and is not in `values`


class Scans:
    def __init__(self, store: Store, values: Values) -> None:
        self._store = store
        self._values = values
        self._snapshots: dict[int, Snapshot] = {}
        store.snapshot_views = self.views
        store.share.let_go = self.let_go

    async def scan(
        self,
        *,
        prefix: bytes,
        start: bytes,
        end: bytes,
        limit: int,
        continuation: bytes,
        with_values: bool,
        max_bytes: int,
    ) -> ScanPage:
        store = self._store
        limit = min(limit or SCAN_KEYS_MAX, SCAN_KEYS_MAX)
        max_bytes = min(max_bytes or SCAN_BYTES_MAX, SCAN_BYTES_MAX)
        start, end = max(start, prefix, store.start), bound(bound(end, behind_prefix(prefix)), store.end)
        snapshot: Snapshot | None = None
        if continuation:
            snapshot_id, key = decode_continuation(continuation)
            start = max(start, key)
            snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None:
            snapshot = self._take()
        snapshot.pages += 1
        try:
            found, pieces, go_on = await self._page(snapshot, start, end, limit, max_bytes, with_values=with_values)
        finally:
            snapshot.pages -= 1
            snapshot.used_s = store.loop.time()
        store.ensure_owner()
        store.counters.reads += len(found)
        infos = [entry.message() for entry in found]
        left_out = [number for number, entry in enumerate(found) if with_values and entry.size_bytes > max_bytes]
        if go_on is None:
            if snapshot.pages == 0:
                self._drop(snapshot)
            return ScanPage(infos, pieces, b"", left_out)
        self._keep(snapshot)
        store.memory.spare()  # it could not drop this snapshot while its page was made
        return ScanPage(infos, pieces, _CONTINUATION.pack(_FORMAT, snapshot.id) + go_on, left_out)

    async def _page(
        self, snapshot: Snapshot, start: bytes, end: bytes, limit: int, max_bytes: int, *, with_values: bool
    ) -> tuple[list[Entry], Pieces, bytes | None]:
        """Return the objects, the values that fit a page, and the next key (None at the end)."""
        found, go_on = await self._entries(snapshot, start, end, limit, max_bytes, with_values=with_values)
        pieces: Pieces = []
        if with_values:
            wanted = [entry for entry in found if entry.size_bytes <= max_bytes]
            for at in range(0, len(wanted), VALUES_AT_ONCE):
                reads = [self._values.read(entry) for entry in wanted[at : at + VALUES_AT_ONCE]]
                for value in await asyncio.gather(*reads):
                    pieces += value
        return found, pieces, go_on

    async def _entries(
        self, snapshot: Snapshot, start: bytes, end: bytes, limit: int, max_bytes: int, *, with_values: bool
    ) -> tuple[list[Entry], bytes | None]:
        found: list[Entry] = []
        size_bytes = 0
        if end and start >= end:
            return found, None
        async for entries in entries_of(snapshot.view, start, end, snapshot.applied, limit):
            for entry in entries:
                if not entry.exists(snapshot.now_ms):
                    continue
                value_bytes = entry.size_bytes if with_values and entry.size_bytes <= max_bytes else 0
                size_bytes += len(entry.key) + INFO_BYTES + value_bytes
                if len(found) >= limit or (found and size_bytes > max_bytes):
                    return found, entry.key
                found.append(entry)
            await asyncio.sleep(0)  # yields, since there may be many deletes in a row
        return found, None

    # --- snapshots -------------------------------------------------------------------------------------------

    def _take(self) -> Snapshot:
        store = self._store
        now_s = store.loop.time()
        snapshot = Snapshot(store.rng.getrandbits(64), store.view, store.applied, store.wall_ms(), now_s, now_s)
        self._keep(snapshot)
        return snapshot

    def _keep(self, snapshot: Snapshot) -> None:
        self._snapshots[snapshot.id] = snapshot
        if len(self._snapshots) > self._store.config.snapshots_max:
            idle = [each for each in self._snapshots.values() if each.pages == 0 and each is not snapshot]
            if idle:
                self._drop(min(idle, key=lambda each: each.used_s))
        self._note_newest()

    def _drop(self, snapshot: Snapshot) -> None:
        self._snapshots.pop(snapshot.id, None)
        self._note_newest()
        self._store.release_unseen()

    def _note_newest(self) -> None:
        self._store.snapshot_applied = max((each.applied for each in self._snapshots.values()), default=0)

    def expire(self) -> None:
        now_s = self._store.loop.time()
        for snapshot in list(self._snapshots.values()):
            idle_s, age_s = now_s - snapshot.used_s, now_s - snapshot.made_s
            if snapshot.pages == 0 and (idle_s > SNAPSHOT_IDLE_S or age_s > SNAPSHOT_AGE_S):
                self._drop(snapshot)
        self._store.memory.spare()

    def let_go(self) -> None:
        """Memory is short: drop snapshots that hold some of it, the least recently used first."""
        held = {memtable.number for memtable in self._store.held}
        for snapshot in sorted(self._snapshots.values(), key=lambda each: each.used_s):
            if not self._store.memory.short:
                return
            if snapshot.pages == 0 and any(memtable.number in held for memtable in snapshot.view.memtables):
                self._drop(snapshot)

    def views(self) -> Iterator[View]:
        """The views that snapshots hold."""
        return (snapshot.view for snapshot in self._snapshots.values())

    def __len__(self) -> int:
        return len(self._snapshots)


# --- entries in order ----------------------------------------------------------------------------------------


async def entries_of(view: View, start: bytes, end: bytes, applied: int, limit: int) -> AsyncIterator[list[Entry]]:
    """Iterate in pieces over the newest entry of each key of [start, end) acknowledged up to `applied`, in order.

    Deletes and expired objects are included.
    """
    sources: list[_Source] = [_MemtableSource(memtable, start, end, applied, limit) for memtable in view.memtables]
    sources += [_TableSource(table, start, end) for table in view.tables if table.has_range(start, end)]
    while True:
        for source in sources:
            if not source.entries and not source.ended:
                await source.fill()
        sources = [source for source in sources if source.entries]
        if not sources:
            return
        boundary = min(source.entries[-1].key for source in sources)
        newest: dict[bytes, Entry] = {}
        for source in sources:  # newest first
            for entry in source.take(boundary):
                newest.setdefault(entry.key, entry)
        yield [newest[key] for key in sorted(newest)]


class _Source:
    """A source of entries in order; `entries` are those read and not yet taken."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ended = False

    async def fill(self) -> None:
        raise NotImplementedError

    def take(self, boundary: bytes) -> list[Entry]:
        entries = self.entries
        if entries[-1].key <= boundary:
            self.entries = []
            return entries
        count = next(number for number, entry in enumerate(entries) if entry.key > boundary)
        self.entries = entries[count:]
        return entries[:count]


class _MemtableSource(_Source):
    def __init__(self, memtable: Memtable, start: bytes, end: bytes, applied: int, limit: int) -> None:
        super().__init__()
        self._memtable = memtable
        self._start, self._end, self._applied = start, end, applied
        self._step = max(limit + 1, 16)

    async def fill(self) -> None:
        """Read the next keys. Not with one iterator, because keys are added between pages, and even within one."""
        while (keys := next(self._memtable.index.runs(self._start, self._end), None)) is not None:
            keys = keys[: self._step]  # the rest of this run comes next, so the next run is not taken
            self._start = keys[-1] + b"\0"
            memtable, applied = self._memtable, self._applied
            self.entries = [entry for key in keys if (entry := memtable.get(key, applied)) is not None]
            if self.entries:
                return
        self.ended = True


class _TableSource(_Source):
    def __init__(self, table: Table, start: bytes, end: bytes) -> None:
        super().__init__()
        self._table = table
        self._start = max(start, table.clip_start)
        self._end = bound(end, table.clip_end)
        self._block = table.index.block_of(self._start)

    async def fill(self) -> None:
        table = self._table
        while self._block < len(table.index.last_keys):
            block = await table.block(self._block)
            self._block += 1
            self.entries = block.entries(self._start, self._end)
            if self._end and block.keys[-1] >= self._end:
                break
            if self.entries:
                return
        else:
            self.ended = True
            return
        self.ended = True


# --- bounds --------------------------------------------------------------------------------------------------


def bound(one: bytes, other: bytes) -> bytes:
    """Return the smaller of two exclusive ends, where empty means none."""
    return min(one, other) if one and other else one or other


def behind_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix; empty if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""


def decode_continuation(continuation: bytes) -> tuple[int, bytes]:
    """Return the snapshot id and the next key."""
    if len(continuation) < _CONTINUATION.size:
        raise InvalidArgument(what="continuation", detail=f"{len(continuation)} bytes")
    form, snapshot_id = _CONTINUATION.unpack_from(continuation)
    if form != _FORMAT:
        raise InvalidArgument(what="continuation", detail=f"format {form}")
    return snapshot_id, continuation[_CONTINUATION.size :]
