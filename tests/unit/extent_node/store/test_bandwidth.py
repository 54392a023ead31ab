"""The pacer, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from neve.extent_node.store.bandwidth import Pacer


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.sim(seed=1)
async def test_no_window_lets_more_through_than_rate_and_burst() -> None:
    pacer = Pacer(bytes_per_s=1000, burst_bytes=500)
    moved: list[tuple[float, int]] = []

    async def take_some(sizes: list[int]) -> None:
        for size_bytes in sizes:
            await pacer.take(size_bytes)
            moved.append((_now_s(), size_bytes))

    async with asyncio.TaskGroup() as group:
        group.create_task(take_some([100] * 40))
        group.create_task(take_some([300] * 10))
        group.create_task(take_some([500, 1, 499, 250]))
    sizes_max = 500
    for first in range(len(moved)):
        for last in range(first, len(moved)):
            window_s = moved[last][0] - moved[first][0]
            assert sum(size for _, size in moved[first : last + 1]) <= 500 + sizes_max + 1000 * window_s + 1e-3
    # And not slower than it must be: 8,250 bytes, of which 500 are free.
    assert moved[-1][0] - 1_000_000 == pytest.approx((8250 - 500) / 1000, abs=1e-3)


@pytest.mark.sim
async def test_an_idle_pacer_saves_up_no_more_than_its_burst() -> None:
    pacer = Pacer(bytes_per_s=1000, burst_bytes=100)
    await pacer.take(100)
    await asyncio.sleep(3600)
    begun_s = _now_s()
    await pacer.take(100)
    assert _now_s() == begun_s
    await pacer.take(1000)
    assert _now_s() - begun_s == pytest.approx(1.0)


@pytest.mark.sim
async def test_takers_are_let_go_in_the_order_of_asking() -> None:
    pacer = Pacer(bytes_per_s=100, burst_bytes=0)
    order: list[str] = []

    async def take(name: str, size_bytes: int) -> None:
        await pacer.take(size_bytes)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name, size_bytes in (("large", 10_000), ("small", 1), ("smaller", 1)):
            group.create_task(take(name, size_bytes))
    assert order == ["large", "small", "smaller"]


@pytest.mark.sim
async def test_what_a_cancelled_taker_did_not_use_is_given_back() -> None:
    pacer = Pacer(bytes_per_s=100, burst_bytes=0)
    begun_s = _now_s()
    waiting = asyncio.create_task(pacer.take(1_000_000))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await pacer.take(200)
    assert _now_s() - begun_s == pytest.approx(3.0)


@pytest.mark.sim
async def test_a_rate_of_zero_is_no_bound() -> None:
    pacer = Pacer(bytes_per_s=0, burst_bytes=0)
    begun_s = _now_s()
    for _ in range(100):
        await pacer.take(1 << 40)
    assert _now_s() == begun_s
