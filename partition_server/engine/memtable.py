"""Acknowledged writes that are in no table yet: the newest of each key, and older ones while a snapshot needs them.

Invariants: a write belongs to the memtable that was active when it was submitted, so that memtables divide the seqs
            among them: what an older one has is older than what a newer one has, however acknowledgements come;
            a memtable is flushed when it is closed and nothing of it is pending any more;
            snapshots see what was acknowledged before them: `applied` counts acknowledgements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neve.client.streams.types import Position
from neve.partition_server.engine.config import EngineConfig
from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.key_index import KeyIndex

EVERYTHING = 1 << 62  # later than every acknowledgement


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
        self.records = 0  # of the log, that a load would have to replay for it
        self.pending = 0  # submitted and not acknowledged
        self.closed = False
        self.last_seq = 0  # the highest that was acknowledged here,
        self.last_position: Position | None = None  # and where its record is in the log
        self.part_bytes = 0  # of values that are not here, but in parts in the log
        self.log_refs: dict[int, int] = {}  # log extents that values in parts are in, and how often they are named

    def note_record(self, seq_last: int, position: Position) -> None:
        """A record of the log was acknowledged, whatever it says."""
        self.records += 1
        if seq_last >= self.last_seq:
            self.last_seq, self.last_position = seq_last, position

    def is_full(self, config: EngineConfig) -> bool:
        """Whether it is to be flushed: for its memory, or because a load would have too much to replay."""
        return self.memory_bytes >= config.memtable_bytes or self.records >= config.memtable_records

    def apply(self, entry: Entry, position: Position, applied: int, *, snapshot_applied: int) -> int:
        """An acknowledged entry of a record that was noted; returns by how many bytes more memory is used.
        `snapshot_applied`: of the newest snapshot that there is, 0 for none."""
        entry.position = position
        entry.applied = applied
        key = entry.key
        before = self.entries.get(key)
        if before is not None and before.seq > entry.seq:
            return 0  # a later write was acknowledged earlier: nobody ever sees this one
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
            while seen is not None and seen.applied > snapshot_applied:  # by no snapshot, nor ever again
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
        """Entries that were acknowledged together, each a record of its own."""
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
        """The newest entry of the key that was acknowledged by then."""
        entry = self.entries.get(key)
        while entry is not None and entry.applied > applied:
            entry = entry.older
        return entry

    def runs(self, start: bytes, end: bytes, applied: int) -> Iterator[list[Entry]]:
        """What a snapshot sees of [start, end), in order, in pieces."""
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
        """For tests."""
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
