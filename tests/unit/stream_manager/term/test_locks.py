"""Locks within one manager."""

from __future__ import annotations

import asyncio
import random

import pytest

from neve.stream_manager.term.locks import LockKind, LockTable


@pytest.mark.sim(seed=1)
async def test_one_holder_at_a_time_and_no_deadlock_whatever_is_taken_together() -> None:
    locks = LockTable()
    rng = random.Random(3)
    held: set[int] = set()
    done = 0

    async def work() -> None:
        nonlocal done
        wanted = rng.sample(range(6), rng.randrange(1, 4))
        async with locks.hold(streams=wanted):
            assert held.isdisjoint(wanted)
            held.update(wanted)
            await asyncio.sleep(rng.random())
            held.difference_update(wanted)
        done += 1

    await asyncio.gather(*(work() for _ in range(100)))
    assert done == 100
    assert not any(locks.held(LockKind.STREAM, number) for number in range(6))


@pytest.mark.sim(seed=1)
async def test_waiters_get_it_in_the_order_in_which_they_came() -> None:
    locks = LockTable()
    order: list[int] = []

    async def work(number: int) -> None:
        async with locks.hold(extents=[1]):
            order.append(number)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.sim(seed=1)
async def test_whoever_is_cancelled_while_waiting_keeps_nothing() -> None:
    locks = LockTable()

    async def hold(*streams: int, for_s: float) -> None:
        async with locks.hold(streams=streams):
            await asyncio.sleep(for_s)

    first = asyncio.ensure_future(hold(2, for_s=1.0))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(hold(1, 2, 3, for_s=1.0))
    await asyncio.sleep(0.1)
    assert locks.held(LockKind.STREAM, 1)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert not locks.held(LockKind.STREAM, 1)
    await first
    assert not locks.held(LockKind.STREAM, 2)


@pytest.mark.sim(seed=1)
async def test_a_lock_given_to_somebody_who_is_cancelled_in_that_moment_goes_on() -> None:
    locks = LockTable()
    got: list[str] = []

    async def hold(name: str) -> None:
        async with locks.hold(streams=[1]):
            got.append(name)

    async with locks.hold(streams=[1]):
        second = asyncio.ensure_future(hold("second"))
        third = asyncio.ensure_future(hold("third"))
        await asyncio.sleep(0.1)
    second.cancel()  # it was woken, and has not run yet
    await asyncio.gather(second, third, return_exceptions=True)
    assert got == ["third"]
    assert not locks.held(LockKind.STREAM, 1)
