"""Work of a term that has no task: it goes on when what it waits for is done, and ends with the term."""

from __future__ import annotations

import asyncio

from neve.meta.term_tasks import TermTasks


async def test_begun_work_has_no_task_whatever_it_waits_for() -> None:
    tasks = TermTasks()
    story: list[str] = []
    loop = asyncio.get_running_loop()
    first, second, event = loop.create_future(), loop.create_future(), asyncio.Event()

    async def work() -> None:
        story.append(f"{await first}")
        try:
            await second
        except ZeroDivisionError:
            story.append("failed")
        await event.wait()
        await asyncio.sleep(0)
        story.append("end")

    tasks.begin(work())
    first.set_result(1)
    await asyncio.sleep(0)
    assert story == ["1"]
    second.set_exception(ZeroDivisionError())
    await asyncio.sleep(0)
    assert story == ["1", "failed"]
    assert len(asyncio.all_tasks()) == 1  # this one
    event.set()
    await tasks.stopped()
    assert story == ["1", "failed", "end"]


async def test_begun_work_that_waits_ends_with_the_term() -> None:
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
    assert ends == [asyncio.CancelledError]  # at once
    tasks.begin(work())
    await tasks.stopped()
    assert ends == [asyncio.CancelledError] * 2
