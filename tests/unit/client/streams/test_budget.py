"""The bounds on what a client holds: in bytes, fair, and in the order of those who wait."""

from __future__ import annotations

import asyncio

import pytest

from neve.client.streams.sending.budget import Budget, Share
from neve.proto.errors import ShuttingDown


async def step(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def waiting(share: Share, size_bytes: int, order: list[str], name: str) -> asyncio.Task[None]:
    async def take() -> None:
        await share.wait_and_take(size_bytes)
        order.append(name)

    return asyncio.ensure_future(take())


async def test_a_writer_stops_at_its_own_bound_and_at_the_bound_of_all() -> None:
    budget = Budget(100)
    one, two = budget.share(60), budget.share(60)
    assert one.try_take(60)
    assert not one.try_take(1)
    assert two.try_take(40)
    assert not two.try_take(1)
    one.give_back(10)
    assert two.try_take(10)


async def test_what_alone_is_larger_than_a_bound_goes_when_nothing_else_is_held() -> None:
    share = Budget(100).share(60)
    assert share.try_take(1000)
    assert not share.try_take(1)
    share.give_back(1000)
    assert share.try_take(1)
    assert not share.try_take(1000)


async def test_those_who_wait_go_in_their_order_and_nobody_overtakes_them() -> None:
    share = Budget(100).share(100)
    order: list[str] = []
    share.take(100)
    tasks = [waiting(share, 90, order, "large"), waiting(share, 1, order, "small")]
    await step()
    assert order == []
    share.give_back(100)  # there is room for both, but they have not made their next step yet
    assert not share.try_take(1)
    await step()
    assert order == ["large", "small"]
    assert share.try_take(1)
    await asyncio.gather(*tasks)


async def test_a_writer_at_its_own_bound_keeps_no_other_waiting() -> None:
    budget = Budget(100)
    full, other = budget.share(50), budget.share(50)
    full.take(50)
    other.take(50)
    order: list[str] = []
    tasks = [waiting(full, 50, order, "full"), waiting(other, 10, order, "other")]
    await step()
    other.give_back(20)
    await step()
    assert order == ["other"]
    full.give_back(50)
    await step()
    assert order == ["other", "full"]
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_takes_nothing() -> None:
    share = Budget(100).share(100)
    share.take(100)
    order: list[str] = []
    before, admitted = waiting(share, 10, order, "before"), waiting(share, 20, order, "admitted")
    behind = waiting(share, 30, order, "behind")
    await step()
    before.cancel()
    await step()
    share.give_back(100)
    admitted.cancel()  # it was admitted, and has not gone on yet
    await step()
    assert order == ["behind"]
    assert share.used_bytes == 30
    await asyncio.gather(before, admitted, behind, return_exceptions=True)


async def test_nobody_waits_for_a_writer_that_is_over() -> None:
    budget = Budget(100)
    share = budget.share(100)
    share.take(100)
    task = waiting(share, 10, [], "x")
    await step()
    share.end(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await task
    assert budget.waiting == {}


async def test_two_who_wait_until_there_is_room_do_not_keep_each_other_from_it() -> None:
    """Each waits, then tries to take, then waits again: with one slot, they take turns and none spins."""
    share = Budget(100).share(10)
    share.take(10)
    tries = {"one": 0, "two": 0}

    async def ready_then_take(name: str) -> None:
        for _ in range(3):
            while True:
                await share.until_room(10)
                tries[name] += 1
                if share.try_take(10):
                    break
            await asyncio.sleep(0.001)
            share.give_back(10)

    tasks = [asyncio.ensure_future(ready_then_take(name)) for name in tries]
    await step()
    assert tries == {"one": 0, "two": 0}
    share.give_back(10)
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks)
    assert sum(tries.values()) < 50
    assert not share._budget.waiting


async def test_waiting_for_room_ends_with_the_writer_and_does_not_overtake_those_who_wait_to_take() -> None:
    share = Budget(100).share(10)
    share.take(10)
    order: list[str] = []

    async def watch() -> None:
        await share.until_room(5)
        order.append("watcher")

    watcher = asyncio.ensure_future(watch())
    taker = waiting(share, 5, order, "taker")
    await step()
    share.give_back(10)
    await asyncio.gather(watcher, taker)
    assert order == ["taker", "watcher"]
    share.take(5)
    watcher = asyncio.ensure_future(watch())
    await step()
    share.end(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await watcher


async def test_each_of_many_who_wait_is_looked_at_a_few_times_and_not_once_for_each_other() -> None:
    looks = 0

    class Counting(Share):
        def _fits(self, size_bytes: int) -> bool:
            nonlocal looks
            looks += 1
            return super()._fits(size_bytes)

    share, order, count = Counting(Budget(100), 100), list[str](), 2000
    share.take(100)
    tasks = [waiting(share, 1, order, str(number)) for number in range(count)]
    await step()
    for each in tasks[::3]:
        each.cancel()
    for _ in range(count // 50):
        share.give_back(share.used_bytes)
        await step()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [str(number) for number in range(count) if number % 3]
    assert looks < 10 * count
    assert not share._waiters
    assert share._admitted == 0
