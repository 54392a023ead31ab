"""Three etcd processes, of which some are killed or paused: calls go on, leases live, nothing is applied twice."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from neve.meta import lease as lease_module
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import KeyValue, Put, mod_revision_is
from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError
from tests.cluster.etcd import EtcdCluster

COUNTER = b"/counter"


async def _connect(cluster: EtcdCluster) -> EtcdStore:
    return await EtcdStore.connect(EtcdConfig(cluster.endpoints, attempt_timeout_s=1.0))


async def _put_until_done(store: EtcdStore, key: bytes, value: bytes) -> None:
    """A plain put may be done twice: repeat it until etcd says yes."""
    while True:
        try:
            await store.put(key, value)
            return
        except (MetaUnavailable, MaybeApplied):
            await asyncio.sleep(0.1)


async def _count_up(store: EtcdStore, times: int) -> None:
    """Increment by guarded transactions; the outcome of each is settled by resending it and looking."""
    for _ in range(times):
        kv = await _read(store, COUNTER)
        wanted = str(int(kv.value) + 1).encode()
        while True:
            try:
                await store.txn([mod_revision_is(COUNTER, kv.mod_revision)], [Put(COUNTER, wanted)])
                break
            except (MetaUnavailable, MaybeApplied):
                await asyncio.sleep(0.05)
        assert (await _read(store, COUNTER)).value == wanted, "refused only if an earlier sending was applied"


async def _read(store: EtcdStore, key: bytes) -> KeyValue:
    while True:
        try:
            kv = await store.get(key)
        except MetaUnavailable:
            await asyncio.sleep(0.05)
        else:
            assert kv is not None
            return kv


async def test_with_one_member_killed_calls_go_on(three_etcds: EtcdCluster) -> None:
    async with await _connect(three_etcds) as store:
        await _put_until_done(store, b"/a", b"1")
        follower = next(member for member in three_etcds.members if not member.is_leader())
        follower.kill()
        await _put_until_done(store, b"/a", b"2")
        assert (await _read(store, b"/a")).value == b"2"
        three_etcds.restart(follower)
        only = EtcdConfig((follower.endpoint,))
        async with await EtcdStore.connect(only) as direct:
            assert (await _read(direct, b"/a")).value == b"2"


async def test_when_leaders_are_killed_again_and_again_each_guarded_write_is_applied_once(
    three_etcds: EtcdCluster,
) -> None:
    async with await _connect(three_etcds) as store:
        await _put_until_done(store, COUNTER, b"0")
        before = await _read(store, COUNTER)
        counting = asyncio.create_task(_count_up(store, 150))
        for _ in range(2):
            await asyncio.sleep(0.2)
            leader = three_etcds.leader
            leader.kill()
            while not any(member.is_leader() for member in three_etcds.members if member is not leader):
                await asyncio.sleep(0.1)
            three_etcds.restart(leader)
        await counting
        kv = await _read(store, COUNTER)
        assert (kv.value, kv.version) == (b"150", before.version + 150)


async def test_without_a_quorum_calls_fail_in_time_and_go_on_when_it_is_back(three_etcds: EtcdCluster) -> None:
    async with await _connect(three_etcds) as store:
        await _put_until_done(store, b"/a", b"1")
        store._link.config = dataclasses.replace(store._link.config, call_timeout_s=2.0)
        left = three_etcds.members[2]
        async with await EtcdStore.connect(EtcdConfig((left.endpoint,))) as direct:
            await _read(direct, b"/a")  # linearizable, so this member has it now
        for member in three_etcds.members[:2]:
            member.kill()
        with pytest.raises(MetaUnavailable):
            await store.get(b"/a")
        # The member that is left says so itself once it has noticed: then a write is certainly not applied.
        refused: NeveError = MaybeApplied()
        while isinstance(refused, MaybeApplied):
            with pytest.raises((MaybeApplied, MetaUnavailable)) as raised:
                await store.put(b"/a", b"2")
            refused = raised.value
        assert "no leader" in str(refused) or "cannot connect" in str(refused)
        stale = await store.range(b"/a", serializable=True)
        assert stale.kvs[0].value == b"1"
        three_etcds.members[0].start({m.name: m.peer_url for m in three_etcds.members})
        await _put_until_done(store, b"/a", b"3")
        assert (await _read(store, b"/a")).value == b"3"


@pytest.mark.parametrize("leads", [False, True])
async def test_a_paused_member_costs_neither_the_lease_nor_the_calls(
    three_etcds: EtcdCluster, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member that a client talks to hangs: its connection is open, but silent. Renewals go through another one.

    If it was the leader, the others elect a new one first, which takes seconds on a busy machine. So the lease lives
    far longer than that, and is renewed as often as a short one would be.
    """
    monkeypatch.setattr(lease_module, "KEEP_ALIVES_PER_TTL", 60)
    monkeypatch.setattr(lease_module, "RETRIES_PER_TTL", 120)
    paused = next(member for member in three_etcds.members if member.is_leader() is leads)
    others = [endpoint for endpoint in three_etcds.endpoints if endpoint != paused.endpoint]
    config = EtcdConfig((paused.endpoint, *others), attempt_timeout_s=1.0)
    async with await EtcdStore.connect(config) as store:
        lease = await store.grant_lease(120)
        await store.put(b"/on-lease", b"1", lease_id=lease.lease_id)
        assert store._link.first_member().address == paused.endpoint
        paused.pause()
        try:
            for _ in range(2):
                deadline_s = lease._deadline_s
                while lease._deadline_s == deadline_s:
                    lease.ensure_alive()
                    await asyncio.sleep(0.01)
            assert store._link.first_member().address != paused.endpoint
            await _put_until_done(store, b"/a", b"1")
            kv = await _read(store, b"/on-lease")
            assert kv.lease_id == lease.lease_id
        finally:
            paused.resume()


async def test_connecting_needs_one_member_and_says_so_when_there_is_none(three_etcds: EtcdCluster) -> None:
    three_etcds.members[0].kill()
    names = tuple(endpoint.replace("127.0.0.1", "localhost") for endpoint in three_etcds.endpoints)
    async with await EtcdStore.connect(EtcdConfig(names)) as store:
        await _put_until_done(store, b"/a", b"1")
    for member in three_etcds.members:
        member.kill()
    with pytest.raises(MetaUnavailable):
        await EtcdStore.connect(EtcdConfig(names, call_timeout_s=1.0))
