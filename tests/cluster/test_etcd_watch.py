"""Watches on a real etcd: over cuts, kills, compactions, large histories and slow consumers, no change is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from neve.meta.etcd import connections as etcd_link
from neve.meta.etcd import watch as etcd_watch
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.store import EventKind, Resync, WatchBatch, WatchItem
from neve.meta.txn import Delete, KeyRange, Put
from neve.proto.errors import MaybeApplied, MetaUnavailable
from tests.cluster.etcd import EtcdCluster
from tests.cluster.proxy import TcpProxy


class Mirror:
    """A copy of a range, fed by a watch alone."""

    def __init__(self) -> None:
        self.state: dict[bytes, bytes] = {}
        self.revisions: list[int] = []
        self.resyncs = 0

    def apply(self, item: WatchItem) -> None:
        assert not self.revisions or item.revision > self.revisions[-1], "in order, and once"
        self.revisions.append(item.revision)
        if isinstance(item, Resync):
            self.resyncs += 1
            self.state = {kv.key: kv.value for kv in item.kvs}
            return
        for event in item.events:
            if event.kind is EventKind.PUT:
                self.state[event.kv.key] = event.kv.value
            else:
                del self.state[event.kv.key]

    async def follow(self, store: EtcdStore, keys: KeyRange, *, start: int, end_key: bytes) -> None:
        """Until `end_key` is there."""
        async with store.watch(keys, start_revision=start) as watch:
            async for item in watch:
                self.apply(item)
                if end_key in self.state:
                    return


async def test_t17_a_watch_over_a_compaction_relists_and_loses_no_change(one_etcd: EtcdCluster) -> None:
    keys = KeyRange.prefix(b"/t17/")
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as writer,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        mirror = Mirror()
        start = await writer.put(b"/t17/a", b"1")
        await writer.put(b"/t17/deleted", b"1")
        following = asyncio.create_task(mirror.follow(store, keys, start=start, end_key=b"/t17/end"))
        while len(mirror.revisions) < 2:
            await asyncio.sleep(0.01)

        proxy.refuses = True
        await proxy.cut()
        await writer.delete(b"/t17/deleted")
        await writer.put(b"/t17/a", b"2")
        await writer.put(b"/t17/b", b"1")
        await writer.compact(await writer.revision())
        await writer.put(b"/t17/c", b"1")
        proxy.refuses = False

        await writer.put(b"/t17/end", b"")
        await following
        assert mirror.resyncs == 1
        assert mirror.state == {kv.key: kv.value for kv in (await writer.range_all(keys)).kvs}


async def test_a_watch_that_is_cut_again_and_again_delivers_each_revision_once(one_etcd: EtcdCluster) -> None:
    keys = KeyRange.prefix(b"/cut/")
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as writer,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        mirror = Mirror()
        start = await writer.revision() + 1
        following = asyncio.create_task(mirror.follow(store, keys, start=start, end_key=b"/cut/end"))
        for number in range(60):
            if number % 20 == 10:
                await proxy.cut()
            await writer.put(b"/cut/%d" % (number % 7), b"%d" % number)
            await asyncio.sleep(0.005)
        await writer.put(b"/cut/end", b"")
        await following
        assert mirror.resyncs == 0
        assert mirror.revisions == list(range(start, start + 61))


async def test_a_watch_moves_to_another_member_when_its_own_is_killed(three_etcds: EtcdCluster) -> None:
    keys = KeyRange.prefix(b"/kill/")
    async with (
        await EtcdStore.connect(EtcdConfig(three_etcds.endpoints)) as store,
        await EtcdStore.connect(EtcdConfig(three_etcds.endpoints[1:])) as writer,
    ):
        mirror = Mirror()
        start = await writer.revision() + 1
        following = asyncio.create_task(mirror.follow(store, keys, start=start, end_key=b"/kill/end"))
        await writer.put(b"/kill/a", b"0")
        while not mirror.revisions:
            await asyncio.sleep(0.01)
        three_etcds.members[0].kill()
        for key in (b"/kill/a", b"/kill/b", b"/kill/end"):
            while True:
                try:
                    await writer.put(key, b"1")
                    break
                except (MetaUnavailable, MaybeApplied):
                    await asyncio.sleep(0.1)
        await following
        assert mirror.state == {kv.key: kv.value for kv in (await writer.range_all(keys)).kvs}


async def test_t17_on_three_members_a_watch_over_a_compaction_loses_no_change(three_etcds: EtcdCluster) -> None:
    """It comes back on another member each time, which may be behind in the changes and in the compaction."""
    keys = KeyRange.prefix(b"/t17-3/")
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(TcpProxy(endpoint)) for endpoint in three_etcds.endpoints]
        store = await stack.enter_async_context(
            await EtcdStore.connect(EtcdConfig(tuple(proxy.endpoint for proxy in proxies)))
        )
        writer = await stack.enter_async_context(await EtcdStore.connect(EtcdConfig(three_etcds.endpoints)))
        mirror = Mirror()
        start = await writer.put(b"/t17-3/deleted-0", b"1")
        following = asyncio.create_task(mirror.follow(store, keys, start=start, end_key=b"/t17-3/end"))
        for number in range(3):
            while not mirror.revisions or b"/t17-3/deleted-%d" % number not in mirror.state:
                await asyncio.sleep(0.01)
            for proxy in proxies:
                proxy.refuses = True
                await proxy.cut()
            await writer.delete(b"/t17-3/deleted-%d" % number)
            await writer.put(b"/t17-3/a", b"%d" % number)
            await writer.compact(await writer.revision())
            await writer.put(b"/t17-3/deleted-%d" % (number + 1), b"")
            proxies[(number + 1) % 3].refuses = False
        await writer.put(b"/t17-3/end", b"")
        await following
        assert mirror.resyncs >= 1
        assert mirror.state == {kv.key: kv.value for kv in (await writer.range_all(keys)).kvs}


async def test_a_transaction_that_etcd_sends_in_fragments_is_one_batch(one_etcd: EtcdCluster) -> None:
    """A long history of large transactions: etcd cuts it into messages of 1.5 MiB, anywhere between two events."""
    keys = KeyRange.prefix(b"/large/")
    async with await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as store:
        start = await store.revision() + 1
        for number in range(12):
            value = bytes([number]) * 100_000
            await store.txn([], [Put(b"/large/%d" % key, value) for key in range(11)])
        async with store.watch(keys, start_revision=start) as watch:
            items = [await anext(watch) for _ in range(12)]
        assert [item.revision for item in items] == list(range(start, start + 12))
        assert all(isinstance(item, WatchBatch) and len(item.events) == 11 for item in items)
        await store.delete(keys)


async def test_a_stream_that_breaks_between_fragments_delivers_each_transaction_whole_and_once(
    one_etcd: EtcdCluster,
) -> None:
    keys = KeyRange.prefix(b"/broken/")
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as writer,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        start = await writer.revision() + 1
        for number in range(8):
            await writer.txn([], [Put(b"/broken/%d" % key, bytes([number]) * 100_000) for key in range(11)])
        proxy.cuts_after_reply_bytes = 5_000_000  # in the middle of the fifth transaction
        async with store.watch(keys, start_revision=start) as watch:
            items = [await anext(watch) for _ in range(8)]
        assert proxy.cuts_after_reply_bytes == 0, "it was cut"
        assert [item.revision for item in items] == list(range(start, start + 8))
        assert [len(item.events) for item in items if isinstance(item, WatchBatch)] == [11] * 8
        await writer.delete(keys)


async def test_a_page_larger_than_a_message_is_read_in_smaller_pages(
    one_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyRange.prefix(b"/pages/")
    monkeypatch.setattr(etcd_link, "MESSAGE_BYTES_MAX", 300_000)
    async with await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as store:
        for number in range(20):
            await store.put(b"/pages/%02d" % number, b"v" * 50_000)
        listing = await store.range_all(keys)
        assert [kv.key for kv in listing.kvs] == [b"/pages/%02d" % number for number in range(20)]
        await store.delete(keys)


async def test_a_slow_consumer_reads_everything_and_what_waits_for_it_is_bounded(
    one_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "AHEAD_ITEMS_MAX", 20)
    key = b"/slow/a"
    async with await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as store:
        start = await store.revision() + 1
        async with store.watch(key, start_revision=start) as watch:
            ahead_max = 0
            for number in range(200):
                await store.put(key, b"%d" % number)
                ahead_max = max(ahead_max, len(watch._ahead))
            assert ahead_max >= 20, "it does read ahead"
            items: list[WatchItem] = []
            while len(items) < 200:
                items.append(await anext(watch))
                ahead_max = max(ahead_max, len(watch._ahead))
        assert [item.revision for item in items] == list(range(start, start + 200))
        # One message may bring more than there is room for: all that etcd had ready when the stream began again.
        assert ahead_max < 200


async def test_a_slow_consumer_over_a_compaction_gets_a_resync(
    one_etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "AHEAD_ITEMS_MAX", 5)
    keys = KeyRange.prefix(b"/slow2/")
    async with await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as store:
        mirror = Mirror()
        start = await store.revision() + 1
        async with store.watch(keys, start_revision=start) as watch:
            for number in range(40):
                await store.txn([], [Put(b"/slow2/%d" % number, b""), Delete(b"/slow2/%d" % (number - 1))])
                while not watch._ahead:  # the stream has begun: what follows comes in small messages
                    await asyncio.sleep(0.01)
            await store.compact(await store.revision())
            await store.put(b"/slow2/end", b"")
            while b"/slow2/end" not in mirror.state:
                mirror.apply(await anext(watch))
        assert mirror.resyncs == 1
        assert set(mirror.state) == {b"/slow2/39", b"/slow2/end"}
