"""Calls after one delay, by one timer: in order, not before their time, none after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

from neve.client.later import Later
from tests.sim.loop import run


def test_each_call_comes_when_its_own_delay_is_over() -> None:
    calls: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()

        def note(name: str) -> Callable[[], None]:
            return lambda: calls.append((name, round(loop.time() - begun_s, 6)))

        later = Later(2.0)
        later.call(note("a"))
        await asyncio.sleep(1.5)
        later.call(note("b"))
        later.call(note("c"))
        await asyncio.sleep(10)
        later.call(note("d"))
        await asyncio.sleep(10)

    run(main())
    assert calls == [("a", 2.0), ("b", 3.5), ("c", 3.5), ("d", 13.5)]


def test_a_call_that_asks_for_itself_waits_again_also_without_a_delay() -> None:
    async def main(delay_s: float) -> int:
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            if count < 5:
                later.call(again)

        later = Later(delay_s)
        later.call(again)
        await asyncio.sleep(100)
        return count

    assert run(main(3.0)) == 5
    assert run(main(0.0)) == 5


def test_nothing_is_called_after_the_end() -> None:
    calls: list[str] = []

    async def main() -> None:
        later = Later(1.0)
        later.call(later.close)
        later.call(lambda: calls.append("too late"))
        await asyncio.sleep(5)
        later.call(lambda: calls.append("later still"))
        await asyncio.sleep(5)

    run(main())
    assert calls == []


def test_a_timer_that_rings_a_little_early_is_not_set_again() -> None:
    """A loop's clock is coarse: it may wake up when a delay is not quite over."""
    timers = calls = 0

    def note() -> None:
        nonlocal calls
        calls += 1

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def early(when: float, callback: Callable[..., object], *args: Any, **how: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += callback == later._run
            return call_at(when - 0.0004, callback, *args, **how)

        later = Later(0.005)
        with mock.patch.object(loop, "call_at", early):
            later.call(note)
            later.call(note)
            await asyncio.sleep(1)

    run(main(), real_limit_s=10.0)
    assert (timers, calls) == (1, 2)
