"""The twin against the real thing: random programs must have equal results on `MemoryStore` and on etcd.

Goal: find where the twin's semantics differ from etcd's. Method: hypothesis writes small programs over few keys
(so that they collide); each runs on a fresh twin and, under a fresh prefix, on etcd. Revisions are compared as
distances from where the program began.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.lease import Lease
from neve.meta.memory.client import MemoryStore
from neve.meta.store import Listing, MetaStore, RangePage, Resync, WatchBatch
from neve.meta.txn import (
    Compare,
    Delete,
    Get,
    GetResult,
    KeyRange,
    KeyValue,
    Operation,
    Put,
    Relation,
    Target,
    TxnResult,
)
from neve.proto.errors import NeveError
from tests.cluster.etcd import EtcdCluster

_prefixes = itertools.count(1)

LEASES = 2  # of each program
TTL_S = 600  # none runs out by itself


@dataclass(frozen=True)
class World:
    """Where a program runs: relative keys and revisions become the store's and back."""

    store: MetaStore
    prefix: bytes
    base: int
    leases: tuple[Lease, ...]

    def key(self, name: bytes) -> bytes:
        return self.prefix + name

    def keys(self, wanted: bytes | tuple[bytes, bytes]) -> KeyRange:
        if isinstance(wanted, bytes):
            return KeyRange(self.key(wanted))
        start, end = wanted
        return KeyRange(self.key(start), self.key(end))

    def revision(self, distance: int) -> int:
        return self.base + distance if distance else 0

    def kv(self, kv: KeyValue) -> KeyValue:
        return replace(
            kv,
            key=kv.key.removeprefix(self.prefix),
            create_revision=kv.create_revision - self.base if kv.create_revision else 0,
            mod_revision=kv.mod_revision - self.base,
            lease_id=next((n for n, lease in enumerate(self.leases, 1) if lease.lease_id == kv.lease_id), 0),
        )

    def lease_id(self, number: int) -> int:
        """0 is no lease."""
        return self.leases[number - 1].lease_id if number else 0


Step = Callable[[World], Awaitable[Any]]

names = st.sampled_from([b"a", b"b", b"b\x00", b"c", b"d"])
ranges = st.one_of(names, st.sampled_from([(b"a", b"c"), (b"b", b"b\xff"), (b"a", b"e"), (b"c", b"d\x00")]))
values = st.sampled_from([b"", b"x", b"y", b"\xff"])
distances = st.integers(0, 14)
lease_numbers = st.integers(0, LEASES)


def _relative(world: World, result: Any) -> Any:
    """A result without the store's own keys and revisions."""
    if isinstance(result, TxnResult):
        responses = tuple(_relative(world, response) for response in result.responses)
        return TxnResult(result.succeeded, result.revision - world.base, responses)
    if isinstance(result, GetResult):
        return replace(result, kvs=tuple(map(world.kv, result.kvs)))
    if isinstance(result, RangePage | Listing):
        return replace(result, kvs=tuple(map(world.kv, result.kvs)), revision=result.revision - world.base)
    if isinstance(result, Resync):
        return Resync(result.revision - world.base, tuple(map(world.kv, result.kvs)))
    if isinstance(result, WatchBatch):
        events = tuple(replace(event, kv=world.kv(event.kv)) for event in result.events)
        return WatchBatch(result.revision - world.base, events)
    return result


@st.composite
def operations(draw: st.DrawFn) -> Callable[[World], Operation]:
    kind = draw(st.sampled_from(["put", "put", "delete", "get"]))
    if kind == "put":
        name, value, lease = draw(names), draw(values), draw(lease_numbers)
        return lambda world: Put(world.key(name), value, world.lease_id(lease))
    wanted = draw(ranges)
    if kind == "delete":
        return lambda world: Delete(world.keys(wanted))
    limit = draw(st.integers(0, 2))
    return lambda world: Get(world.keys(wanted), limit)


@st.composite
def compares(draw: st.DrawFn) -> Callable[[World], Compare]:
    name, target, relation = draw(names), draw(st.sampled_from(Target)), draw(st.sampled_from(Relation))
    if target is Target.VALUE:
        value = draw(values)
        return lambda world: Compare(world.key(name), target, relation, value)
    number = draw(st.integers(0, 3) if target is Target.VERSION else distances)
    if target is Target.VERSION:
        return lambda world: Compare(world.key(name), target, relation, number)
    return lambda world: Compare(world.key(name), target, relation, world.revision(number))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kind = draw(st.sampled_from(["txn"] * 6 + ["range", "range", "list", "compact", "revoke"]))
    if kind == "txn":
        conditions = draw(st.lists(compares(), max_size=2))
        success, failure = draw(st.lists(operations(), max_size=4)), draw(st.lists(operations(), max_size=3))

        async def transact(world: World) -> Any:
            return await world.store.txn(
                [make(world) for make in conditions],
                [make(world) for make in success],
                [make(world) for make in failure],
            )

        return transact
    if kind == "revoke":
        lease = draw(st.integers(1, LEASES))
        return lambda world: world.store.revoke(world.lease_id(lease))
    wanted, distance, limit = draw(ranges), draw(distances), draw(st.integers(0, 3))
    if kind == "range":
        return lambda world: world.store.range(world.keys(wanted), limit=limit, revision=world.revision(distance))
    if kind == "list":
        return lambda world: world.store.range_all(world.keys(wanted), page_keys=limit + 1)
    return lambda world: world.store.compact(world.revision(max(1, distance)))


async def _world(store: MetaStore, prefix: bytes) -> World:
    leases = tuple([await store.grant_lease(TTL_S) for _ in range(LEASES)])
    return World(store, prefix, await store.revision(), leases)


async def _run(world: World, program: list[Step], watch_from: int) -> list[Any]:
    results: list[Any] = []
    for step in program:
        try:
            results.append(_relative(world, await step(world)))
        except NeveError as error:
            results.append(type(error))
    results.append(await world.store.revision() - world.base)
    last = await world.store.put(world.key(b"c\x00end"), b"")
    start = min(world.base + watch_from, last)
    async with world.store.watch(KeyRange(world.key(b"b"), world.key(b"d")), start_revision=start) as watch:
        async for item in watch:
            results.append(_relative(world, item))
            if item.revision >= last:
                break
    for lease in world.leases:
        await lease.revoke()
    left = await world.store.range_all(KeyRange.prefix(world.prefix))
    results.append(tuple(map(world.kv, left.kvs)))
    return results


def test_random_programs_give_equal_results_on_the_twin_and_on_etcd(one_etcd: EtcdCluster) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        etcd = runner.run(EtcdStore.connect(EtcdConfig(one_etcd.endpoints)))

        @settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(program=st.lists(steps(), min_size=1, max_size=14), watch_from=st.integers(1, 8))
        def compare(program: list[Step], watch_from: int) -> None:
            async def both() -> None:
                prefix = f"/differential-{next(_prefixes)}/".encode()
                async with MemoryStore().client() as twin:
                    expected = await _run(await _world(etcd, prefix), program, watch_from)
                    found = await _run(await _world(twin, prefix), program, watch_from)
                assert found == expected

            runner.run(both())

        try:
            compare()
        finally:
            runner.run(etcd.close())
