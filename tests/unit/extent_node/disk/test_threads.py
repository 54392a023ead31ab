"""Threads for what blocks: results and errors come back to the loop, and no more run at a time than allowed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from neve.extent_node.disk.threads import Threads


async def test_results_and_errors_come_back_in_the_loops_thread() -> None:
    threads = Threads(2, name="test")
    try:
        here = threading.get_ident()
        assert await threads.run(threading.get_ident) != here
        assert await threads.run(divmod, 7, 3) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(next, iter(()))
    finally:
        threads.shutdown()


async def test_no_more_run_at_a_time_than_there_are_threads() -> None:
    threads = Threads(3, name="test")
    lock, enough = threading.Lock(), threading.Event()
    running = running_max = 0

    def work() -> None:
        nonlocal running, running_max
        with lock:
            running += 1
            running_max = max(running_max, running)
            if running == 3:
                enough.set()
        enough.wait(30)
        with lock:
            running -= 1

    try:
        await asyncio.gather(*(threads.run(work) for _ in range(20)))
        assert running_max == 3
        assert len(threads._threads) == 3
    finally:
        threads.shutdown()


async def test_threads_are_made_as_they_are_needed() -> None:
    threads = Threads(8, name="test")
    try:
        for _ in range(5):
            await threads.run(int)
        assert len(threads._threads) == 1
    finally:
        threads.shutdown()


async def test_a_call_that_was_cancelled_in_line_is_not_carried_out_and_one_that_runs_is_finished() -> None:
    threads = Threads(1, name="test")
    begun, go_on = threading.Event(), threading.Event()
    story: list[str] = []

    def first() -> None:
        begun.set()
        go_on.wait(30)
        story.append("first")

    running = threads.run(first)
    waiting = threads.run(story.append, "second")
    try:
        while not begun.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        waiting.cancel()
        go_on.set()
        await threads.run(story.append, "third")
        assert story == ["first", "third"]
    finally:
        go_on.set()
        threads.shutdown()


async def test_shutdown_waits_for_what_was_handed_over() -> None:
    threads = Threads(1, name="test")
    story: list[int] = []
    for number in range(5):
        threads.run(story.append, number)
    threads.shutdown()
    assert story == [0, 1, 2, 3, 4]
