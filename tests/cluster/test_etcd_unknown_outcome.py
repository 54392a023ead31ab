"""A write whose answer is lost: never said to have failed, and never applied twice."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.lock import acquire_lock
from neve.meta.txn import Compare, Operation, Put, TxnResult, mod_revision_is
from neve.proto.errors import MaybeApplied, MetaUnavailable
from tests.cluster.etcd import EtcdCluster
from tests.cluster.proxy import TcpProxy


def _shorten_calls(store: EtcdStore) -> None:
    """For calls that end without an answer. Connecting gets one, and has all the time that it needs for it."""
    store._link.config = dataclasses.replace(store._link.config, call_timeout_s=0.7)


async def _until_version(store: EtcdStore, key: bytes, version: int) -> None:
    while (kv := await store.get(key)) is None or kv.version < version:
        await asyncio.sleep(0.01)


async def _resend_until_known(store: EtcdStore, compares: Sequence[Compare], success: Sequence[Operation]) -> TxnResult:
    """Rule 19: the identical transaction again, until its outcome is known."""
    while True:
        try:
            return await store.txn(compares, success)
        except (MaybeApplied, MetaUnavailable):
            await asyncio.sleep(0.05)


async def test_t16_a_connection_cut_after_commit_is_maybe_applied_and_a_resend_applies_nothing_twice(
    one_etcd: EtcdCluster,
) -> None:
    key = b"/t16/counter"
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as direct,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        base = await store.put(key, b"0")
        guarded = ([mod_revision_is(key, base)], [Put(key, b"1")])

        proxy.swallows_replies = True
        write = asyncio.create_task(store.txn(*guarded))
        await _until_version(direct, key, 2)
        await proxy.cut()
        with pytest.raises(MaybeApplied):
            await write

        proxy.swallows_replies = False
        again = await _resend_until_known(store, *guarded)
        assert not again.succeeded
        kv = await direct.get(key)
        assert kv is not None
        assert (kv.value, kv.version) == (b"1", 2)


async def test_t16_a_connection_cut_before_commit_is_not_said_to_have_failed_and_a_resend_applies_it_once(
    one_etcd: EtcdCluster,
) -> None:
    key = b"/t16b/counter"
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as direct,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        base = await store.put(key, b"0")
        guarded = ([mod_revision_is(key, base)], [Put(key, b"1")])

        proxy.stall()
        write = asyncio.create_task(store.txn(*guarded))
        await proxy.until_held()  # it has left this process, and gets no further
        await proxy.cut()
        proxy.resume()
        with pytest.raises(MaybeApplied):
            await write
        kv = await direct.get(key)
        assert kv is not None
        assert kv.version == 1

        await _resend_until_known(store, *guarded)
        again = await _resend_until_known(store, *guarded)
        assert not again.succeeded
        kv = await direct.get(key)
        assert kv is not None
        assert (kv.value, kv.version) == (b"1", 2)


async def test_a_write_without_an_answer_is_maybe_applied_at_the_timeout(one_etcd: EtcdCluster) -> None:
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        _shorten_calls(store)
        proxy.swallows_replies = True
        with pytest.raises(MaybeApplied):
            await store.put(b"/timeout", b"1")
        with pytest.raises(MetaUnavailable):  # a read is never in doubt
            await store.get(b"/timeout")


async def test_closing_during_a_write_leaves_its_outcome_open_and_a_read_unanswered(one_etcd: EtcdCluster) -> None:
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        proxy.stall()
        write = asyncio.create_task(store.put(b"/closed", b"1"))
        await proxy.until_held()  # it has left
        read = asyncio.create_task(store.get(b"/closed"))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(MaybeApplied):
            await write
        with pytest.raises(MetaUnavailable):
            await read


async def test_a_refused_connection_is_certainly_not_applied(one_etcd: EtcdCluster) -> None:
    key = b"/refused/a"
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as direct,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        _shorten_calls(store)
        proxy.refuses = True
        await proxy.cut()
        while True:
            try:
                await store.put(key, b"1")
            except MaybeApplied:
                continue  # the client had not yet noticed the cut when it sent: rightly unsure
            except MetaUnavailable:
                break
        assert await direct.get(key) is None
        proxy.refuses = False
        while True:
            try:
                await store.put(key, b"1")
                break
            except MetaUnavailable:
                continue  # gRPC waits a little before it connects again
        kv = await direct.get(key)
        assert kv is not None
        assert kv.version == 1


async def test_a_lock_whose_acquisition_lost_its_answer_is_found_to_be_ours(one_etcd: EtcdCluster) -> None:
    async with (
        TcpProxy(one_etcd.endpoints[0]) as proxy,
        await EtcdStore.connect(EtcdConfig(one_etcd.endpoints)) as direct,
        await EtcdStore.connect(EtcdConfig((proxy.endpoint,))) as store,
    ):
        lease = await store.grant_lease(20)
        proxy.swallows_replies = True
        acquiring = asyncio.create_task(acquire_lock(store, "s", "me", lease, root=b"/t16c/", timeout_s=10))
        await _until_version(direct, b"/t16c/locks/s", 1)
        await proxy.cut()
        proxy.swallows_replies = False
        lock = await acquiring
        kv = await direct.get(lock.key)
        assert kv is not None
        assert (kv.mod_revision, kv.version) == (lock.token, 1)
        await lock.release()
