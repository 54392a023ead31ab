"""What one mutation writes and requires: recorded while the flow decides, then committed as part of one transaction.

Invariants: every record that is written is also compared: by the mod revision of the record that it replaces, or as
            absent;
            a young extent has no key: it is written in its stream's record and compared by that, even in the
            transaction that gives it its first key, which only the leader does, and only holding its lock;
            nothing here changes the state: that happens when etcd has the changes (`State.apply`);
            a mutation writes a key once.

    changes = ctx.changes()
    changes.put_extent(old, new)                 # old: the record to replace, None if there must be none
    changes.require_owner(lock, token)           # the lock's key has this mod revision (protocol rule 3)
    await ctx.commit(changes)

`finish` encodes a stream's record, because it contains the stream's young extents: those that this mutation creates or
seals, and those that were young before. All are within the last `YOUNG_WINDOW` extents of the list: a flow that links
one more extent gives the extent that leaves the window a key of its own, holding its lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from neve.meta.lock import lock_key
from neve.meta.txn import ITEM_BYTES
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.record_kinds import EXTENT, STREAM, Id, Kind, R, Record
from neve.stream_manager.metadata.records import Extent, Stream, StreamCall, check_first_extent
from neve.stream_manager.metadata.replay import replay_bytes, replay_key

if TYPE_CHECKING:
    from neve.stream_manager.metadata.state import State

YOUNG_WINDOW = 8  # extents at the end of a list: bounds a stream's record when no replica confirms anything


# A record to write: its kind, its id, the record (None: deleted), and whether it has a key and so a mod revision.
Write = tuple[Kind[Any, Any], int | str, Record | None, bool]


class OwnerClaim(NamedTuple):
    """A caller's claim to hold a lock with this token."""

    lock: str
    token: int


class Changes:
    """The writes and conditions of one mutation. Pass it to `ctx.commit` once; make another one to try again."""

    __slots__ = (
        "_released",
        "_streams",
        "_young",
        "calls",
        "owners",
        "revisions",
        "root",
        "size_bytes",
        "state",
        "stream_call",
        "values",
        "writes",
    )

    def __init__(self, root: bytes, state: State | None = None) -> None:
        self.root = root
        self.state = state  # has the young extents that this mutation does not change
        self.revisions: dict[bytes, int] = {}  # key → the mod revision that it must have; 0: it must be absent
        self.values: dict[bytes, bytes | None] = {}  # key → the value to put; None: delete the key
        self.owners: dict[bytes, OwnerClaim] = {}  # by the lock's key
        # The replay record inside of a stream that is put (protocol rule 26)
        self.stream_call: StreamCall | None = None
        self.calls: list[StreamCall] = []  # replay records with a key of their own (protocol rule 26)
        self.writes: list[Write] = []
        self.size_bytes = 0  # of the transaction; set by `finish`
        self._streams: list[tuple[bytes, Stream]] = []
        self._young: dict[int, Extent] = {}
        self._released: list[int] = []  # stream ids of the young extents that get a key

    # --- records of any kind ---------------------------------------------------------------------------------

    def put(self, kind: Kind[Id, R], old: R | None, new: R) -> None:
        """`old`: the record to replace; None if there must be none."""
        assert old is None or old.mod_revision > 0, f"{old} was never committed"
        ident = kind.ident(new)
        key = kind.key(self.root, ident)
        self.require(key, 0 if old is None else old.mod_revision)
        self._set(key, kind.encode(new))
        self.writes.append((kind, ident, new, True))

    def delete(self, kind: Kind[Id, R], old: R) -> None:
        assert old.mod_revision > 0, f"{old} was never committed"
        ident = kind.ident(old)
        self.require(kind.key(self.root, ident), old.mod_revision)
        self.delete_uncompared(kind, ident)

    def delete_uncompared(self, kind: Kind[Id, R], ident: Id) -> None:
        """Delete a record that is covered by another compare of the transaction, as a name is by its stream's."""
        self._set(kind.key(self.root, ident), None)
        self.writes.append((kind, ident, None, True))

    # --- streams and extents: a young extent stands in its stream's record -----------------------------------

    def put_stream(self, old: Stream | None, new: Stream) -> None:
        key = STREAM.key(self.root, new.stream_id)
        assert old is None or old.mod_revision > 0, f"{old} was never committed"
        self.require(key, 0 if old is None else old.mod_revision)
        self._streams.append((key, new))
        self.writes.append((STREAM, new.stream_id, new, True))

    def put_new_stream(self, stream: Stream, tail: Extent) -> None:
        """Put a stream that was just created, with its first extent."""
        check_first_extent(stream, tail)
        self.put_stream(None, stream)
        self.put_young(tail)

    def delete_stream(self, old: Stream) -> None:
        """Delete a stream.

        The call that created it gets a replay record of its own, so that repeating it creates no other stream.
        """
        self.delete(STREAM, old)
        if old.made_by is not None:
            self.put_replay(old.made_by)

    def require_stream(self, stream: Stream) -> None:
        """Require that the stream still has this version, without writing it."""
        self.require(STREAM.key(self.root, stream.stream_id), stream.mod_revision)

    def put_young(self, new: Extent) -> None:
        """Put an extent that has no key of its own. Its stream must be put as well."""
        assert new.young, f"{new} has a key"
        self._young[new.extent_id] = new
        self.writes.append((EXTENT, new.extent_id, new, False))

    def put_extent(self, old: Extent | None, new: Extent) -> None:
        """Put an extent at a key of its own. If `old` is young, this is its first key."""
        key = EXTENT.key(self.root, new.extent_id)
        self.require(key, 0 if old is None else old.mod_revision)
        self._set(key, EXTENT.encode(new))
        self.writes.append((EXTENT, new.extent_id, new, True))

    def release_extent(self, new: Extent) -> None:
        """Give a young extent a key of its own. Its stream must be put as well, and its compare covers the extent."""
        self._set(EXTENT.key(self.root, new.extent_id), EXTENT.encode(new))
        self._released.append(new.stream_id)
        self.writes.append((EXTENT, new.extent_id, new, True))

    def replace_extent(self, old: Extent, new: Extent) -> None:
        """Put an extent where it is stored: at its key or, if it is young, in its stream, which must be put as well."""
        if old.young:
            self.put_young(new)
        else:
            self.put_extent(old, new)

    def delete_extent(self, old: Extent) -> None:
        """Delete an extent. A young one is deleted by putting its stream without it, or by deleting the stream."""
        if old.young:
            self.require_extent(old)
            self.writes.append((EXTENT, old.extent_id, None, False))
        else:
            self.delete(EXTENT, old)

    def require_extent(self, extent: Extent) -> None:
        self.require(EXTENT.key(self.root, extent.extent_id), extent.mod_revision)

    def require_no_extent(self, extent_id: int) -> None:
        """Require that metadata has no such extent, before a delete order (protocol rule 24)."""
        self.require(EXTENT.key(self.root, extent_id), 0)

    def put_replay(self, call: StreamCall) -> None:
        """Put a replay record without a compare.

        Within a term a call has one execution at a time, and a new leader has loaded all records.
        """
        self._set(replay_key(self.root, call.client_id, call.call_id), replay_bytes(call.replay))
        self.calls.append(call)

    # --- others' keys, and conditions -------------------------------------------------------------------------

    def put_other(self, key: bytes, value: bytes, *, mod_revision: int) -> None:
        """Put a key that is not a record. `mod_revision`: the revision that it must have; 0: it must not exist."""
        self.require(key, mod_revision)
        self._set(key, value)

    def delete_other(self, key: bytes, *, mod_revision: int) -> None:
        self.require(key, mod_revision)
        self._set(key, None)

    def require(self, key: bytes, mod_revision: int) -> None:
        before = self.revisions.setdefault(key, mod_revision)
        assert before == mod_revision, f"{key!r} at {mod_revision} contradicts {before}"

    def require_owner(self, lock: str, token: int) -> None:
        """Require that the lock is held with this token when the transaction runs (protocol rule 3)."""
        key = lock_key(self.root, lock)
        self.owners[key] = OwnerClaim(lock, token)
        self.require(key, token)

    def require_unowned(self, lock: str) -> None:
        """Require that the lock is free when the transaction runs."""
        self.require(lock_key(self.root, lock), 0)

    # --- for the batcher -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Encode the streams, now that their young extents are known. Nothing is recorded after this."""
        streams, released = self._streams, self._released
        for key, stream in streams:
            self._set(key, r.stream_bytes(stream, self._young_of(stream)))
        if released:
            put = [stream.stream_id for _, stream in streams]
            assert all(stream_id in put for stream_id in released), f"{released} is compared by nothing"
        streams.clear()
        assert not self._young, f"young extents without their stream: {self._young}"
        size_bytes = ITEM_BYTES * (len(self.revisions) + len(self.values))
        for key in self.revisions:
            size_bytes += len(key)
        for key, value in self.values.items():
            size_bytes += len(key) if value is None else len(key) + len(value)
        self.size_bytes = size_bytes

    def _young_of(self, stream: Stream) -> list[Extent]:
        """The stream's extents that will have no key of their own, as they will be."""
        found: list[Extent] = []
        known: Mapping[int, Extent] = self.state.extents if self.state is not None else {}
        for extent_id in stream.extent_ids[-YOUNG_WINDOW:]:
            extent = known.get(extent_id)
            if extent is not None and extent.mod_revision:
                continue  # it already has a key
            extent = self._young.pop(extent_id, extent)
            if extent is None or (len(self.values) > 0 and self._has_key(extent_id)):
                continue
            assert extent.stream_id == stream.stream_id, f"{extent} is not in the record of {stream}"
            found.append(extent)
        return found

    def _has_key(self, extent_id: int) -> bool:
        return EXTENT.key(self.root, extent_id) in self.values

    # --- inside ----------------------------------------------------------------------------------------------

    def _set(self, key: bytes, value: bytes | None) -> None:
        assert key not in self.values, f"{key!r} is written twice"
        self.values[key] = value
