"""The deterministic loop: virtual time, exact replay, and no way out into the real world."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from tests.sim import loop as sim_loop


async def _story() -> str:
    """Tasks that race on seeded delays, and note who came first."""
    loop = sim_loop.current()

    async def racer(name: int) -> None:
        for _ in range(20):
            await asyncio.sleep(loop.rng.expovariate(10))
            loop.note(f"racer {name} {loop.rng.random()}")

    async with asyncio.TaskGroup() as group:
        for name in range(10):
            group.create_task(racer(name))
    return loop.trace_hash()


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    async def sleeper() -> float:
        started_s = sim_loop.current().time()
        await asyncio.sleep(3600)
        return sim_loop.current().time() - started_s

    started_s = time.monotonic()
    assert sim_loop.run(sleeper()) == pytest.approx(3600)
    # Not a speed test: an hour against anything a slow machine could need.
    assert time.monotonic() - started_s < 600


def test_a_seed_replays_exactly_and_another_seed_differs() -> None:
    first, again, other = (sim_loop.run(_story(), seed=seed) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_a_seed_replays_exactly_in_another_process() -> None:
    code = "from tests.unit import test_sim_loop as t; print(t.sim_loop.run(t._story(), seed=7))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.strip() == sim_loop.run(_story(), seed=7)


def test_a_seed_replays_exactly_where_asyncio_keeps_tasks_in_sets() -> None:
    """A TaskGroup cancels the tasks of a set, and asyncio.wait returns sets."""

    async def story() -> str:
        loop = sim_loop.current()

        async def victim(name: int) -> None:
            try:
                await asyncio.sleep(100 + name)
            finally:
                loop.note(f"cancelled {name}")

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ZeroDivisionError

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for name in range(40):
                    group.create_task(victim(name))
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await all_of_them()
        futures = [loop.create_future() for _ in range(40)]
        for number, future in enumerate(futures):
            loop.call_later(1, future.set_result, number)
        done, _ = await asyncio.wait(futures)
        loop.note(" ".join(str(future.result()) for future in done))
        return loop.trace_hash()

    clutter = []
    hashes = set()
    for _ in range(5):
        hashes.add(sim_loop.run(story(), seed=7))
        clutter.append(bytearray(10_007))  # moves the addresses of what comes next
    assert len(hashes) == 1


def test_timers_fire_in_order_of_their_time() -> None:
    async def main() -> list[int]:
        fired: list[int] = []
        loop = asyncio.get_running_loop()
        for delay_s in (3, 1, 2):
            loop.call_later(delay_s, fired.append, delay_s)
        await asyncio.sleep(4)
        return fired

    assert sim_loop.run(main()) == [1, 2, 3]


def test_waiting_for_what_can_never_happen_is_a_deadlock_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(sim_loop.Deadlock):
        sim_loop.run(main())


def test_a_livelock_on_virtual_time_ends_with_the_real_time_it_was_given() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(sim_loop.TooLong):
        sim_loop.run(main(), real_limit_s=0.2)


@pytest.mark.sim(seed=3)
async def test_timeouts_run_on_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await asyncio.sleep(2000)
    assert sim_loop.current().seed == 3


@pytest.mark.sim
async def test_blocking_work_runs_inline_and_its_errors_arrive() -> None:
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, lambda: 41 + 1) == 42
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, lambda: 1 // 0)
    assert await asyncio.to_thread(lambda: "inline") == "inline"


def test_calls_in_threads_that_are_under_way_together_begin_and_end_in_any_order_by_the_seed() -> None:
    async def story() -> tuple[str, ...]:
        seen: list[str] = []

        async def call(name: str) -> None:
            await asyncio.get_running_loop().run_in_executor(None, seen.append, f"{name} runs")
            seen.append(f"{name} is back")

        await asyncio.gather(call("a"), call("b"))
        return tuple(seen)

    stories = [sim_loop.run(story(), seed=seed) for seed in range(40)]
    assert stories == [sim_loop.run(story(), seed=seed) for seed in range(40)]
    assert {seen[0] for seen in stories} == {"a runs", "b runs"}
    # Between the end of a call and what follows from it the other one runs.
    assert any(seen[:2] == ("a runs", "b runs") for seen in stories)
    assert any(seen[:2] == ("a runs", "a is back") for seen in stories)


@pytest.mark.sim
async def test_sockets_and_subprocesses_are_refused() -> None:
    with pytest.raises(sim_loop.NotSimulated):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(sim_loop.NotSimulated):
        await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    with pytest.raises(sim_loop.NotSimulated):
        await asyncio.create_subprocess_exec("true")
