"""Locks on virtual time: new tokens, no adoption, unknown outcomes settled, losses noticed before a write."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from neve.meta.lease import Lease
from neve.meta.lock import Claim, Held, Lock, Wait, acquire_lock, encode_value, lock_key, next_step, owner_of
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.meta.memory.link import Fault, FaultPlan
from neve.meta.store import WatchBatch
from neve.meta.txn import KeyRange, KeyValue, Put, TxnResult, key_absent, mod_revision_is
from neve.proto.errors import (
    LeaseLost,
    LockHeld,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    NotOwner,
    PermissionDenied,
)
from tests.sim import loop as sim_loop

ROOT = b"/c/"
KEY = b"/c/locks/s1"


async def _acquire(
    store: MemoryClient, lease: Lease, owner: str, *, takeover: bool = False, timeout_s: float = 0.0
) -> Lock:
    return await acquire_lock(store, "s1", owner, lease, root=ROOT, takeover=takeover, timeout_s=timeout_s)


@pytest.mark.sim(seed=1)
async def test_the_token_is_the_mod_revision_of_the_key_on_our_lease() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(10)
        lock = await _acquire(store, lease, "alice")
        kv = await store.get(KEY)
        assert kv is not None
        assert (kv.mod_revision, kv.lease_id, owner_of(kv.value)) == (lock.token, lease.lease_id, "alice")
        assert (await store.txn(lock.guard(), (Put(b"state", b"x"),))).succeeded
        await lock.verify()


@pytest.mark.sim(seed=1)
async def test_opening_again_takes_a_higher_token_and_ends_the_earlier_holding() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(10)
        first = await _acquire(store, lease, "alice")
        second = await _acquire(store, lease, "alice")
        assert second.token > first.token
        assert not (await store.txn(first.guard(), (Put(b"state", b"x"),))).succeeded
        with pytest.raises(NotOwner):
            await first.verify()
        assert first.lost.is_set()
        await second.verify()


@pytest.mark.sim(seed=1)
async def test_another_live_owners_key_is_never_adopted_and_the_error_names_the_owner() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lock = await _acquire(a, await a.grant_lease(3), "alice")
        with pytest.raises(LockHeld) as held:
            await _acquire(b, await b.grant_lease(3), "bob", timeout_s=100)
        assert held.value.owner == "alice"
        await lock.verify()


@pytest.mark.sim(seed=1)
async def test_a_waiting_owner_gets_the_lock_when_the_others_lease_ends() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        old = await _acquire(a, await a.grant_lease(3), "alice")
        waiting = asyncio.create_task(_acquire(b, await b.grant_lease(3), "bob", timeout_s=100))
        await asyncio.sleep(10)
        assert not waiting.done()
        a.stall()
        new = await waiting
        assert new.token > old.token
        with pytest.raises(LeaseLost):
            old.ensure()
        a.resume()
        assert not (await a.txn(old.guard(), (Put(b"state", b"x"),))).succeeded


@pytest.mark.sim(seed=1)
async def test_a_takeover_fences_the_owner_and_tells_it() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        old = await _acquire(a, await a.grant_lease(3), "alice")
        new = await _acquire(b, await b.grant_lease(3), "bob", takeover=True)
        assert await old.lost.wait() == "the key was replaced"
        with pytest.raises(NotOwner):
            old.ensure()
        assert old.lease.alive()
        await old.release()
        await new.verify()


@pytest.mark.sim(seed=1)
async def test_releasing_lets_the_next_owner_in_at_once() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lock = await _acquire(a, await a.grant_lease(1000), "alice")
        waiting = asyncio.create_task(_acquire(b, await b.grant_lease(1000), "bob", timeout_s=100))
        await asyncio.sleep(1)
        async with lock:
            pass
        assert (await waiting).token > lock.token
        with pytest.raises(NotOwner):
            lock.ensure()


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("fault", list(Fault))
async def test_an_unknown_outcome_is_settled_by_looking(fault: Fault, takeover: bool) -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        if takeover:
            await _acquire(a, await a.grant_lease(10), "alice")
        lease = await b.grant_lease(10)
        before = await b.revision()
        # With a holder there, the first transaction only finds it; the one that replaces it must meet a fault too.
        b.plan.scripted = deque([fault, fault])
        lock = await _acquire(b, lease, "bob", takeover=takeover, timeout_s=5)
        kv = await b.get(KEY)
        assert kv is not None
        assert kv.mod_revision == lock.token
        assert await b.revision() == before + 1, "put once"
        await lock.verify()


@pytest.mark.sim(seed=1)
async def test_a_store_that_takes_no_write_is_an_error_at_the_timeout_and_not_a_loop() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(10)
        store.plan.scripted = deque([Fault.LOST_BEFORE_APPLY] * 1000)
        with pytest.raises(MaybeApplied):
            await _acquire(store, lease, "alice", timeout_s=20)
        assert lease.alive()


@pytest.mark.sim(seed=1)
async def test_an_outage_is_an_error_at_the_timeout_and_not_at_the_end_of_the_lease() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(600)
        store.disconnect()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        with pytest.raises(MetaUnavailable):
            await _acquire(store, lease, "alice", timeout_s=1)
        assert loop.time() - start_s == pytest.approx(1.0, abs=0.2)
        assert lease.alive()


@pytest.mark.sim(seed=1)
async def test_a_claim_that_arrives_after_the_release_does_not_bring_the_lock_back() -> None:
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as a, server.client() as b:
        lease = await a.grant_lease(10)
        a.plan.delay_s_min = a.plan.delay_s_max = 5.0
        acquiring = asyncio.create_task(_acquire(a, lease, "alice", timeout_s=30))
        await asyncio.sleep(1.5)
        a.plan.delay_s_min = a.plan.delay_s_max = 0.0  # the claims after the first two overtake them
        await (await acquiring).release()
        assert await b.get(KEY) is None
        await asyncio.sleep(30)
        assert await b.get(KEY) is None
        assert lease.alive()
        again = await _acquire(a, lease, "alice")
        await again.verify()
        await again.release()
        await lease.revoke()
        assert not (await b.range_all(KeyRange.prefix(ROOT))).kvs, "what was voided went with the lease"


@pytest.mark.sim(seed=1)
async def test_a_claim_that_arrives_after_the_lock_was_lost_to_another_does_not_bring_it_back() -> None:
    """Nobody releases a lock that is lost: it voids the claim by itself."""
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as a, server.client() as b:
        lease = await a.grant_lease(100)
        a.plan.delay_s_min = a.plan.delay_s_max = 9.0
        acquiring = asyncio.create_task(_acquire(a, lease, "alice", timeout_s=30))
        await asyncio.sleep(0.5)
        a.plan.delay_s_min = a.plan.delay_s_max = 0.0
        lock = await acquiring
        taken = await _acquire(b, await b.grant_lease(100), "bob", takeover=True)
        await taken.release()
        await asyncio.sleep(30)
        assert lock.lost.is_set()
        assert lease.alive()
        assert await b.get(KEY) is None


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize("arrives", ["before the withdrawal", "after the withdrawal"])
async def test_an_acquisition_that_is_cancelled_leaves_no_lock_behind(arrives: str) -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lease = await a.grant_lease(10)
        a.plan.delay_s_min = a.plan.delay_s_max = 0.5 if arrives.startswith("before") else 3.0
        acquiring = asyncio.create_task(_acquire(a, lease, "alice", timeout_s=30))
        await asyncio.sleep(0.1)
        a.plan.delay_s_min = a.plan.delay_s_max = 1.0
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        await asyncio.sleep(10)
        assert lease.alive()
        assert await b.get(KEY) is None


@pytest.mark.sim(seed=1)
async def test_a_release_that_is_cancelled_in_an_outage_is_done_when_the_store_is_back() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lock = await _acquire(a, await a.grant_lease(100), "alice")
        a.disconnect()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await lock.release()
        a.reconnect()
        await _acquire(b, await b.grant_lease(10), "bob", timeout_s=5)
        assert lock.lease.alive()


@pytest.mark.sim(seed=1)
async def test_a_release_that_the_store_refuses_gives_the_lease_up() -> None:
    """While we renew the lease the key would stand: only letting the lease go takes it away."""
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lock = await _acquire(a, await a.grant_lease(10), "alice")

        async def refuse(*_: object) -> TxnResult:
            raise PermissionDenied(action="delete")

        a.txn = refuse  # type: ignore[method-assign,assignment]
        await lock.release()
        assert "cannot be withdrawn" in lock.lease.lost.reason
        await _acquire(b, await b.grant_lease(10), "bob", timeout_s=20)


@pytest.mark.sim(seed=1)
async def test_of_two_takeovers_one_replaces_the_holding_and_the_other_waits_for_it() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b, server.client() as c:
        await _acquire(a, await a.grant_lease(10), "alice")
        leases = [await b.grant_lease(10), await c.grant_lease(10)]
        results = await asyncio.gather(
            _acquire(b, leases[0], "bob", takeover=True),
            _acquire(c, leases[1], "carol", takeover=True),
            return_exceptions=True,
        )
        won = [result for result in results if isinstance(result, Lock)]
        held = [result for result in results if isinstance(result, LockHeld)]
        assert (len(won), len(held)) == (1, 1)
        await asyncio.sleep(1)
        await won[0].verify()


@pytest.mark.sim(seed=1)
async def test_a_waiting_owner_whose_watch_missed_a_change_looks_again_after_the_resync() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b, server.client() as c:
        first = await _acquire(a, await a.grant_lease(1000), "alice")
        waiting = asyncio.create_task(_acquire(b, await b.grant_lease(1000), "bob", timeout_s=500))
        await asyncio.sleep(1)
        await a.put(b"unrelated", b"")
        await a.compact(await a.revision())  # a resync with the key unchanged: it goes on waiting
        await asyncio.sleep(1)
        b.interrupt_watches(5)
        second = await _acquire(c, await c.grant_lease(1000), "carol", takeover=True)
        await a.compact(await a.revision())
        await asyncio.sleep(20)
        assert first.lost.is_set()
        assert not waiting.done(), "carol holds it now"
        await second.release()
        assert (await waiting).token > second.token


@pytest.mark.sim(seed=1)
async def test_t18_a_lease_that_ends_while_the_lock_is_acquired_is_noticed_then() -> None:
    """The put is applied in time, its answer comes after the lease's deadline."""
    server = MemoryStore()
    async with server.client(call_timeout_s=100.0) as store:
        lease = await store.grant_lease(3)
        store.plan.delay_s_min = store.plan.delay_s_max = 1.6  # one way: there in time, back too late
        with pytest.raises(LeaseLost):
            await _acquire(store, lease, "alice", timeout_s=100)
        assert server.key_space.revision > 1, "the put was applied"


@pytest.mark.sim(seed=1)
async def test_t18_a_lease_that_ends_between_acquire_and_first_write_is_noticed_before_the_write() -> None:
    server = MemoryStore()
    async with server.client() as a, server.client() as b:
        lock = await _acquire(a, await a.grant_lease(3), "alice")
        a.stall()
        successor = await _acquire(b, await b.grant_lease(3), "bob", timeout_s=100)
        with pytest.raises(LeaseLost):
            lock.ensure()
        a.resume()
        with pytest.raises(LeaseLost):
            await lock.verify()
        assert not (await a.txn(lock.guard(), (Put(b"state", b"x"),))).succeeded
        await successor.verify()


@pytest.mark.sim(seed=1)
async def test_a_lock_is_not_acquired_on_a_lease_that_is_over() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(3)
        await lease.revoke()
        with pytest.raises(LeaseLost):
            await _acquire(store, lease, "alice")
        assert await store.get(KEY) is None


def _kv(*, value: bytes = b"other", lease_id: int = 5, mod_revision: int = 9) -> KeyValue:
    return KeyValue(KEY, value, 3, mod_revision, 2, lease_id)


def test_the_next_step_depends_on_whose_key_stands_there() -> None:
    def step(kv: KeyValue | None, *, takeover_token: int | None = None) -> Held | Claim | Wait:
        return next_step(KEY, kv, value=b"mine", lease_id=7, takeover_token=takeover_token)

    assert step(None) == Claim(key_absent(KEY))
    assert step(_kv()) == Wait(_kv())
    assert step(_kv(), takeover_token=9) == Claim(mod_revision_is(KEY, 9))
    assert step(_kv(), takeover_token=8) == Wait(_kv()), "another holding than the one to take over"
    assert step(_kv(lease_id=7)) == Claim(mod_revision_is(KEY, 9)), "our own earlier holding"
    assert step(_kv(value=b"mine", lease_id=7)) == Held(_kv(value=b"mine", lease_id=7))


def test_an_owners_name_may_hold_anything() -> None:
    assert lock_key(ROOT, "s1") == KEY
    for owner in ("alice", "a\nb", "ÿ", "x y"):
        assert owner_of(encode_value(nonce="7.1", owner=owner)) == owner
    assert owner_of(b"\xff not ours") == "\ufffd not ours"


@pytest.mark.parametrize("seed", range(20))
def test_owners_with_faults_never_hold_at_once_and_tokens_only_rise(seed: int) -> None:
    """Several processes open, write, release, crash and stall; the writes they leave must be in token order."""

    async def story() -> tuple[list[int], int]:
        rng = random.Random(seed)
        server = MemoryStore()
        locks: list[Lock] = []
        tokens: list[int] = []

        def check_one_owner() -> None:
            valid = []
            for lock in locks:
                try:
                    lock.ensure()
                except (LeaseLost, NotOwner):
                    continue
                valid.append(lock)
            # A takeover or a reopen is known to the old owner only by its watch; without them the lease decides.
            assert len({lock.lease.lease_id for lock in valid}) <= 1
            locks[:] = valid

        async def life(name: int) -> None:
            for _ in range(5):
                plan = FaultPlan(rng, 0.0, 0.2, 0.05, 0.05, 0.05)
                try:
                    async with server.client(plan=plan, call_timeout_s=1.0) as client:
                        await hold(client, f"owner {name}")
                except NeveError:
                    await asyncio.sleep(rng.uniform(0, 1))

        async def hold(client: MemoryClient, owner: str) -> None:
            lease = await client.grant_lease(rng.choice([2, 4]))
            for _ in range(rng.randrange(1, 3)):
                lock = await _acquire(client, lease, owner, timeout_s=60)
                locks.append(lock)
                check_one_owner()
                if rng.random() < 0.3:
                    client.stall()
                    asyncio.get_running_loop().call_later(rng.uniform(0, 8), client.resume)
                for _ in range(rng.randrange(4)):
                    await client.txn(lock.guard(), (Put(b"log", str(lock.token).encode()),))
                    check_one_owner()
            if rng.random() < 0.5:
                await lock.release()

        async def follow_log() -> None:
            async with server.client() as store, store.watch(b"log", start_revision=1) as watch:
                async for item in watch:
                    assert isinstance(item, WatchBatch)
                    tokens.append(int(item.events[0].kv.value))

        follower = asyncio.create_task(follow_log())
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for name in range(5):
                group.create_task(life(name))
        await asyncio.sleep(1)
        follower.cancel()
        server.key_space.validate()
        return tokens, server.key_space.revision

    tokens, revision = sim_loop.run(story(), seed=seed)
    assert tokens == sorted(tokens), "an older owner wrote after a newer one"
    assert len(set(tokens)) > 2, "the story has to have several owners to mean anything"
    assert sim_loop.run(story(), seed=seed) == (tokens, revision), "one seed, one story"
