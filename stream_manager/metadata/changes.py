"""What one mutation writes and what it requires: recorded while it is decided, carried out as part of one transaction.

Invariants: every record that is written is compared, too: by the mod revision of the record it replaces, or as absent;
            a young extent has no key: it is written with its stream's record, and compared by it, also when it gets its
            first key in the same transaction: nobody else gives it one without its lock and without being the leader;
            nothing here touches the state: that happens after etcd has it (`State.apply`);
            a key is written once in a mutation.

    changes = ctx.changes()
    changes.put_extent(old, new)                 # old: the record it replaces, None if there must be none
    changes.require_owner(lock, token)           # the lock's key has this mod revision (protocol rule 3)
    await ctx.commit(changes)

A stream's record is encoded by `finish`, when all is known: it holds the stream's young extents, those that this
mutation makes or seals and those that were young before. They are within the last `YOUNG_WINDOW` of its list: whoever
links one more extent gives the one that leaves the window a key of its own, holding its lock.
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


# A record as it will be: its kind, its id, itself (None: deleted), whether it has a key, and so a mod revision.
Write = tuple[Kind[Any, Any], int | str, Record | None, bool]


class OwnerClaim(NamedTuple):
    """Somebody says to hold a lock with this token."""

    lock: str
    token: int


class Changes:
    """Records what is to be committed. Give it to `ctx.commit` once; make another one to try again."""

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
        self.state = state  # has the young extents that this mutation does not touch
        self.revisions: dict[bytes, int] = {}  # key → the mod revision that it must have; 0: it must be absent
        self.values: dict[bytes, bytes | None] = {}  # key → the value to put; None: delete the key
        self.owners: dict[bytes, OwnerClaim] = {}  # by the lock's key
        self.stream_call: StreamCall | None = None  # a replay record inside of a stream that is put (protocol rule 26)
        self.calls: list[StreamCall] = []  # replay records with a key of their own (protocol rule 26)
        self.writes: list[Write] = []
        self.size_bytes = 0  # of the transaction; known once it is finished
        self._streams: list[tuple[bytes, Stream]] = []
        self._young: dict[int, Extent] = {}
        self._released: list[int] = []  # ids of their streams

    # --- records of any kind ---------------------------------------------------------------------------------

    def put(self, kind: Kind[Id, R], old: R | None, new: R) -> None:
        """`old`: the record that it replaces; None if there must be none."""
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
        """Delete a record whose version another compare of this transaction covers, as a stream's covers its name."""
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
        """A stream that was just made, with its first extent."""
        check_first_extent(stream, tail)
        self.put_stream(None, stream)
        self.put_young(tail)

    def delete_stream(self, old: Stream) -> None:
        """The call that created it gets a record of its own: repeated, it must not create another stream."""
        self.delete(STREAM, old)
        if old.made_by is not None:
            self.put_replay(old.made_by)

    def require_stream(self, stream: Stream) -> None:
        """The stream is still this version, though it is not written."""
        self.require(STREAM.key(self.root, stream.stream_id), stream.mod_revision)

    def put_young(self, new: Extent) -> None:
        """An extent without a key of its own, with the record of its stream, which must be put, too."""
        assert new.young, f"{new} has a key"
        self._young[new.extent_id] = new
        self.writes.append((EXTENT, new.extent_id, new, False))

    def put_extent(self, old: Extent | None, new: Extent) -> None:
        """At a key of its own, from now on if `old` is young."""
        key = EXTENT.key(self.root, new.extent_id)
        self.require(key, 0 if old is None else old.mod_revision)
        self._set(key, EXTENT.encode(new))
        self.writes.append((EXTENT, new.extent_id, new, True))

    def release_extent(self, new: Extent) -> None:
        """A young extent gets a key of its own, in a transaction that puts its stream, too: it is compared by that."""
        self._set(EXTENT.key(self.root, new.extent_id), EXTENT.encode(new))
        self._released.append(new.stream_id)
        self.writes.append((EXTENT, new.extent_id, new, True))

    def replace_extent(self, old: Extent, new: Extent) -> None:
        """Where it stands: at its key, or, if it is young, in its stream's record, which must be put, too."""
        if old.young:
            self.put_young(new)
        else:
            self.put_extent(old, new)

    def delete_extent(self, old: Extent) -> None:
        """A young one goes with its stream's record, which must be put without it, or deleted."""
        if old.young:
            self.require_extent(old)
            self.writes.append((EXTENT, old.extent_id, None, False))
        else:
            self.delete(EXTENT, old)

    def require_extent(self, extent: Extent) -> None:
        self.require(EXTENT.key(self.root, extent.extent_id), extent.mod_revision)

    def require_no_extent(self, extent_id: int) -> None:
        """Before a delete order (protocol rule 24)."""
        self.require(EXTENT.key(self.root, extent_id), 0)

    def put_replay(self, call: StreamCall) -> None:
        """Not compared: within a term a call is executed once at a time, and a new leader has loaded all records."""
        self._set(replay_key(self.root, call.client_id, call.call_id), replay_bytes(call.replay))
        self.calls.append(call)

    # --- others' keys, and conditions -------------------------------------------------------------------------

    def put_other(self, key: bytes, value: bytes, *, mod_revision: int) -> None:
        """A key of the caller's, in the same transaction; `mod_revision` is what it must have, 0: must not exist."""
        self.require(key, mod_revision)
        self._set(key, value)

    def delete_other(self, key: bytes, *, mod_revision: int) -> None:
        self.require(key, mod_revision)
        self._set(key, None)

    def require(self, key: bytes, mod_revision: int) -> None:
        before = self.revisions.setdefault(key, mod_revision)
        assert before == mod_revision, f"{key!r} at {mod_revision} contradicts {before}"

    def require_owner(self, lock: str, token: int) -> None:
        """The lock is held with this token at the moment of the transaction (3)."""
        key = lock_key(self.root, lock)
        self.owners[key] = OwnerClaim(lock, token)
        self.require(key, token)

    def require_unowned(self, lock: str) -> None:
        """Nobody holds the lock at the moment of the transaction."""
        self.require(lock_key(self.root, lock), 0)

    # --- for the batcher -------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All is recorded: encode the streams, now that their young extents are known."""
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
        """Those in its list that have no key, as they will be."""
        found: list[Extent] = []
        known: Mapping[int, Extent] = self.state.extents if self.state is not None else {}
        for extent_id in stream.extent_ids[-YOUNG_WINDOW:]:
            extent = known.get(extent_id)
            if extent is not None and extent.mod_revision:
                continue  # it has had a key for long
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
