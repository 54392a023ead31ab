"""A memtable: acknowledged writes that are in no table yet, the newest of each key and what snapshots need.

Invariants: a write belongs to the memtable that was active at its submission, so memtables partition the seqs: entries
            of an older one are older than those of a newer one, in whatever order acknowledgements arrive;
            a memtable is flushed when it is closed and has no pending writes;
            a snapshot sees what was acknowledged before it: `applied` counts acknowledgements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neve.client.streams.types import Position
from neve.partition_server.engine.config import EngineConfig
from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.key_index import KeyIndex

EVERYTHING = 1 << 62  # after every acknowledgement


class Memtable:
    __slots__ = (
        "closed",
        "entries",
        "index",
        "last_position",
        "last_seq",
        "log_refs",
        "memory_bytes",
        "number",
        "part_bytes",
        "pending",
        "records",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.entries: dict[bytes, Entry] = {}
        self.index = KeyIndex()
        self.memory_bytes = 0
        self.records = 0  # log records that a load would have to replay
        self.pending = 0  # submitted, not acknowledged
        self.closed = False
        self.last_seq = 0  # the highest acknowledged here
        self.last_position: Position | None = None  # of that record in the log
        self.part_bytes = 0  # bytes of values in log parts, not in memory
        self.log_refs: dict[int, int] = {}  # log extents of such parts, with the number of references

    def note_record(self, seq_last: int, position: Position) -> None:
        """Count an acknowledged log record of any kind."""
        self.records += 1
        if seq_last >= self.last_seq:
            self.last_seq, self.last_position = seq_last, position

    def is_full(self, config: EngineConfig) -> bool:
        """Whether to flush it, because of its memory or because a load would have too much to replay."""
        return self.memory_bytes >= config.memtable_bytes or self.records >= config.memtable_records

    def apply(self, entry: Entry, position: Position, applied: int, *, snapshot_applied: int) -> int:
        """Apply an acknowledged entry of a counted record. Returns the growth in memory.

        `snapshot_applied` is that of the newest snapshot, 0 for none.
        """
        entry.position = position
        entry.applied = applied
        key = entry.key
        before = self.entries.get(key)
        if before is not None and before.seq > entry.seq:
            return 0  # a later write was acknowledged first: no read ever sees this one
        size_bytes = entry.memory_bytes()
        if entry.parts is not None:
            for part in entry.parts:
                self.log_refs[part.extent_id] = self.log_refs.get(part.extent_id, 0) + 1
            self.part_bytes += entry.size_bytes
        if before is None:
            self.index.add(key)
        elif snapshot_applied >= before.applied:
            entry.older = before
        else:
            seen: Entry | None = before
            while seen is not None and seen.applied > snapshot_applied:  # no present or future snapshot sees it
                size_bytes -= seen.memory_bytes()
                self._unref(seen)
                seen = seen.older
            entry.older = seen
        self.entries[key] = entry
        self.memory_bytes += size_bytes
        return size_bytes

    def apply_all(
        self, entries: Sequence[Entry], positions: Iterable[Position], applied: int, *, snapshot_applied: int
    ) -> int:
        """Apply entries that were acknowledged together, each with a record of its own."""
        grown_bytes = 0
        for entry, position in zip(entries, positions, strict=True):
            self.note_record(entry.seq, position)
            grown_bytes += self.apply(entry, position, applied, snapshot_applied=snapshot_applied)
        return grown_bytes

    def _unref(self, entry: Entry) -> None:
        if entry.parts is not None:
            self.part_bytes -= entry.size_bytes
        for part in entry.parts or ():
            left = self.log_refs[part.extent_id] - 1
            if left:
                self.log_refs[part.extent_id] = left
            else:
                del self.log_refs[part.extent_id]

    def get(self, key: bytes, applied: int) -> Entry | None:
        """Return the newest entry of the key with an acknowledgement up to `applied`."""
        entry = self.entries.get(key)
        while entry is not None and entry.applied > applied:
            entry = entry.older
        return entry

    def runs(self, start: bytes, end: bytes, applied: int) -> Iterator[list[Entry]]:
        """Iterate over what a snapshot sees of [start, end), in order, in pieces."""
        entries = self.entries
        for keys in self.index.runs(start, end):
            if applied >= EVERYTHING:
                yield [entries[key] for key in keys]
                continue
            found = [entry for key in keys if (entry := self.get(key, applied)) is not None]
            if found:
                yield found

    def __len__(self) -> int:
        return len(self.entries)

    def validate(self) -> None:
        """Check the state; for tests."""
        keys = [key for run in self.index.runs() for key in run]
        assert keys == sorted(self.entries), (keys, sorted(self.entries))
        refs: dict[int, int] = {}
        total_bytes = 0
        for newest in self.entries.values():
            entry: Entry | None = newest
            while entry is not None:
                total_bytes += entry.memory_bytes()
                for part in entry.parts or ():
                    refs[part.extent_id] = refs.get(part.extent_id, 0) + 1
                assert entry.older is None or entry.older.seq < entry.seq, entry
                entry = entry.older
        assert refs == self.log_refs, (refs, self.log_refs)
        assert total_bytes == self.memory_bytes, (total_bytes, self.memory_bytes)
