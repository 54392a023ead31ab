"""What one mutation writes and what it requires: recorded while it is decided, carried out as part of one transaction.

Invariants: every record that is written is compared, too: by the mod revision of the record it replaces, or as absent;
            a young extent has no key: it is written with its stream's record, and compared by it, also when it gets its
            first key in the same transaction: nobody else gives it one without its lock and without being the leader;
            nothing here touches the state: that happens after etcd has it (`State.apply`);
            a key is written once in a mutation.

    changes = ctx.changes()
    changes.put_extent(old, new)                 # old: the record it replaces, None if there must be none
    changes.require_owner(owner)                 # the lock's key has this mod revision (3)
    await ctx.commit(changes)

A stream's record is encoded by `finish`, when all is known: it holds the stream's young extents, those that this
mutation makes or seals and those that were young before. They are within the last `YOUNG_WINDOW` of its list: whoever
links one more extent gives the one that leaves the window a key of its own, holding its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from neve.meta.lock import lock_key
from neve.meta.txn import ITEM_BYTES
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.records import Extent, NodeEntry, Quota, Replay, Settings, Stream, StreamCall, Task

if TYPE_CHECKING:
    from neve.stream_manager.state import State

YOUNG_WINDOW = 8  # extents at the end of a list: bounds a stream's record when no replica confirms anything

# Kinds of records. Not an enum: these are compared for every record that is written.
Kind = Literal["stream", "extent", "node", "task", "name", "quota", "settings"]
STREAM: Final = "stream"
EXTENT: Final = "extent"
NODE: Final = "node"
TASK: Final = "task"
NAME: Final = "name"
QUOTA: Final = "quota"
SETTINGS: Final = "settings"

Record = Stream | Extent | NodeEntry | Task | Quota | Settings | int
Versioned = TypeVar("Versioned", NodeEntry, Task, Quota, Settings)


# A record as it will be: its kind, its id, itself (None: deleted), whether it is a young extent. Its mod revision is
# known when it is committed; a young extent has none.
Write = tuple[Kind, int | str, Record | None, bool]


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

    # --- records ---------------------------------------------------------------------------------------------

    def put_stream(self, old: Stream | None, new: Stream) -> None:
        key = self.root + r.STREAMS + r.id_text(new.stream_id)
        assert old is None or old.mod_revision > 0, f"{old} was never committed"
        self.require(key, 0 if old is None else old.mod_revision)
        self._streams.append((key, new))
        self.writes.append((STREAM, new.stream_id, new, False))

    def put_new_stream(self, stream: Stream, tail: Extent) -> None:
        """The same for a stream that was just made, with its first extent, which is young."""
        assert tail.young, f"{tail} has a key"
        assert stream.extent_ids == (tail.extent_id,), stream
        key = self.root + r.STREAMS + r.id_text(stream.stream_id)
        self.require(key, 0)
        self._set(key, codec.encode_new_stream(stream, tail))
        self.writes += ((STREAM, stream.stream_id, stream, False), (EXTENT, tail.extent_id, tail, True))

    def delete_stream(self, old: Stream) -> None:
        """The call that created it is remembered apart from now on: repeated, it must not create another one."""
        self._delete(STREAM, old.stream_id, self.root + r.STREAMS + r.id_text(old.stream_id), old.mod_revision)
        if old.made_by is not None:
            self.put_replay(*old.made_by)

    def require_stream(self, stream: Stream) -> None:
        """The stream is still this version, though it is not written."""
        self.require(self.root + r.STREAMS + r.id_text(stream.stream_id), stream.mod_revision)

    def put_young(self, new: Extent) -> None:
        """An extent without a key of its own, with the record of its stream, which must be put, too."""
        assert new.young, f"{new} has a key"
        self._young[new.extent_id] = new
        self.writes.append((EXTENT, new.extent_id, new, True))

    def put_extent(self, old: Extent | None, new: Extent) -> None:
        """At a key of its own, from now on if `old` is young."""
        key = self.root + r.EXTENTS + r.id_text(new.extent_id)
        self.require(key, 0 if old is None else old.mod_revision)
        self._set(key, codec.encode_extent(new))
        self.writes.append((EXTENT, new.extent_id, new, False))

    def release_extent(self, new: Extent) -> None:
        """A young extent gets a key of its own, in a transaction that puts its stream, too: it is compared by that."""
        key = self.root + r.EXTENTS + r.id_text(new.extent_id)
        self._set(key, codec.encode_extent(new))
        self._released.append(new.stream_id)
        self.writes.append((EXTENT, new.extent_id, new, False))

    def replace_extent(self, old: Extent, new: Extent) -> None:
        """Where it stands: at its key, or, if it is young, in its stream's record, which must be put, too."""
        if old.mod_revision:
            self.put_extent(old, new)
        else:
            self.put_young(new)

    def delete_extent(self, old: Extent) -> None:
        """A young one goes with its stream's record, which must be put without it, or deleted."""
        if old.young:
            self.require_extent(old)
            self.writes.append((EXTENT, old.extent_id, None, False))
        else:
            self._delete(EXTENT, old.extent_id, self.root + r.EXTENTS + r.id_text(old.extent_id), old.mod_revision)

    def require_extent(self, extent: Extent) -> None:
        self.require(self.root + r.EXTENTS + r.id_text(extent.extent_id), extent.mod_revision)

    def require_no_extent(self, extent_id: int) -> None:
        """Before a delete order (24)."""
        self.require(self.root + r.EXTENTS + r.id_text(extent_id), 0)

    def put_node(self, old: NodeEntry | None, new: NodeEntry) -> None:
        key = self.root + r.NODES + r.id_text(new.node_id)
        self._put(NODE, new.node_id, key, codec.encode_node, old, new)

    def put_task(self, old: Task | None, new: Task) -> None:
        key = self.root + r.TASKS + r.id_text(new.extent_id)
        self._put(TASK, new.extent_id, key, codec.encode_task, old, new)

    def delete_task(self, old: Task) -> None:
        self._delete(TASK, old.extent_id, self.root + r.TASKS + r.id_text(old.extent_id), old.mod_revision)

    def put_quota(self, old: Quota | None, new: Quota) -> None:
        self._put(QUOTA, new.prefix, self.root + r.QUOTAS + new.prefix.encode(), codec.encode_quota, old, new)

    def delete_quota(self, old: Quota) -> None:
        self._delete(QUOTA, old.prefix, self.root + r.QUOTAS + old.prefix.encode(), old.mod_revision)

    def put_settings(self, old: Settings, new: Settings) -> None:
        """`old` is the state's; settings that were never stored have mod revision 0."""
        key = self.root + r.SETTINGS + r.SETTINGS_NAME
        self._put(SETTINGS, "", key, codec.encode_settings, old if old.mod_revision else None, new)

    def put_name(self, name: str, stream_id: int) -> None:
        """A new name: nobody else has it."""
        key = self.root + r.NAMES + name.encode()
        self.require(key, 0)
        self._write(NAME, name, key, codec.encode_name(stream_id), stream_id)

    def delete_name(self, name: str) -> None:
        """Goes with its stream, whose version is compared."""
        self._write(NAME, name, self.root + r.NAMES + name.encode(), None, None)

    def put_replay(self, client_id: int, call_id: int, replay: Replay) -> None:
        """Not compared: within a term a call is executed once at a time, and a new leader has loaded all records."""
        self._set(replay_key(self.root, client_id, call_id), codec.encode_replay(replay))
        self.calls.append(StreamCall(client_id, call_id, replay))

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
            self._set(key, codec.encode_stream(stream, self._young_of(stream)))
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
        return self.root + r.EXTENTS + r.id_text(extent_id) in self.values

    # --- inside ----------------------------------------------------------------------------------------------

    def _put(
        self,
        kind: Kind,
        ident: int | str,
        key: bytes,
        encode: Callable[[Versioned], bytes],
        old: Versioned | None,
        new: Versioned,
    ) -> None:
        assert old is None or old.mod_revision > 0, f"{old} was never committed"
        self.require(key, 0 if old is None else old.mod_revision)
        self._write(kind, ident, key, encode(new), new)

    def _delete(self, kind: Kind, ident: int | str, key: bytes, mod_revision: int) -> None:
        assert mod_revision > 0, f"{key!r} was never committed"
        self.require(key, mod_revision)
        self._write(kind, ident, key, None, None)

    def _write(self, kind: Kind, ident: int | str, key: bytes, value: bytes | None, record: Record | None) -> None:
        self._set(key, value)
        self.writes.append((kind, ident, record, False))

    def _set(self, key: bytes, value: bytes | None) -> None:
        assert key not in self.values, f"{key!r} is written twice"
        self.values[key] = value


def replay_key(root: bytes, client_id: int, call_id: int) -> bytes:
    return root + r.REPLAY + r.id_text(client_id) + b"/" + r.id_text(call_id)
