"""The cluster's metadata in memory: streams, extents, nodes, tasks, names and quotas, and indexes over them.

Invariants: it holds what etcd held at `revision`, for the keys that it knows: nothing is applied before etcd has it;
            a young extent is listed by exactly one stream, whose record contains it, near the end of the list;
            the indexes (which streams list an extent, which extents are on a node, which are open or unconfirmed) are
            updated here and stored nowhere (protocol rule 23); `validate` recomputes all of them;
            records are replaced, never changed, so a reader may keep one across an await.
Not here:   replay records (replay.py), heartbeats and load (registry.py).
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from neve.meta.txn import KeyValue
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.metadata.record_kinds import (
    EXTENT,
    KINDS,
    NAME,
    NODE,
    QUOTA,
    SETTINGS,
    STREAM,
    TASK,
    Id,
    Kind,
    R,
    Record,
)
from neve.stream_manager.metadata.records import Extent, Settings, Stream, check_replicas

_NO_EXTENTS: dict[int, None] = {}
_NO_SETTINGS = Settings()

# Gets a record before and after its change; None: it did not exist, or was deleted
Listener = Callable[[Any, Any], None]


class State:
    """The records of each kind, their indexes and the listeners. `root` is the prefix of all keys of the cluster."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.revision = 0
        self._tables: dict[Kind[Any, Any], dict[Any, Any]] = {kind: {} for kind in KINDS.values()}
        self.streams = self.table(STREAM)
        self.extents = self.table(EXTENT)
        self.nodes = self.table(NODE)
        self.tasks = self.table(TASK)  # by extent id
        self.names = self.table(NAME)
        self.quotas = self.table(QUOTA)  # by prefix
        self._listeners: dict[Kind[Any, Any], list[Listener]] = {kind: [] for kind in KINDS.values()}
        self._replica_listeners: list[Listener] = []
        # Indexes. They are dicts because the order of a set differs from run to run.
        self.open_extents: dict[int, None] = {}
        self.unconfirmed_extents: dict[int, None] = {}  # sealed, but not confirmed by every replica
        self.single_extents: dict[int, None] = {}  # with one replica
        self.sealed_bytes = 0
        self._dead: frozenset[int] = frozenset()  # node ids
        self._extents_on: defaultdict[int, dict[int, None]] = defaultdict(dict)  # by node id
        # By extent id; an extent usually has one stream, which then needs no tuple
        self._streams_of: dict[int, int | tuple[int, ...]] = {}
        self._stream_order: list[int] = []
        self._extent_order: list[int] = []

    def table(self, kind: Kind[Id, R]) -> dict[Id, R]:
        """All records of a kind, by id. Only this class may change it."""
        return cast(dict[Id, R], self._tables[kind])

    @property
    def settings(self) -> Settings:
        return self.table(SETTINGS).get(r.SETTINGS_NAME, _NO_SETTINGS)

    def listen(self, kind: Kind[Id, R], changed: Callable[[R | None, R | None], None]) -> None:
        """Call `changed` after each change of a record of this kind. It must not raise."""
        self._listeners[kind].append(changed)

    def listen_replicas(self, changed: Callable[[Extent, Extent | None], None]) -> None:
        """Call `changed` when an extent's replicas change or it is deleted, which is rarer than other changes of
        extents."""
        self._replica_listeners.append(changed)

    def stop_listening(self) -> None:
        """Remove all listeners."""
        for listeners in self._listeners.values():
            listeners.clear()
        self._replica_listeners.clear()

    # --- questions -------------------------------------------------------------------------------------------

    def streams_of(self, extent_id: int) -> tuple[int, ...]:
        """The streams whose lists contain this extent (protocol rule 23)."""
        found = self._streams_of.get(extent_id, ())
        return found if isinstance(found, tuple) else (found,)

    def extents_on(self, node_id: int) -> dict[int, None]:
        """Ids of the extents with a replica on this node. The caller must not change it."""
        return self._extents_on.get(node_id, _NO_EXTENTS)

    def dead_nodes(self) -> frozenset[int]:
        """Nodes that were declared dead. The manager does not wait for their replies (protocol rule 17)."""
        return self._dead

    def streams_after(self, stream_id: int) -> Iterator[Stream]:
        """The streams with larger ids, in order. Do not await while iterating."""
        return (self.streams[found] for found in _after(self._stream_order, stream_id))

    def extents_after(self, extent_id: int) -> Iterator[Extent]:
        return (self.extents[found] for found in _after(self._extent_order, extent_id))

    # --- loading and following -------------------------------------------------------------------------------

    def put_key(self, kv: KeyValue) -> None:
        """Apply one key as it is in etcd. Keys that are not records (locks, elections, replay) are ignored."""
        kind, name = self._kind_of(kv.key)
        if kind is STREAM:
            stream, young = r.read_stream(kv.value, kv.mod_revision)
            for extent in young:
                known = self.extents.get(extent.extent_id)
                if known is None or known.young:  # an extent's own key is newer than its stream's record
                    self._set_extent(extent.extent_id, extent)
            self._put_stream(STREAM.parse_ident(name), stream)
        elif kind is not None:
            self._set(kind, kind.parse_ident(name), kind.decode(name, kv.value, kv.mod_revision))

    def delete_key(self, key: bytes) -> None:
        kind, name = self._kind_of(key)
        if kind is STREAM:
            self._put_stream(STREAM.parse_ident(name), None)
        elif kind is not None:
            self._set(kind, kind.parse_ident(name), None)

    def _kind_of(self, key: bytes) -> tuple[Kind[Any, Any] | None, bytes]:
        """Split a key below the root into its kind (None: not a record) and the part after the prefix."""
        prefix, slash, name = key[len(self.root) :].partition(b"/")
        return KINDS.get(prefix + slash), name

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Apply many keys that were read at `revision`."""
        for kv in kvs:
            self.put_key(kv)
        self.revision = max(self.revision, revision)

    # --- the leader's commits --------------------------------------------------------------------------------

    def apply(self, changes: Changes, revision: int) -> None:
        """Apply changes that were committed at `revision`. Concurrent batches may be applied in any order."""
        for kind, ident, record, has_key in changes.writes:
            self._set(kind, ident, record.at(revision) if record is not None and has_key else record)
        self.revision = max(self.revision, revision)

    # --- one record ------------------------------------------------------------------------------------------

    def _set(self, kind: Kind[Any, Any], ident: Any, new: Record | None) -> None:
        if kind is EXTENT:
            self._set_extent(ident, cast(Extent | None, new))
        elif kind is STREAM:
            self._set_stream(ident, cast(Stream | None, new))
        else:
            table = self._tables[kind]
            old = table.pop(ident, None) if new is None else table.get(ident)
            if new is not None:
                table[ident] = new
            if kind is NODE and getattr(old, "dead", False) != getattr(new, "dead", False):
                self._dead = frozenset(node_id for node_id, node in self.nodes.items() if node.dead)
            for changed in self._listeners[kind]:
                changed(old, new)

    def _set_extent(self, extent_id: int, new: Extent | None) -> None:
        old = self.extents.get(extent_id)
        stays = False
        if old is not None:
            stays = new is not None and new.replicas is old.replicas
            if old.seal is None:
                del self.open_extents[extent_id]
            else:
                self.sealed_bytes -= old.seal.length
                if not old.all_confirmed:
                    del self.unconfirmed_extents[extent_id]
            if not stays:
                self._leave_nodes(old)
        if new is not None:
            self.extents[extent_id] = new
            if new.seal is None:
                self.open_extents[extent_id] = None
            else:
                self.sealed_bytes += new.seal.length
                if not new.all_confirmed:
                    self.unconfirmed_extents[extent_id] = None
            if not stays:
                if old is None:
                    _insert(self._extent_order, extent_id)
                self._enter_nodes(new)
        elif old is not None:
            del self.extents[extent_id]
            _remove(self._extent_order, extent_id)
        for changed in self._listeners[EXTENT]:
            changed(old, new)
        if old is not None and not stays:
            for changed in self._replica_listeners:
                changed(old, new)

    def _enter_nodes(self, new: Extent) -> None:
        if len(new.replicas) == 1:
            self.single_extents[new.extent_id] = None
        for replica in new.replicas:
            self._extents_on[replica.node_id][new.extent_id] = None

    def _leave_nodes(self, old: Extent) -> None:
        self.single_extents.pop(old.extent_id, None)
        for replica in old.replicas:
            held = self._extents_on[replica.node_id]
            held.pop(old.extent_id, None)
            if not held:
                del self._extents_on[replica.node_id]

    def _put_stream(self, stream_id: int, new: Stream | None) -> None:
        """Apply a stream's key.

        Young extents that its list no longer contains are deleted: they have no key of their own.
        """
        old = self.streams.get(stream_id)
        self._set_stream(stream_id, new)
        if old is not None:
            left = set(old.extent_ids[-YOUNG_WINDOW:]).difference(new.extent_ids if new is not None else ())
            for extent_id in sorted(left):
                extent = self.extents.get(extent_id)
                if extent is not None and extent.young and extent.stream_id == stream_id:
                    self._set_extent(extent_id, None)

    def _set_stream(self, stream_id: int, new: Stream | None) -> None:
        old = self.streams.get(stream_id)
        before = old.extent_ids if old is not None else ()
        after = new.extent_ids if new is not None else ()
        if after[: len(before)] == before:  # the usual change: an extent is linked at the end
            for extent_id in after[len(before) :]:
                self._refer(extent_id, stream_id)
        else:
            for extent_id in before:
                self._unrefer(extent_id, stream_id)
            for extent_id in after:
                self._refer(extent_id, stream_id)
        if new is None:
            if self.streams.pop(stream_id, None) is not None:
                _remove(self._stream_order, stream_id)
        else:
            if old is None:
                _insert(self._stream_order, stream_id)
            self.streams[stream_id] = new
        for changed in self._listeners[STREAM]:
            changed(old, new)

    def _refer(self, extent_id: int, stream_id: int) -> None:
        found = self._streams_of.setdefault(extent_id, stream_id)  # usually no other stream lists it
        if found != stream_id and stream_id not in (found := self.streams_of(extent_id)):
            self._streams_of[extent_id] = (*found, stream_id)

    def _unrefer(self, extent_id: int, stream_id: int) -> None:
        left = tuple(other for other in self.streams_of(extent_id) if other != stream_id)
        if not left:
            self._streams_of.pop(extent_id, None)
        else:
            self._streams_of[extent_id] = left if len(left) > 1 else left[0]

    # --- for tests and the simulator -------------------------------------------------------------------------

    def validate(self) -> None:
        """Recompute the indexes, and check what must hold between records."""
        streams_of: dict[int, set[int]] = {}
        for stream_id, stream in self.streams.items():
            assert stream.stream_id == stream_id, stream
            assert len(set(stream.extent_ids)) == len(stream.extent_ids), stream
            for index, extent_id in enumerate(stream.extent_ids):
                streams_of.setdefault(extent_id, set()).add(stream_id)
                extent = self.extents.get(extent_id)
                assert extent is not None, f"stream {stream_id} lists extent {extent_id}, which is not there"
                may_be_open = index == len(stream.extent_ids) - 1 and not stream.sealed
                assert extent.seal is not None or may_be_open, f"stream {stream_id}: only the last may be open"
            if stream.name:
                assert self.names[stream.name].stream_id == stream_id, stream
        assert {name.stream_id for name in self.names.values()} <= set(self.streams), "a name without its stream"
        assert self._dead == {node_id for node_id, node in self.nodes.items() if node.dead}
        extents_on: dict[int, set[int]] = {}
        for extent_id, extent in self.extents.items():
            assert extent.extent_id == extent_id, extent
            check_replicas(extent)
            assert set(extent.confirmed) <= set(extent.node_ids), extent
            assert extent.seal is not None or not extent.confirmed, extent
            assert (extent_id in self.open_extents) == (extent.seal is None), extent
            unconfirmed = extent.seal is not None and not extent.all_confirmed
            assert (extent_id in self.unconfirmed_extents) == unconfirmed, extent
            assert (extent_id in self.single_extents) == (len(extent.replicas) == 1), extent
            if extent.young:
                assert self.streams_of(extent_id) == (extent.stream_id,), f"{extent} has no key and not one stream"
                assert extent_id in self.streams[extent.stream_id].extent_ids[-YOUNG_WINDOW:], extent
            for node_id in extent.node_ids:
                extents_on.setdefault(node_id, set()).add(extent_id)
        assert {n: set(held) for n, held in self._extents_on.items()} == extents_on
        assert {extent_id: set(self.streams_of(extent_id)) for extent_id in self._streams_of} == streams_of
        assert self.sealed_bytes == sum(e.seal.length for e in self.extents.values() if e.seal is not None)
        assert self._stream_order == sorted(self.streams)
        assert self._extent_order == sorted(self.extents)


def _insert(order: list[int], number: int) -> None:
    if not order or order[-1] < number:  # ids are handed out in ascending order, and keys are loaded in order
        order.append(number)
    else:
        bisect.insort(order, number)


def _remove(order: list[int], number: int) -> None:
    index = bisect.bisect_left(order, number)
    assert order[index] == number, number
    del order[index]


def _after(order: list[int], number: int) -> Iterator[int]:
    for index in range(bisect.bisect_right(order, number), len(order)):
        yield order[index]
