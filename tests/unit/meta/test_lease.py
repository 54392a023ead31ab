"""Leases on virtual time: when they are lost, and that they say so before the store ends them."""

from __future__ import annotations

import asyncio
import random

import pytest

from neve.meta.lease import RATE_ERROR_MAX, Lease
from neve.meta.memory.client import MemoryStore
from neve.meta.memory.link import FaultPlan
from neve.proto.errors import InvalidArgument, LeaseLost, MetaUnavailable

CERTAIN_S = 9.0 * (1 - RATE_ERROR_MAX)  # of a lease of 9 s


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


class ScriptedKeeper:
    """Answers each keep-alive with the next of `answers`: a time to live, an error, or an event to wait for."""

    def __init__(self, *answers: float | Exception | asyncio.Event) -> None:
        self.answers = list(answers)
        self.revoked: list[int] = []

    async def keep_alive(self, lease_id: int, *, timeout_s: float) -> float:
        answer = self.answers.pop(0) if self.answers else MetaUnavailable()
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return 9.0
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def revoke(self, lease_id: int) -> None:
        self.revoked.append(lease_id)


@pytest.mark.sim(seed=1)
async def test_a_lease_is_kept_alive_far_beyond_its_time_to_live() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(3)
        await store.put(b"k", b"v", lease_id=lease.lease_id)
        await asyncio.sleep(1000)
        assert lease.alive()
        assert 1.9 < lease.remaining_s() <= 3.0
        assert await store.get(b"k") is not None


@pytest.mark.sim(seed=1)
async def test_a_lease_that_nobody_renews_ends_with_its_keys_in_one_revision() -> None:
    server = MemoryStore()
    async with server.client() as store, server.client() as other:
        lease = await store.grant_lease(3)
        await store.put(b"a", b"1", lease_id=lease.lease_id)
        await store.put(b"b", b"2", lease_id=lease.lease_id)
        await store.put(b"c", b"3", lease_id=lease.lease_id)
        before = await store.put(b"c", b"3")  # off the lease again
        store.disconnect()
        await asyncio.sleep(4)
        assert lease.lost.is_set()
        assert [kv.key for kv in (await other.range_all(b"c")).kvs] == [b"c"]
        assert await other.get(b"a") is None
        assert await other.revision() == before + 1


@pytest.mark.sim(seed=1)
async def test_while_the_store_does_not_answer_a_timer_declares_the_loss() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(3)
        told: list[str] = []
        lease.lost.add_callback(told.append)
        loop = asyncio.get_running_loop()
        store.stall()
        granted_s = loop.time()
        await lease.lost.wait()
        assert loop.time() - granted_s == pytest.approx(3.0 * (1 - RATE_ERROR_MAX))
        assert told == [lease.lost.reason]
        with pytest.raises(LeaseLost, match="time to live"):
            lease.ensure_alive()


@pytest.mark.parametrize("seed", range(30))
def test_a_client_gives_its_lease_up_before_the_store_does(seed: int) -> None:
    """The deadline counts from sending, so at the moment of the loss the key must still stand in the store."""
    from tests.sim import loop as sim_loop

    async def story() -> None:
        rng = random.Random(seed)
        server = MemoryStore()
        plan = FaultPlan(rng=rng, delay_s_min=0.0, delay_s_max=0.9, lost_after_apply_share=0.3)
        async with server.client(plan=plan) as store:
            lease = None
            while lease is None:
                try:
                    lease = await store.grant_lease(3)
                    await store.put(b"k", b"v", lease_id=lease.lease_id)
                except Exception:  # noqa: BLE001 - a fault of the plan: begin again
                    if lease is not None:
                        lease.abandon("the put failed")
                    lease = None
            stands: list[bool] = []
            lease_id = lease.lease_id
            lease.lost.add_callback(lambda _: stands.append(lease_id in server.key_space.leases))
            await asyncio.sleep(rng.uniform(0, 20))
            store.stall()
            await lease.lost.wait()
            assert stands == [True]

    sim_loop.run(story(), seed=seed)


@pytest.mark.sim(seed=1)
async def test_ensure_alive_compares_the_clock_before_any_timer_has_run() -> None:
    """A process that was stopped (SIGSTOP) and goes on: the clock has moved, no callback has run."""
    clock = FakeClock()
    lease = Lease(ScriptedKeeper(), lease_id=7, ttl_s=9.0, sent_s=clock(), clock=clock)
    lease.ensure_alive()
    clock.now_s += 8.9
    lease.ensure_alive()
    clock.now_s += 0.01  # 99 hundredths of its time: the store's clock may run that much faster
    with pytest.raises(LeaseLost):
        lease.ensure_alive()
    assert lease.lost.is_set()
    clock.now_s -= 5
    assert not lease.alive(), "lost is for ever"
    await lease.stopped()


@pytest.mark.sim(seed=1)
async def test_the_grants_own_delay_counts_against_the_lease() -> None:
    clock = FakeClock()
    sent_s = clock()
    clock.now_s += 4.0  # how long the grant took
    lease = Lease(ScriptedKeeper(), lease_id=7, ttl_s=9.0, sent_s=sent_s, clock=clock)
    assert lease.remaining_s() == pytest.approx(CERTAIN_S - 4.0)
    lease.abandon("done")
    await lease.stopped()


@pytest.mark.sim(seed=1)
async def test_an_answer_after_the_deadline_does_not_bring_the_lease_back() -> None:
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    lease = Lease(ScriptedKeeper(answered), lease_id=7, ttl_s=9.0, sent_s=loop.time(), clock=loop.time)
    await asyncio.sleep(9.5)  # the keep-alive was sent at 3 s and has not been answered
    answered.set()
    await asyncio.sleep(0.1)
    assert not lease.alive()


@pytest.mark.sim(seed=1)
async def test_an_answer_that_waited_while_the_process_was_stopped_does_not_bring_the_lease_back() -> None:
    """After SIGCONT the answer may be read before any timer runs, and it would extend the lease beyond now."""
    clock = FakeClock()
    answered = asyncio.Event()
    lease = Lease(ScriptedKeeper(answered), lease_id=7, ttl_s=9.0, sent_s=clock(), clock=clock)
    clock.now_s += 5.0
    await asyncio.sleep(3.5)  # the keep-alive is sent, by the lease's clock 5 s after the grant
    clock.now_s += 5.0  # stopped, beyond the deadline
    answered.set()
    await asyncio.sleep(0.1)
    assert lease.lost.is_set()


@pytest.mark.sim(seed=1)
async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    answered = asyncio.Event()
    lease = Lease(ScriptedKeeper(answered), lease_id=7, ttl_s=9.0, sent_s=start_s, clock=loop.time)
    await asyncio.sleep(5.0)
    answered.set()  # sent at 3 s, answered at 5 s
    await lease.lost.wait()
    assert loop.time() - start_s == pytest.approx(3.0 + CERTAIN_S)


@pytest.mark.sim(seed=1)
async def test_failed_keep_alives_are_tried_again_within_the_time_to_live() -> None:
    loop = asyncio.get_running_loop()
    keeper = ScriptedKeeper(MetaUnavailable(), MetaUnavailable(), MetaUnavailable(), 9.0)
    lease = Lease(keeper, lease_id=7, ttl_s=9.0, sent_s=loop.time(), clock=loop.time)
    await asyncio.sleep(9.5)
    assert lease.alive()
    assert keeper.answers == []
    lease.abandon("done")
    await lease.stopped()


@pytest.mark.sim(seed=1)
async def test_a_lease_that_somebody_revoked_is_lost_at_the_next_word_from_the_store() -> None:
    server = MemoryStore()
    async with server.client() as store, server.client() as operator:
        by_keep_alive = await store.grant_lease(3)
        by_write = await store.grant_lease(300)
        await operator.revoke(by_keep_alive.lease_id)
        await operator.revoke(by_write.lease_id)
        with pytest.raises(LeaseLost):
            await store.put(b"k", b"v", lease_id=by_write.lease_id)
        assert by_write.lost.is_set()
        await by_keep_alive.lost.wait()
        assert by_keep_alive.lost.reason == "the store has ended it"


@pytest.mark.sim(seed=1)
async def test_revoking_is_a_loss_here_even_if_the_store_does_not_answer() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(3)
        store.disconnect()
        with pytest.raises(MetaUnavailable):
            await lease.revoke()
        assert lease.lost.is_set()


@pytest.mark.sim(seed=1)
async def test_a_bug_in_the_keeper_loses_the_lease_instead_of_hiding() -> None:
    loop = asyncio.get_running_loop()
    lease = Lease(ScriptedKeeper(ZeroDivisionError()), lease_id=7, ttl_s=9.0, sent_s=loop.time(), clock=loop.time)
    await asyncio.sleep(3.1)
    assert lease.lost.is_set()
    assert "keep-alive task failed" in lease.lost.reason


@pytest.mark.sim(seed=1)
async def test_closing_the_store_loses_its_leases() -> None:
    store = MemoryStore().client()
    lease = await store.grant_lease(3)
    await store.close()
    assert lease.lost.is_set()
    with pytest.raises(MetaUnavailable):
        await store.get(b"k")


@pytest.mark.sim(seed=1)
async def test_a_callback_that_fails_does_not_keep_the_loss_from_the_others() -> None:
    async with MemoryStore().client() as store:
        lease = await store.grant_lease(3)
        told: list[str] = []

        def broken(_: str) -> None:
            raise ZeroDivisionError

        lease.lost.add_callback(broken)
        lease.lost.add_callback(told.append)
        lease.abandon("enough")
        lease.lost.add_callback(told.append)  # too late to wait: called at once
        assert told == ["enough", "enough"]


@pytest.mark.sim(seed=1)
async def test_a_time_to_live_below_a_second_is_refused() -> None:
    async with MemoryStore().client() as store:
        with pytest.raises(InvalidArgument):
            await store.grant_lease(0)


@pytest.mark.sim(seed=1)
async def test_nonces_are_unique_over_leases_and_calls() -> None:
    async with MemoryStore().client() as store:
        leases = [await store.grant_lease(3) for _ in range(3)]
        nonces = [lease.next_nonce() for lease in leases for _ in range(3)]
        assert len(set(nonces)) == 9
