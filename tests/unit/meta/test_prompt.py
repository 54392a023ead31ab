"""A result for which a task may wait as for a future, and a driver without one."""

from __future__ import annotations

import asyncio

import pytest

from neve.meta.prompt import Prompt
from neve.meta.term_tasks import TermTasks


def prompt() -> Prompt[int]:
    return Prompt(asyncio.get_running_loop())


async def test_a_task_waits_for_it_as_for_a_future() -> None:
    async def wait(one: Prompt[int]) -> int:
        return await one

    first, second, third = prompt(), prompt(), prompt()
    tasks = [asyncio.ensure_future(wait(one)) for one in (first, second)]
    third.settle(3, None)
    assert await third == 3  # settled before: nobody waits
    await asyncio.sleep(0)
    first.settle(1, None)
    second.settle(None, ZeroDivisionError())
    first.settle(7, None)  # once only
    assert not tasks[0].done()
    assert await tasks[0] == 1
    with pytest.raises(ZeroDivisionError):
        await tasks[1]


async def test_cancelling_the_task_settles_it() -> None:
    one = prompt()

    async def wait() -> int:
        return await one

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.done
    one.settle(1, None)
    with pytest.raises(asyncio.CancelledError):
        one.result()


async def test_begun_work_goes_on_in_the_step_that_settles_and_needs_a_task_for_other_waits_only() -> None:
    tasks = TermTasks()
    story: list[str] = []
    first, second, event = prompt(), prompt(), asyncio.Event()

    async def work() -> None:
        story.append(f"{await first}")
        try:
            await second
        except ZeroDivisionError:
            story.append("failed")
        await event.wait()
        async with asyncio.timeout(10):  # it has a task by now
            await asyncio.sleep(0)
        story.append("end")

    tasks.begin(work())
    assert not tasks._tasks
    first.settle(1, None)
    assert story == ["1"]
    second.settle(None, ZeroDivisionError())
    assert story == ["1", "failed"]
    assert len(tasks._tasks) == 1
    event.set()
    await tasks.stopped()
    assert story == ["1", "failed", "end"]


async def test_begun_work_that_waits_in_a_task_ends_with_the_term() -> None:
    tasks = TermTasks()
    ends: list[type[BaseException]] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except BaseException as error:
            ends.append(type(error))
            raise

    tasks.begin(work())
    tasks.cancel()
    tasks.begin(work())
    await tasks.stopped()
    assert ends == [asyncio.CancelledError] * 2
