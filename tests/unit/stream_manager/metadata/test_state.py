"""The state in memory: what is derived stays in step, whatever is applied, and is what a watch would make of it."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neve.meta.memory.mvcc import KeySpace
from neve.meta.store import EventKind
from neve.meta.txn import Delete, KeyRange, Put, TxnResult, mod_revision_is
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata.changes import YOUNG_WINDOW, Changes
from neve.stream_manager.metadata.quota import QuotaTable, Usage, matches
from neve.stream_manager.metadata.record_kinds import EXTENT, NAME, NODE, QUOTA, TASK, Name
from neve.stream_manager.metadata.records import Extent, ExtentSeal, NodeEntry, Quota, ReplicaAt, Stream, Task
from neve.stream_manager.metadata.state import State

ROOT = b"/t/"
POLICY = StreamPolicy(replicas=3, extent_bytes_max=1000)
nodes = st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True)


def write(etcd: KeySpace, changes: Changes) -> TxnResult:
    """In one transaction, as the batcher does it."""
    changes.finish()
    compares = [mod_revision_is(key, revision) for key, revision in changes.revisions.items()]
    return etcd.txn(compares, [Delete(k) if v is None else Put(k, v) for k, v in changes.values.items()], ())


class RandomMutations(RuleBasedStateMachine):
    """Applies changes to a leader's state and to etcd's keys, and loads another state from those keys."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(ROOT)
        self.followed = State(ROOT)  # as a watch tells it
        self.quotas = QuotaTable(self.state)
        self.etcd = KeySpace()
        self.heard: dict[int, Extent] = {}

        def on_extent(old: Extent | None, new: Extent | None) -> None:
            known = (new or old).extent_id  # type: ignore[union-attr]
            assert self.heard.pop(known, None) == old
            if new is not None:
                self.heard[known] = new

        self.state.listen(EXTENT, on_extent)
        self.next_id = 0

    def commit(self, changes: Changes) -> None:
        result = write(self.etcd, changes)
        assert result.succeeded, changes.revisions
        self.state.apply(changes, result.revision)
        batch = self.etcd.first_batch(result.revision, KeyRange.prefix(ROOT))
        for event in batch.events if batch is not None and batch.revision == result.revision else ():
            if event.kind is EventKind.PUT:
                self.followed.put_key(event.kv)
            else:
                self.followed.delete_key(event.kv.key)

    def give_keys(self, changes: Changes, extent_ids: tuple[int, ...]) -> None:
        for extent_id in extent_ids:
            extent = self.state.extents[extent_id]
            if extent.young:
                changes.put_extent(extent, extent)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def extent(self, on: list[int], stream_id: int) -> Extent:
        replicas = tuple(ReplicaAt(node_id, f"disk{node_id}", 1) for node_id in on)
        return Extent(self.new_id(), 1, replicas, 1000, 0, stream_id)

    def pick(self, data: Any) -> Stream:
        return self.state.streams[data.draw(st.sampled_from(sorted(self.state.streams)))]

    @rule(on=nodes, named=st.booleans(), tenant=st.sampled_from(["a", "b", "ab"]))
    def create(self, on: list[int], named: bool, tenant: str) -> None:
        stream_id = self.new_id()
        extent = self.extent(on, stream_id)
        name = f"name{stream_id}" if named else ""
        stream = Stream(stream_id, name, "", (extent.extent_id,), False, POLICY, (("tenant", tenant),), 1, 0)
        changes = Changes(ROOT, self.state)
        changes.put_stream(None, stream)
        changes.put_young(extent)
        if named:
            changes.put(NAME, None, Name(name, stream_id))
        self.commit(changes)

    @precondition(lambda self: self.state.streams)
    @rule(data=st.data(), on=nodes, length=st.integers(0, 1000), link=st.booleans())
    def roll(self, data: Any, on: list[int], length: int, link: bool) -> None:
        stream = self.pick(data)
        assert stream.tail_id is not None
        tail = self.state.extents[stream.tail_id]
        changes = Changes(ROOT, self.state)
        linked = stream.extent_ids
        if tail.seal is None:
            changes.replace_extent(tail, tail._replace(eversion=2, seal=ExtentSeal(length, 2, b"")))
        if link:
            self.give_keys(changes, stream.extent_ids[-YOUNG_WINDOW : -YOUNG_WINDOW + 1])
            extent = self.extent(on, stream.stream_id)
            changes.put_young(extent)
            linked = (*linked, extent.extent_id)
        changes.put_stream(stream, stream.changed(linked))
        self.commit(changes)

    @precondition(lambda self: self.state.unconfirmed_extents)
    @rule(data=st.data())
    def confirm(self, data: Any) -> None:
        extent = self.state.extents[data.draw(st.sampled_from(sorted(self.state.unconfirmed_extents)))]
        changes = Changes(ROOT, self.state)
        changes.put_extent(extent, extent.with_confirmed([data.draw(st.sampled_from(extent.node_ids))], b"d"))
        self.commit(changes)

    @precondition(lambda self: self.state.streams)
    @rule(data=st.data())
    def split(self, data: Any) -> None:
        stream = self.pick(data)
        assert stream.tail_id is not None
        if self.state.extents[stream.tail_id].seal is None:
            return
        changes = Changes(ROOT, self.state)
        self.give_keys(changes, stream.extent_ids)
        self.commit(changes)
        twin = stream._replace(stream_id=self.new_id(), name="", version=1, mod_revision=0)
        changes = Changes(ROOT, self.state)
        changes.require_stream(stream)
        changes.put_stream(None, twin)
        self.commit(changes)

    @precondition(lambda self: self.state.streams)
    @rule(data=st.data(), everything=st.booleans())
    def unlink(self, data: Any, everything: bool) -> None:
        stream = self.pick(data)
        gone = stream.extent_ids if everything else stream.extent_ids[: len(stream.extent_ids) // 2]
        changes = Changes(ROOT, self.state)
        for extent_id in gone:
            if self.state.streams_of(extent_id) == (stream.stream_id,):
                changes.delete_extent(self.state.extents[extent_id])
                if extent_id in self.state.tasks:
                    changes.delete(TASK, self.state.tasks[extent_id])
        if everything:
            changes.delete_stream(stream)
            if stream.name:
                changes.delete_uncompared(NAME, stream.name)
        else:
            kept = stream.extent_ids[len(gone) :]
            changes.put_stream(stream, stream.changed(kept))
        self.commit(changes)

    @precondition(lambda self: self.state.extents)
    @rule(data=st.data(), node_id=st.integers(1, 8))
    def move_replica(self, data: Any, node_id: int) -> None:
        extent = self.state.extents[data.draw(st.sampled_from(sorted(self.state.extents)))]
        if node_id in extent.node_ids:
            return
        moved = (*extent.replicas[1:], ReplicaAt(node_id, f"disk{node_id}", 2))
        kept = tuple(n for n in extent.confirmed if n != extent.replicas[0].node_id)
        changes = Changes(ROOT, self.state)
        changes.put_extent(extent, extent._replace(replicas=moved, confirmed=kept, eversion=extent.eversion + 1))
        self.commit(changes)

    @precondition(lambda self: self.state.extents)
    @rule(data=st.data())
    def task(self, data: Any) -> None:
        extent_id = data.draw(st.sampled_from(sorted(self.state.extents)))
        changes = Changes(ROOT, self.state)
        old = self.state.tasks.get(extent_id)
        if old is not None:
            changes.delete(TASK, old)
        else:
            changes.put(TASK, None, Task(self.new_id(), extent_id, sm.RecoveryTask.COPY, None, None, 1, 0))
        self.commit(changes)

    @rule(node_id=st.integers(1, 5), dead=st.booleans())
    def node(self, node_id: int, dead: bool) -> None:
        health = sm.NODE_HEALTH_DEAD if dead else sm.NODE_HEALTH_ALIVE
        changes = Changes(ROOT, self.state)
        changes.put(NODE, self.state.nodes.get(node_id), NodeEntry(node_id, "n:1", health=health))
        self.commit(changes)

    @rule(prefix=st.sampled_from(["tenant=", "tenant=a", "tenant=b"]), limit=st.integers(0, 3))
    def quota(self, prefix: str, limit: int) -> None:
        old = self.state.quotas.get(prefix)
        changes = Changes(ROOT, self.state)
        if limit:
            changes.put(QUOTA, old, Quota(prefix, streams_max=limit))
        elif old is not None:
            changes.delete(QUOTA, old)
        self.commit(changes)

    @invariant()
    def holds_together(self) -> None:
        self.state.validate()
        assert self.heard == self.state.extents

    @invariant()
    def is_what_etcd_has(self) -> None:
        loaded = State(ROOT)
        loaded.load(self.etcd.read(KeyRange.prefix(ROOT)).kvs, self.etcd.revision)
        for other in (loaded, self.followed):
            other.validate()
            assert other.streams == self.state.streams
            assert other.extents == self.state.extents
            assert other.nodes == self.state.nodes
            assert other.tasks == self.state.tasks
            assert other.names == self.state.names
            assert other.quotas == self.state.quotas

    @invariant()
    def usage_is_what_a_count_finds(self) -> None:
        for prefix in self.state.quotas:
            counted = Usage()
            for stream in self.state.streams.values():
                if matches(prefix, stream.labels):
                    extents = [self.state.extents[extent_id] for extent_id in stream.extent_ids]
                    sizes = [e.extent_bytes_max if e.seal is None else e.seal.length for e in extents]
                    counted.add(streams=1, extents=len(extents), size_bytes=sum(sizes))
            assert self.quotas.usage(prefix) == counted


RandomMutations.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestRandomMutations = RandomMutations.TestCase


def test_a_watch_that_brings_keys_one_by_one_makes_the_same_state() -> None:
    etcd = KeySpace()
    changes = Changes(ROOT)
    extent = Extent(2, 1, (ReplicaAt(1, "d", 1),), 1000, 0, 1)
    changes.put_stream(None, Stream(1, "a", "l", (2,), False, POLICY, (), 1, 0))
    changes.put_young(extent)
    changes.put(NAME, None, Name("a", 1))
    write(etcd, changes)
    state = State(ROOT)
    kvs = etcd.read(KeyRange.prefix(ROOT)).kvs
    for kv in reversed(kvs):
        state.put_key(kv)
    state.validate()
    assert state.streams_of(2) == (1,)
    for kv in kvs:
        state.delete_key(kv.key)
    state.validate()
    assert not state.streams
    assert not state.extents
    assert not state.names


def test_pages_are_in_the_order_of_ids_whatever_the_order_of_making() -> None:
    state = State(ROOT)
    for stream_id in (5, 2, 9, 1):
        changes = Changes(ROOT)
        changes.put_stream(None, Stream(stream_id, "", "", (), False, POLICY, (), 1, 0))
        state.apply(changes, 1)
    assert [stream.stream_id for stream in state.streams_after(0)] == [1, 2, 5, 9]
    assert [stream.stream_id for stream in state.streams_after(2)] == [5, 9]
