"""What only the in-memory twin has: fault hooks that behave as a real connection's faults, the same every time."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from neve.meta.memory.client import MemoryStore
from neve.meta.memory.link import Fault, FaultPlan
from neve.meta.store import Resync, WatchBatch
from neve.meta.txn import KeyRange, Put, key_absent
from neve.proto.errors import Compacted, InvalidArgument, MaybeApplied, MetaUnavailable
from tests.sim import loop as sim_loop


@pytest.mark.sim(seed=1)
async def test_an_unavailable_store_has_not_applied_the_write() -> None:
    server = MemoryStore()
    async with server.client(plan=FaultPlan(scripted=deque([Fault.UNAVAILABLE]))) as store:
        with pytest.raises(MetaUnavailable):
            await store.put(b"k", b"v")
        assert await store.get(b"k") is None


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize(("fault", "applied"), [(Fault.LOST_BEFORE_APPLY, 0), (Fault.LOST_AFTER_APPLY, 1)])
async def test_a_lost_answer_leaves_the_outcome_open_both_ways(fault: Fault, applied: int) -> None:
    async with MemoryStore().client(plan=FaultPlan(scripted=deque([fault]))) as store:
        with pytest.raises(MaybeApplied):
            await store.put(b"k", b"v")
        assert (await store.range(b"k")).count == applied


@pytest.mark.sim(seed=1)
async def test_a_lost_read_is_only_unavailable() -> None:
    plan = FaultPlan(scripted=deque([Fault.LOST_AFTER_APPLY]), scripted_for_writes_only=False)
    async with MemoryStore().client(plan=plan) as store:
        with pytest.raises(MetaUnavailable):
            await store.get(b"k")


@pytest.mark.sim(seed=1)
async def test_a_write_that_timed_out_may_still_be_applied_later() -> None:
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as store, server.client() as other:
        store.stall()
        with pytest.raises(MaybeApplied):
            await store.put(b"k", b"late")
        assert await other.get(b"k") is None
        store.resume()
        await asyncio.sleep(0.1)
        kv = await other.get(b"k")
        assert kv is not None
        assert kv.value == b"late"


@pytest.mark.sim(seed=1)
async def test_a_cut_connection_fails_the_calls_under_way_and_refuses_new_ones() -> None:
    server = MemoryStore()
    async with server.client(plan=FaultPlan(delay_s_min=1.0, delay_s_max=1.0)) as store:
        write = asyncio.create_task(store.put(b"k", b"v"))
        read = asyncio.create_task(store.get(b"k"))
        await asyncio.sleep(0.5)
        store.disconnect()
        with pytest.raises(MaybeApplied):
            await write
        with pytest.raises(MetaUnavailable):
            await read
        with pytest.raises(MetaUnavailable):
            await store.put(b"k", b"w")
        store.reconnect()
        kv = await store.get(b"k")
        assert kv is not None
        assert kv.value == b"v", "it had left before the cut"


@pytest.mark.sim(seed=1)
async def test_a_store_closed_during_a_write_leaves_the_outcome_open() -> None:
    server = MemoryStore()
    async with server.client(plan=FaultPlan(delay_s_min=1.0, delay_s_max=1.0)) as store:
        write = asyncio.create_task(store.put(b"k", b"v"))
        await asyncio.sleep(0.5)
        await store.close()
        with pytest.raises(MaybeApplied):
            await write


@pytest.mark.sim(seed=1)
async def test_a_fresh_store_may_be_compacted_at_zero_once() -> None:
    async with MemoryStore().client() as store:
        await store.compact(0)
        for revision in (0, -1):
            with pytest.raises(Compacted):
                await store.compact(revision)


@pytest.mark.sim(seed=1)
async def test_t17_a_watch_that_was_down_over_a_compaction_lists_again_and_loses_no_change() -> None:
    server = MemoryStore()
    async with server.client() as store, server.client() as writer:
        state: dict[bytes, bytes] = {}
        resyncs = 0

        async def follow() -> None:
            nonlocal resyncs
            async with store.watch(KeyRange.prefix(b"k/"), start_revision=1) as watch:
                async for item in watch:
                    if isinstance(item, Resync):
                        resyncs += 1
                        state.clear()
                        state.update((kv.key, kv.value) for kv in item.kvs)
                        continue
                    for event in item.events:
                        state.pop(event.kv.key, None)
                        if event.kv.version:
                            state[event.kv.key] = event.kv.value

        follower = asyncio.create_task(follow())
        rng = random.Random(3)
        for round_number in range(40):
            match rng.randrange(4):
                case 0:
                    store.disconnect()
                case 1:
                    store.stall()
                case 2:
                    store.interrupt_watches(0.5)
            for _ in range(rng.randrange(4)):
                key = b"k/%d" % rng.randrange(5)
                if rng.random() < 0.3:
                    await writer.delete(key)
                else:
                    await writer.put(key, b"%d" % round_number)
            if rng.random() < 0.5 and await writer.revision() > server.key_space.compact_revision:
                await writer.compact(await writer.revision())
            await asyncio.sleep(0.2)
            store.reconnect()
            store.resume()
            await asyncio.sleep(1)
            listing = await writer.range_all(KeyRange.prefix(b"k/"))
            assert state == {kv.key: kv.value for kv in listing.kvs}
        assert resyncs > 3
        follower.cancel()


@pytest.mark.sim(seed=1)
async def test_interrupted_watches_deliver_each_batch_once_when_they_are_back() -> None:
    server = MemoryStore()
    async with server.client() as store:
        async with store.watch(b"k", start_revision=2) as watch:
            store.interrupt_watches(5)
            for number in range(3):
                await store.put(b"k", b"%d" % number)
            items = [await anext(watch) for _ in range(3)]
            assert [item.revision for item in items] == [2, 3, 4]
            assert all(isinstance(item, WatchBatch) for item in items)
        assert not store.watches
        assert not server.watches


def test_one_seed_gives_one_sequence_of_faults_and_delays() -> None:
    async def story() -> list[str]:
        plan = FaultPlan(random.Random(5), 0.0, 0.4, 0.2, 0.2, 0.2)
        loop = sim_loop.current()
        heard = []
        async with MemoryStore().client(plan=plan, call_timeout_s=0.5) as store:
            for number in range(60):
                try:
                    result = await store.txn([key_absent(b"k%d" % (number % 7))], [Put(b"k%d" % (number % 7), b"")])
                    heard.append(f"{loop.time():.6f} {result}")
                except (MetaUnavailable, MaybeApplied) as error:
                    heard.append(f"{loop.time():.6f} {error}")
        return heard

    first = sim_loop.run(story())
    assert sim_loop.run(story()) == first
    text = "\n".join(first)
    for expected in ("refuses", "on the way to", "before the answer", "in time", "succeeded=True"):
        assert expected in text


def test_ranges_and_keys_that_etcd_would_refuse_cannot_be_made() -> None:
    for make in (lambda: KeyRange(b""), lambda: KeyRange(b"b", b"a"), lambda: Put(b"", b""), lambda: key_absent(b"")):
        with pytest.raises(InvalidArgument):
            make()
    assert KeyRange.prefix(b"") == KeyRange(b"\x00", b"\x00")
    assert KeyRange.prefix(b"a\xff") == KeyRange(b"a\xff", b"b")
    assert KeyRange.prefix(b"\xff") == KeyRange(b"\xff", b"\x00")
    assert KeyRange(b"a", b"b").after(b"a\xff") == KeyRange(b"a\xff\x00", b"b")
    assert KeyRange(b"a").after(b"a") is None
