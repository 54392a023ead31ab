"""The cluster's metadata in memory: streams, extents, nodes, tasks, names, quotas; and what follows from them.

Invariants: it holds what etcd held at `revision`, for the keys that it knows: nothing is applied before etcd has it;
            a young extent is listed by one stream alone, whose record holds it, near the end of its list;
            what is derived (who refers to an extent, what is on a node, what is open or unconfirmed) is kept in step
            here and nowhere stored (23); `validate` recomputes it all;
            records are replaced, never changed: a reader may keep one across an await.
Not here:   replay records (replay.py), heartbeats and load (registry.py).
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from neve.meta.txn import KeyValue
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.changes import (
    EXTENT,
    NAME,
    NODE,
    QUOTA,
    SETTINGS,
    STREAM,
    TASK,
    YOUNG_WINDOW,
    Changes,
    Kind,
    Record,
)
from neve.stream_manager.records import Extent, NodeEntry, Quota, Settings, Stream, Task

_NO_EXTENTS: dict[int, None] = {}


class StateListener:
    """Hears of every record that changes, after the state has it. Override what is of interest; do not raise."""

    def on_stream(self, old: Stream | None, new: Stream | None) -> None: ...
    def on_extent(self, old: Extent | None, new: Extent | None) -> None: ...
    def on_replicas(self, old: Extent, new: Extent | None) -> None:
        """It has other replicas now, or is gone: rare, for those who need not hear of every change of an extent."""

    def on_node(self, old: NodeEntry | None, new: NodeEntry | None) -> None: ...
    def on_task(self, old: Task | None, new: Task | None) -> None: ...
    def on_quota(self, old: Quota | None, new: Quota | None) -> None: ...


class State:
    """`root` is what all keys of the cluster begin with."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.revision = 0
        self.streams: dict[int, Stream] = {}
        self.extents: dict[int, Extent] = {}
        self.nodes: dict[int, NodeEntry] = {}
        self.nodes_as_of: object = object()  # another one whenever a node has changed
        self.tasks: dict[int, Task] = {}  # by extent id
        self.names: dict[str, int] = {}  # stream id by name
        self.quotas: dict[str, Quota] = {}  # by prefix
        self.settings = Settings()
        self.listeners: list[StateListener] = []
        self._on_extent: list[Callable[[Extent | None, Extent | None], None]] = []  # of the listeners
        self._on_stream: list[Callable[[Stream | None, Stream | None], None]] = []
        # derived; dicts in place of sets, whose order is not the same in every run
        self.open_extents: dict[int, None] = {}
        self.unconfirmed_extents: dict[int, None] = {}  # sealed, but not confirmed by every replica
        self.single_extents: dict[int, None] = {}  # of one replica
        self.sealed_bytes = 0
        self._dead: frozenset[int] = frozenset()  # node ids
        self._extents_on: defaultdict[int, dict[int, None]] = defaultdict(dict)  # by node id
        self._streams_of: dict[int, int | tuple[int, ...]] = {}  # by extent id; mostly one, and then no tuple
        self._stream_order: list[int] = []
        self._extent_order: list[int] = []

    def listen(self, listener: StateListener) -> None:
        self.listeners.append(listener)
        # Most listeners ignore streams and extents, which change most often: those are not called for them.
        if _overrides(listener, "on_extent"):
            self._on_extent.append(listener.on_extent)
        if _overrides(listener, "on_stream"):
            self._on_stream.append(listener.on_stream)

    def stop_listening(self) -> None:
        """From now on no listener is called."""
        self.listeners.clear()
        self._on_extent.clear()
        self._on_stream.clear()

    # --- questions -------------------------------------------------------------------------------------------

    def streams_of(self, extent_id: int) -> tuple[int, ...]:
        """The streams whose lists have this extent (23)."""
        found = self._streams_of.get(extent_id, ())
        return found if isinstance(found, tuple) else (found,)

    def extents_on(self, node_id: int) -> dict[int, None]:
        """Ids of the extents with a replica on this node: to iterate over, not to change."""
        return self._extents_on.get(node_id, _NO_EXTENTS)

    def dead_nodes(self) -> frozenset[int]:
        """Nodes that were declared dead, for whom nobody waits (17)."""
        return self._dead

    def streams_after(self, stream_id: int) -> Iterator[Stream]:
        """By id, from the first one above. Do not await while iterating."""
        return (self.streams[found] for found in _after(self._stream_order, stream_id))

    def extents_after(self, extent_id: int) -> Iterator[Extent]:
        return (self.extents[found] for found in _after(self._extent_order, extent_id))

    # --- loading and following -------------------------------------------------------------------------------

    def put_key(self, kv: KeyValue) -> None:
        """Take over one key as it stands in etcd. Keys of others (locks, elections, replay) are passed over."""
        kind, slash, name = kv.key[len(self.root) :].partition(b"/")
        if not slash:
            return
        kind += slash
        if kind == r.EXTENTS:
            self._set_extent(int(name, 16), codec.decode_extent(kv.value, kv.mod_revision))
        elif kind == r.STREAMS:
            stream, young = codec.decode_stream(kv.value, kv.mod_revision)
            for extent in young:
                known = self.extents.get(extent.extent_id)
                if known is None or known.young:  # a key of its own tells more than its stream's record
                    self._set_extent(extent.extent_id, extent)
            self._put_stream(int(name, 16), stream)
        elif kind == r.NODES:
            self._set_node(int(name, 16), codec.decode_node(kv.value, kv.mod_revision))
        elif kind == r.TASKS:
            self._set_task(int(name, 16), codec.decode_task(kv.value, kv.mod_revision))
        elif kind == r.NAMES:
            self.names[name.decode()] = codec.decode_name(kv.value)
        elif kind == r.QUOTAS:
            self._set_quota(name.decode(), codec.decode_quota(kv.value, kv.mod_revision))
        elif kind == r.SETTINGS and name == r.SETTINGS_NAME:
            self.settings = codec.decode_settings(kv.value, kv.mod_revision)

    def delete_key(self, key: bytes) -> None:
        kind, slash, name = key[len(self.root) :].partition(b"/")
        if not slash:
            return
        kind += slash
        if kind == r.EXTENTS:
            self._set_extent(int(name, 16), None)
        elif kind == r.STREAMS:
            self._put_stream(int(name, 16), None)
        elif kind == r.NODES:
            self._set_node(int(name, 16), None)
        elif kind == r.TASKS:
            self._set_task(int(name, 16), None)
        elif kind == r.NAMES:
            self.names.pop(name.decode(), None)
        elif kind == r.QUOTAS:
            self._set_quota(name.decode(), None)
        elif kind == r.SETTINGS and name == r.SETTINGS_NAME:
            self.settings = Settings()

    def load(self, kvs: Iterable[KeyValue], revision: int) -> None:
        """Take over many keys that stood at `revision`."""
        for kv in kvs:
            self.put_key(kv)
        self.revision = max(self.revision, revision)

    # --- the leader's commits --------------------------------------------------------------------------------

    def apply(self, changes: Changes, revision: int) -> None:
        """Take over what was committed at `revision`. Batches in flight at a time may be applied in any order."""
        for kind, ident, record, young in changes.writes:
            if kind == EXTENT:
                self._set_extent(ident, record if young or record is None else record.at(revision))  # type: ignore[arg-type, union-attr]
            elif kind == STREAM:
                self._set_stream(ident, record and record.at(revision))  # type: ignore[arg-type, union-attr]
            else:
                self._apply_other(kind, ident, record, revision)
        self.revision = max(self.revision, revision)

    def _apply_other(self, kind: Kind, ident: int | str, record: Record | None, revision: int) -> None:
        number = ident if isinstance(ident, int) else 0
        name = ident if isinstance(ident, str) else ""
        if kind == NODE:
            assert record is None or isinstance(record, NodeEntry), record
            self._set_node(number, record and replace(record, mod_revision=revision))
        elif kind == TASK:
            assert record is None or isinstance(record, Task), record
            self._set_task(number, record and replace(record, mod_revision=revision))
        elif kind == NAME:
            if record is None:
                self.names.pop(name, None)
            else:
                assert isinstance(record, int), record
                self.names[name] = record
        elif kind == QUOTA:
            assert record is None or isinstance(record, Quota), record
            self._set_quota(name, record and replace(record, mod_revision=revision))
        elif kind == SETTINGS:
            assert isinstance(record, Settings), record
            self.settings = replace(record, mod_revision=revision)

    # --- one record ------------------------------------------------------------------------------------------

    def _set_extent(self, extent_id: int, new: Extent | None) -> None:
        old = self.extents.get(extent_id)
        stays = False
        if old is not None:
            stays = new is not None and new.replicas is old.replicas
            if old.seal is None:
                del self.open_extents[extent_id]
            else:
                self.sealed_bytes -= old.seal.length
                if len(old.confirmed) < len(old.replicas):
                    del self.unconfirmed_extents[extent_id]
            if not stays:
                self._leave_nodes(old)
        if new is not None:
            self.extents[extent_id] = new
            if new.seal is None:
                self.open_extents[extent_id] = None
            else:
                self.sealed_bytes += new.seal.length
                if len(new.confirmed) < len(new.replicas):
                    self.unconfirmed_extents[extent_id] = None
            if not stays:
                if old is None:
                    _insert(self._extent_order, extent_id)
                self._enter_nodes(new)
        elif old is not None:
            del self.extents[extent_id]
            _remove(self._extent_order, extent_id)
        for on_extent in self._on_extent:
            on_extent(old, new)
        if old is not None and not stays:
            for listener in self.listeners:
                listener.on_replicas(old, new)

    def _enter_nodes(self, new: Extent) -> None:
        extent_id, replicas, extents_on = new.extent_id, new.replicas, self._extents_on
        if len(replicas) == 1:
            self.single_extents[extent_id] = None
        for node_id, _, _ in replicas:
            extents_on[node_id][extent_id] = None

    def _leave_nodes(self, old: Extent) -> None:
        self.single_extents.pop(old.extent_id, None)
        for replica in old.replicas:
            held = self._extents_on[replica.node_id]
            held.pop(old.extent_id, None)
            if not held:
                del self._extents_on[replica.node_id]

    def _put_stream(self, stream_id: int, new: Stream | None) -> None:
        """As a key says it: young extents that its list has no more are gone without a word of their own."""
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
        for on_stream in self._on_stream:
            on_stream(old, new)

    def _refer(self, extent_id: int, stream_id: int) -> None:
        found = self._streams_of.setdefault(extent_id, stream_id)  # mostly nobody did before
        if found != stream_id and stream_id not in (found := self.streams_of(extent_id)):
            self._streams_of[extent_id] = (*found, stream_id)

    def _unrefer(self, extent_id: int, stream_id: int) -> None:
        left = tuple(other for other in self.streams_of(extent_id) if other != stream_id)
        if not left:
            self._streams_of.pop(extent_id, None)
        else:
            self._streams_of[extent_id] = left if len(left) > 1 else left[0]

    def _set_node(self, node_id: int, new: NodeEntry | None) -> None:
        old = self.nodes.get(node_id)
        self.nodes_as_of = object()
        if new is None:
            self.nodes.pop(node_id, None)
        else:
            self.nodes[node_id] = new
        if (old is not None and old.dead) != (new is not None and new.dead):
            self._dead = frozenset(found for found, node in self.nodes.items() if node.dead)
        for listener in self.listeners:
            listener.on_node(old, new)

    def _set_task(self, extent_id: int, new: Task | None) -> None:
        old = self.tasks.get(extent_id)
        if new is None:
            self.tasks.pop(extent_id, None)
        else:
            self.tasks[extent_id] = new
        for listener in self.listeners:
            listener.on_task(old, new)

    def _set_quota(self, prefix: str, new: Quota | None) -> None:
        old = self.quotas.get(prefix)
        if new is None:
            self.quotas.pop(prefix, None)
        else:
            self.quotas[prefix] = new
        for listener in self.listeners:
            listener.on_quota(old, new)

    # --- for tests and the simulator -------------------------------------------------------------------------

    def validate(self) -> None:
        """Recompute what is derived, and check what must hold between the records."""
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
                assert self.names.get(stream.name) == stream_id, stream
        assert set(self.names.values()) <= set(self.streams), "a name without its stream"
        assert self._dead == {node_id for node_id, node in self.nodes.items() if node.dead}
        extents_on: dict[int, set[int]] = {}
        for extent_id, extent in self.extents.items():
            assert extent.extent_id == extent_id, extent
            assert len(set(extent.node_ids)) == len(extent.replicas) > 0, extent
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


def _overrides(listener: StateListener, name: str) -> bool:
    return getattr(type(listener), name) is not getattr(StateListener, name)


def _insert(order: list[int], number: int) -> None:
    if not order or order[-1] < number:  # ids are handed out upwards, and keys are loaded in order
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
