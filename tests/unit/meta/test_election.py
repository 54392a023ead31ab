"""Elections on virtual time: who leads, who is told, and that a deposed leader changes nothing."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from neve.meta.election import Election, Leadership, _first_created
from neve.meta.memory.client import MemoryClient, MemoryStore, MemoryWatch
from neve.meta.memory.link import Fault, FaultPlan
from neve.meta.store import WatchBatch
from neve.meta.txn import KeyRange, KeyValue, Put, TxnResult
from neve.proto.errors import LeaseLost, MetaUnavailable, NeveError, NotLeader, PermissionDenied
from tests.sim import loop as sim_loop

PREFIX = b"/c/leader"


async def _campaign(store: MemoryClient, name: str, *, ttl_s: int = 3) -> Leadership:
    return await Election(store, PREFIX).campaign(name.encode(), await store.grant_lease(ttl_s))


async def _candidates(store: MemoryClient) -> list[bytes]:
    return [kv.value for kv in (await store.range_all(KeyRange.prefix(PREFIX + b"/"))).kvs]


def _delay_next_txn(store: MemoryClient, delay_s: float) -> None:
    """One transaction is slow on its way, and those that follow overtake it."""
    transact = store.txn

    async def send_slowly(*request: Any) -> TxnResult:
        store.txn = transact  # type: ignore[method-assign]
        store.plan.delay_s_min = store.plan.delay_s_max = delay_s
        sending = asyncio.create_task(transact(*request))
        await asyncio.sleep(0)
        store.plan.delay_s_min = store.plan.delay_s_max = 0.0
        return await sending

    store.txn = send_slowly  # type: ignore[method-assign,assignment]


async def _settle() -> None:
    """Let everything that is ready run: with no delay on the links, that needs almost no time."""
    await asyncio.sleep(0.01)


@pytest.mark.sim(seed=1)
async def test_candidates_lead_in_the_order_in_which_they_entered() -> None:
    server = MemoryStore()
    clients = [server.client() for _ in range(5)]
    led: list[int] = []

    async def candidate(number: int) -> None:
        leadership = await _campaign(clients[number], str(number))
        led.append(number)
        await asyncio.sleep(1)
        await leadership.give_up("resigned")

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(candidate(number))
            await _settle()
    assert led == [0, 1, 2, 3, 4]
    for client in clients:
        await client.close()


@pytest.mark.sim(seed=1)
async def test_a_candidate_that_leaves_the_queue_does_not_let_the_next_one_jump_it() -> None:
    server = MemoryStore()
    first, second, third = (server.client() for _ in range(3))
    leader = await _campaign(first, "first")
    waiting = [asyncio.create_task(_campaign(second, "second"))]
    await _settle()
    waiting.append(asyncio.create_task(_campaign(third, "third")))
    await _settle()
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    await _settle()
    assert not waiting[1].done(), "the first still leads"
    await leader.give_up("resigned")
    assert (await waiting[1]).value == b"third"
    for client in (first, second, third):
        await client.close()


@pytest.mark.sim(seed=1)
async def test_a_cancelled_campaign_withdraws_its_key_at_once() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        await _campaign(first, "first")
        waiting = asyncio.create_task(_campaign(second, "second", ttl_s=1000))
        await _settle()
        assert await _candidates(first) == [b"first", b"second"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await _candidates(first) == [b"first"]


@pytest.mark.sim(seed=1)
async def test_t14_a_leader_cut_off_for_longer_than_its_lease_stops_and_its_writes_are_refused() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        old = await _campaign(first, "first")
        first.stall()
        new = await _campaign(second, "second")
        with pytest.raises(LeaseLost):
            old.ensure()
        assert old.lost.is_set()
        first.resume()
        result = await first.txn(old.guard(), (Put(b"state", b"old leader"),))
        assert not result.succeeded
        assert (await second.txn(new.guard(), (Put(b"state", b"new leader"),))).succeeded
        assert new.create_revision > old.create_revision


@pytest.mark.sim(seed=1)
async def test_a_write_that_a_deposed_leader_sent_in_time_is_refused_when_it_arrives_late() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        old = await _campaign(first, "first")
        first.stall()
        late = asyncio.create_task(first.txn(old.guard(), (Put(b"state", b"old leader"),)))
        await _campaign(second, "second")
        first.resume()
        assert not (await late).succeeded
        assert await second.get(b"state") is None


@pytest.mark.sim(seed=1)
async def test_a_leader_whose_key_was_deleted_is_told_and_may_not_go_on() -> None:
    server = MemoryStore()
    async with server.client() as store, server.client() as operator:
        leadership = await _campaign(store, "first")
        told: list[str] = []
        leadership.lost.add_callback(told.append)
        leadership.ensure()
        await operator.delete(leadership.key)
        await _settle()
        assert told == ["the key was deleted"]
        with pytest.raises(NotLeader):
            leadership.ensure()
        assert leadership.lease.alive()


@pytest.mark.sim(seed=1)
async def test_a_leader_deleted_and_put_again_by_a_stranger_is_not_the_leader() -> None:
    """The watch was down meanwhile and the history is compacted: only the create revision tells."""
    server = MemoryStore()
    async with server.client() as store, server.client() as operator:
        leadership = await _campaign(store, "first", ttl_s=60)
        await _settle()
        store.interrupt_watches(5)
        await operator.delete(leadership.key)
        await operator.put(leadership.key, leadership.value, lease_id=leadership.lease.lease_id)
        await operator.compact(await operator.revision())
        assert not leadership.lost.is_set()
        assert not (await store.txn(leadership.guard(), (Put(b"state", b"x"),))).succeeded
        assert await leadership.lost.wait() == "the key was replaced"


@pytest.mark.sim(seed=1)
async def test_a_candidate_whose_key_an_operator_deleted_does_not_become_leader() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        leader = await _campaign(first, "first")
        waiting = asyncio.create_task(_campaign(second, "second"))
        await _settle()
        kvs = (await first.range_all(KeyRange.prefix(PREFIX + b"/"))).kvs
        await first.delete(next(kv.key for kv in kvs if kv.key != leader.key))
        await leader.give_up("resigned")
        with pytest.raises(NotLeader):
            await waiting


@pytest.mark.sim(seed=1)
async def test_a_candidate_that_loses_its_lease_while_waiting_says_so() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        await _campaign(first, "first")
        waiting = asyncio.create_task(_campaign(second, "second"))
        await _settle()
        second.disconnect()
        with pytest.raises(LeaseLost):
            await waiting


@pytest.mark.sim(seed=1)
async def test_t15_a_leader_that_cannot_load_resigns_so_that_the_next_one_leads() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:

        async def lead_and_fail() -> None:
            async with await _campaign(first, "first", ttl_s=1000):
                await asyncio.sleep(1)
                raise MetaUnavailable(detail="loading failed")

        waiting = asyncio.create_task(lead_and_fail())
        await _settle()
        next_leader = await _campaign(second, "second", ttl_s=1000)
        with pytest.raises(MetaUnavailable, match="loading failed"):
            await waiting
        next_leader.ensure()


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_BEFORE_APPLY, Fault.LOST_AFTER_APPLY])
async def test_a_campaign_survives_an_unknown_outcome_and_enters_once(fault: Fault) -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(10)
        store.plan.scripted = deque([fault])
        leadership = await Election(store, PREFIX).campaign(b"me", lease)
        leadership.ensure()
        kv = await store.get(leadership.key)
        assert kv is not None
        assert (kv.version, kv.create_revision) == (1, leadership.create_revision)
        assert (await store.txn(leadership.guard(), (Put(b"state", b"x"),))).succeeded


# --- one lease, several campaigns ---------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_a_new_term_on_the_same_lease_refuses_the_delayed_writes_of_the_earlier_one() -> None:
    server = MemoryStore()
    async with server.client(call_timeout_s=2.0) as store, server.client() as other:
        lease = await store.grant_lease(30)
        first = await Election(store, PREFIX).campaign(b"me", lease)
        store.plan.delay_s_min = store.plan.delay_s_max = 8.0
        late = asyncio.create_task(store.txn(first.guard(), (Put(b"state", b"first term"),)))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await first.give_up("resigned")  # under way for as long
        store.plan.delay_s_min = store.plan.delay_s_max = 0.0
        second = await Election(store, PREFIX).campaign(b"me", lease)
        assert second.create_revision > first.create_revision
        await asyncio.gather(late, return_exceptions=True)
        await asyncio.sleep(20)
        assert await other.get(b"state") is None
        second.ensure()
        assert (await store.txn(second.guard(), (Put(b"state", b"second term"),))).succeeded


@pytest.mark.sim(seed=1)
async def test_a_delayed_withdrawal_does_not_depose_the_next_campaign_on_the_lease() -> None:
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as store, server.client() as other:
        lease = await store.grant_lease(30)
        leader = await _campaign(other, "other", ttl_s=30)
        waiting = asyncio.create_task(Election(store, PREFIX).campaign(b"me", lease))
        await _settle()
        store.plan.delay_s_min = store.plan.delay_s_max = 4.0
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        store.plan.delay_s_min = store.plan.delay_s_max = 0.0
        await leader.give_up("resigned")
        leadership = await Election(store, PREFIX).campaign(b"me", lease)
        await asyncio.sleep(20)
        leadership.ensure()


@pytest.mark.sim(seed=1)
async def test_a_campaign_cancelled_while_it_enters_does_not_touch_the_next_on_the_lease() -> None:
    """Neither its entry nor its withdrawal has arrived when the next campaign has won."""
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as store:
        lease = await store.grant_lease(30)
        _delay_next_txn(store, 4.0)
        entering = asyncio.create_task(Election(store, PREFIX).campaign(b"me", lease))
        await _settle()
        _delay_next_txn(store, 5.0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        leadership = await Election(store, PREFIX).campaign(b"me", lease)
        await asyncio.sleep(20)
        leadership.ensure()
        assert await _candidates(store) == [b"me"]


@pytest.mark.sim(seed=1)
async def test_a_candidate_cancelled_in_an_outage_withdraws_when_the_store_is_back() -> None:
    """Its lease is renewed again, so without that nobody behind it would ever lead."""
    server = MemoryStore()
    async with server.client() as first, server.client() as second, server.client() as third:
        leader = await _campaign(first, "first", ttl_s=10)
        lease = await second.grant_lease(10)
        waiting = asyncio.create_task(Election(second, PREFIX).campaign(b"second", lease))
        await _settle()
        second.disconnect()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        second.reconnect()
        await leader.give_up("resigned")
        async with asyncio.timeout(100):
            await _campaign(third, "third", ttl_s=10)
        assert lease.alive()


@pytest.mark.sim(seed=1)
async def test_an_entry_that_arrives_after_the_resignation_leaves_no_candidate_behind() -> None:
    server = MemoryStore()
    async with server.client(call_timeout_s=1.0) as store, server.client() as other:
        lease = await store.grant_lease(30)
        _delay_next_txn(store, 5.0)
        start_s = asyncio.get_running_loop().time()
        leadership = await Election(store, PREFIX).campaign(b"me", lease)
        await leadership.give_up("resigned")
        assert asyncio.get_running_loop().time() - start_s < 3, "the first entry is still on its way"
        await asyncio.sleep(30)
        assert await _candidates(other) == []
        assert lease.alive()


@pytest.mark.sim(seed=1)
async def test_a_candidates_key_that_a_stranger_deleted_and_put_again_does_not_lead() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second:
        leader = await _campaign(first, "first")
        waiting = asyncio.create_task(_campaign(second, "second"))
        await _settle()
        kvs = (await first.range_all(KeyRange.prefix(PREFIX + b"/"))).kvs
        (mine,) = [kv for kv in kvs if kv.key != leader.key]
        second.stall()
        await first.delete(mine.key)
        await first.put(mine.key, mine.value, lease_id=mine.lease_id)
        await leader.give_up("resigned")
        second.resume()
        with pytest.raises(NotLeader):
            await waiting
        assert await first.get(mine.key) is not None, "what a stranger has put is not ours to withdraw"


@pytest.mark.sim(seed=1)
async def test_each_candidate_watches_its_predecessor_alone() -> None:
    server = MemoryStore()
    clients = [server.client() for _ in range(6)]
    leader = await _campaign(clients[0], "0")
    waiting = []
    for number, client in enumerate(clients[1:], start=1):
        waiting.append(asyncio.create_task(_campaign(client, str(number))))
        await _settle()
    kvs = sorted((await clients[0].range_all(KeyRange.prefix(PREFIX + b"/"))).kvs, key=lambda kv: kv.create_revision)
    watched = [[watch._keys for watch in client.watches] for client in clients]
    assert watched[1:] == [[KeyRange(kv.key)] for kv in kvs[:-1]]
    await leader.give_up("resigned")
    await _settle()
    assert [task.done() for task in waiting] == [True] + [False] * 4, "one is woken, not all"
    for client in clients:
        await client.close()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.sim(seed=1)
async def test_a_leader_whose_watch_fails_stops_leading_although_its_lease_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_: MemoryWatch) -> None:
        raise PermissionDenied(action="watch this key")

    async with MemoryStore().client() as store:
        with monkeypatch.context() as broken:
            broken.setattr(MemoryWatch, "__anext__", fail)
            leadership = await _campaign(store, "me", ttl_s=10)
            assert await leadership.lost.wait() == "its watch ended"
        assert leadership.lease.alive()
        with pytest.raises(NotLeader):
            leadership.ensure()
        # Its key still stands. Whoever campaigns again on the lease must not wait for itself.
        again = await Election(store, PREFIX).campaign(b"me again", leadership.lease)
        assert again.create_revision > leadership.create_revision
        assert not (await store.txn(leadership.guard(), (Put(b"state", b"x"),))).succeeded


@pytest.mark.sim(seed=1)
async def test_observers_see_every_leader_and_the_time_without_one() -> None:
    server = MemoryStore()
    async with server.client() as first, server.client() as second, server.client() as watcher:
        seen: list[bytes | None] = []

        async def observe() -> None:
            async for kv in Election(watcher, PREFIX).observe():
                seen.append(kv.value if kv else None)  # noqa: PERF401 - read while it grows

        observer = asyncio.create_task(observe())
        await _settle()
        leadership = await _campaign(first, "first")
        await _settle()
        await first.put(leadership.key, b"first, moved", lease_id=leadership.lease.lease_id)
        waiting = asyncio.create_task(_campaign(second, "second"))
        await _settle()
        watcher.interrupt_watches(2)
        await first.compact(await first.revision())
        await leadership.give_up("resigned")
        leadership = await waiting
        await asyncio.sleep(3)
        await leadership.give_up("resigned")
        await _settle()
        observer.cancel()
        assert seen == [None, b"first", b"first, moved", b"second", None]


class _Town:
    """Candidates that campaign, write under guard, resign, crash and lose their connection, all by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = MemoryStore()
        self.leaderships: list[Leadership] = []
        self.terms_written: list[int] = []

    def check_one_leader(self) -> None:
        """Nobody's clock is ahead in this world, so at most one leadership may pass `ensure`."""
        valid = [leadership for leadership in self.leaderships if self._passes(leadership)]
        assert len(valid) <= 1, [leadership.value for leadership in valid]
        self.leaderships = valid
        self.server.key_space.validate()

    @staticmethod
    def _passes(leadership: Leadership) -> bool:
        try:
            leadership.ensure()
        except (LeaseLost, NotLeader):
            return False
        return True

    async def live(self, name: int) -> None:
        """One candidate's life: many terms, with faults in between."""
        rng = self.rng
        for _ in range(4):
            plan = FaultPlan(rng, 0.0, 0.2, 0.05, 0.05, 0.05)
            client = self.server.client(plan=plan, call_timeout_s=1.0)
            try:
                async with client:
                    await self._term(client, f"{name}")
            except NeveError:
                await asyncio.sleep(rng.uniform(0, 2))

    async def _term(self, client: MemoryClient, name: str) -> None:
        rng = self.rng
        leadership = await _campaign(client, name, ttl_s=rng.choice([2, 5]))
        self.leaderships.append(leadership)
        self.check_one_leader()
        if rng.random() < 0.4:
            asyncio.get_running_loop().call_later(rng.uniform(0, 3), client.stall)
            asyncio.get_running_loop().call_later(rng.uniform(3, 12), client.resume)
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(rng.uniform(0, 1))
            term = str(leadership.create_revision).encode()
            await client.txn(leadership.guard(), (Put(b"log", term),))
            self.check_one_leader()
        if rng.random() < 0.5:
            await leadership.give_up("resigned")  # otherwise its store is closed under it: a crash

    async def follow_log(self) -> None:
        async with self.server.client() as store, store.watch(b"log", start_revision=1) as watch:
            async for item in watch:
                assert isinstance(item, WatchBatch)
                self.terms_written.append(int(item.events[0].kv.value))


@pytest.mark.parametrize("seed", range(20))
def test_many_candidates_with_faults_never_lead_at_once_and_no_old_term_writes(seed: int) -> None:
    async def story() -> tuple[list[int], int]:
        town = _Town(seed)
        follower = asyncio.create_task(town.follow_log())
        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for name in range(6):
                group.create_task(town.live(name))
        await asyncio.sleep(1)
        follower.cancel()
        return town.terms_written, town.server.key_space.revision

    terms, revision = sim_loop.run(story(), seed=seed)
    assert terms == sorted(terms), "a deposed leader's write was applied after its successor's"
    assert len(set(terms)) > 1, "the story has to have several leaders to mean anything"
    assert sim_loop.run(story(), seed=seed) == (terms, revision), "one seed, one story"


def test_the_first_created_key_leads_whatever_its_name() -> None:
    kvs = [KeyValue(b"a", b"", 9, 9, 1), KeyValue(b"b", b"", 7, 12, 3)]
    assert _first_created(kvs) == kvs[1]
    assert _first_created([]) is None
