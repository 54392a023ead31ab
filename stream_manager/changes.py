"""What one mutation writes and what it requires: recorded while it is decided, carried out as part of one transaction.

Invariants: every record that is written is compared, too: by the mod revision of the record it replaces, or as absent;
            nothing here touches the state: that happens after etcd has it (`State.apply`);
            a key is written once in a mutation.
Neighbours: flows record into one; batcher.py joins many into a transaction and adds the leader's guard.

    changes = Changes(root)
    changes.put_extent(old, new)                 # old: the record it replaces, None if there must be none
    changes.require_owner(owner)                 # the lock's key has this mod revision (3)
    await ctx.commit(changes)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from neve.meta.lock import lock_key
from neve.meta.txn import ITEM_BYTES, Compare, Delete, Operation, Put, key_absent, mod_revision_is
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.records import Extent, NodeEntry, Quota, Replay, Settings, Stream, Task


class Kind(enum.Enum):
    STREAM = "stream"
    EXTENT = "extent"
    NODE = "node"
    TASK = "task"
    NAME = "name"
    QUOTA = "quota"
    SETTINGS = "settings"
    REPLAY = "replay"
    OTHER = "other"  # a key of the caller's, which the manager only carries along


Record = Stream | Extent | NodeEntry | Task | Quota | Settings | Replay | int
Versioned = TypeVar("Versioned", Stream, Extent, NodeEntry, Task, Quota, Settings)


@dataclass(frozen=True, slots=True)
class Write:
    kind: Kind
    ident: int | str | tuple[int, int]  # a call is (client, call)
    operation: Put | Delete
    record: Record | None  # None: deleted, or not the manager's


@dataclass(frozen=True, slots=True)
class OwnerClaim:
    """Somebody says to hold a lock with this token; `key` is the lock's."""

    lock: str
    token: int
    key: bytes


class Changes:
    """Give it to `ctx.commit` once; make another one to try again."""

    __slots__ = ("compares", "owners", "root", "size_bytes", "writes")

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.writes: list[Write] = []
        self.compares: dict[bytes, Compare] = {}  # by key: one for each is enough
        self.owners: dict[bytes, OwnerClaim] = {}  # by the lock's key
        self.size_bytes = 0

    # --- records ---------------------------------------------------------------------------------------------

    def put_stream(self, old: Stream | None, new: Stream) -> None:
        key = self.root + r.STREAMS + r.id_text(new.stream_id)
        self._put(Kind.STREAM, new.stream_id, key, codec.encode_stream, old, new)

    def delete_stream(self, old: Stream) -> None:
        self._delete(Kind.STREAM, old.stream_id, self.root + r.STREAMS + r.id_text(old.stream_id), old)

    def require_stream(self, stream: Stream) -> None:
        """The stream is still this version, though it is not written."""
        self.require(mod_revision_is(self.root + r.STREAMS + r.id_text(stream.stream_id), stream.mod_revision))

    def put_extent(self, old: Extent | None, new: Extent) -> None:
        key = self.root + r.EXTENTS + r.id_text(new.extent_id)
        self._put(Kind.EXTENT, new.extent_id, key, codec.encode_extent, old, new)

    def delete_extent(self, old: Extent) -> None:
        self._delete(Kind.EXTENT, old.extent_id, self.root + r.EXTENTS + r.id_text(old.extent_id), old)

    def require_extent(self, extent: Extent) -> None:
        self.require(mod_revision_is(self.root + r.EXTENTS + r.id_text(extent.extent_id), extent.mod_revision))

    def require_no_extent(self, extent_id: int) -> None:
        """Before a delete order (24)."""
        self.require(key_absent(self.root + r.EXTENTS + r.id_text(extent_id)))

    def put_node(self, old: NodeEntry | None, new: NodeEntry) -> None:
        key = self.root + r.NODES + r.id_text(new.node_id)
        self._put(Kind.NODE, new.node_id, key, codec.encode_node, old, new)

    def delete_node(self, old: NodeEntry) -> None:
        self._delete(Kind.NODE, old.node_id, self.root + r.NODES + r.id_text(old.node_id), old)

    def put_task(self, old: Task | None, new: Task) -> None:
        key = self.root + r.TASKS + r.id_text(new.extent_id)
        self._put(Kind.TASK, new.extent_id, key, codec.encode_task, old, new)

    def delete_task(self, old: Task) -> None:
        self._delete(Kind.TASK, old.extent_id, self.root + r.TASKS + r.id_text(old.extent_id), old)

    def put_quota(self, old: Quota | None, new: Quota) -> None:
        self._put(Kind.QUOTA, new.prefix, self.root + r.QUOTAS + new.prefix.encode(), codec.encode_quota, old, new)

    def delete_quota(self, old: Quota) -> None:
        self._delete(Kind.QUOTA, old.prefix, self.root + r.QUOTAS + old.prefix.encode(), old)

    def put_settings(self, old: Settings, new: Settings) -> None:
        """`old` is the state's; settings that were never stored have mod revision 0."""
        key = self.root + r.SETTINGS + r.SETTINGS_NAME
        self._put(Kind.SETTINGS, "", key, codec.encode_settings, old if old.mod_revision else None, new)

    def put_name(self, name: str, stream_id: int) -> None:
        """A new name: nobody else has it."""
        key = self.root + r.NAMES + name.encode()
        self.require(key_absent(key))
        self._write(Write(Kind.NAME, name, Put(key, codec.encode_name(stream_id)), stream_id))

    def delete_name(self, name: str) -> None:
        """Goes with its stream, whose version is compared."""
        self._write(Write(Kind.NAME, name, Delete(self.root + r.NAMES + name.encode()), None))

    def put_replay(self, client_id: int, call_id: int, replay: Replay) -> None:
        """Not compared: within a term a call is executed once at a time, and a new leader has loaded all records."""
        key = replay_key(self.root, client_id, call_id)
        self._write(Write(Kind.REPLAY, (client_id, call_id), Put(key, codec.encode_replay(replay)), replay))

    # --- others' keys, and conditions -------------------------------------------------------------------------

    def put_other(self, key: bytes, value: bytes, *, mod_revision: int) -> None:
        """A key of the caller's, in the same transaction; `mod_revision` is what it must have, 0: must not exist."""
        self.require(mod_revision_is(key, mod_revision))
        self._write(Write(Kind.OTHER, "", Put(key, value), None))

    def delete_other(self, key: bytes, *, mod_revision: int) -> None:
        self.require(mod_revision_is(key, mod_revision))
        self._write(Write(Kind.OTHER, "", Delete(key), None))

    def require(self, compare: Compare) -> None:
        before = self.compares.setdefault(compare.key, compare)
        assert before == compare, f"{compare} contradicts {before}"
        if before is compare:
            self.size_bytes += ITEM_BYTES + len(compare.key)

    def require_owner(self, lock: str, token: int) -> None:
        """The lock is held with this token at the moment of the transaction (3)."""
        key = lock_key(self.root, lock)
        self.owners[key] = OwnerClaim(lock, token, key)
        self.require(mod_revision_is(key, token))

    def require_unowned(self, lock: str) -> None:
        """Nobody holds the lock at the moment of the transaction."""
        self.require(key_absent(lock_key(self.root, lock)))

    # --- for the batcher -------------------------------------------------------------------------------------

    @property
    def operations(self) -> list[Operation]:
        return [write.operation for write in self.writes]

    def keys(self) -> list[bytes]:
        """What is written. All of them are single keys."""
        return [_key_of(write.operation) for write in self.writes]

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
        self.require(key_absent(key) if old is None else mod_revision_is(key, old.mod_revision))
        self._write(Write(kind, ident, Put(key, encode(new)), new))

    def _delete(
        self, kind: Kind, ident: int | str, key: bytes, old: Stream | Extent | NodeEntry | Task | Quota
    ) -> None:
        assert old.mod_revision > 0, f"{old} was never committed"
        self.require(mod_revision_is(key, old.mod_revision))
        self._write(Write(kind, ident, Delete(key), None))

    def _write(self, write: Write) -> None:
        operation = write.operation
        self.writes.append(write)
        value_bytes = len(operation.value) if isinstance(operation, Put) else 0
        self.size_bytes += ITEM_BYTES + len(_key_of(operation)) + value_bytes


def replay_key(root: bytes, client_id: int, call_id: int) -> bytes:
    return root + r.REPLAY + r.id_text(client_id) + b"/" + r.id_text(call_id)


def _key_of(operation: Put | Delete) -> bytes:
    if isinstance(operation, Put):
        return operation.key
    assert isinstance(operation.keys, bytes), operation
    return operation.keys
