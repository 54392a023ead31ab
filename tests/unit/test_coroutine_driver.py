"""A coroutine that runs without a task: its ends, and the races between them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from neve.proto.coroutine_driver import CoroutineDriver


async def test_a_cancel_after_the_awaited_future_was_done_ends_it_once_and_steps_it_no_more() -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    awaited: asyncio.Future[int] = loop.create_future()
    ends: list[tuple[int | None, BaseException | None]] = []

    async def work() -> int:
        return await awaited

    started = CoroutineDriver(work())

    started.then(lambda result, error: ends.append((result, error)))
    awaited.set_result(1)  # its callback is on its way
    started.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(ends) == 1
    assert isinstance(ends[0][1], asyncio.CancelledError)
    assert not unhandled


async def test_an_error_that_a_cancelled_one_does_not_see_any_more_is_not_called_unseen() -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    awaited: asyncio.Future[int] = loop.create_future()

    async def work(future: asyncio.Future[int]) -> int:
        return await future

    started = CoroutineDriver(work(awaited))

    started.then(lambda result, error: None)
    awaited.set_exception(OSError("too late"))
    started.cancel()
    del awaited, started
    await asyncio.sleep(0)
    gc.collect()
    assert not unhandled


async def test_a_cancelled_one_cancels_what_it_waits_for() -> None:
    """Otherwise that goes on for nobody, and its error is called unseen."""
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ends: list[BaseException | None] = []

    async def work() -> int:
        return await awaited

    started = CoroutineDriver(work())

    started.then(lambda result, error: ends.append(error))
    started.cancel()
    assert awaited.cancelled()
    await asyncio.sleep(0)
    assert [type(each) for each in ends] == [asyncio.CancelledError]


async def test_a_cancelled_one_sees_what_its_parts_end_with() -> None:
    """A gathering ends when all of its parts have, and with an error of its own."""
    loop, unhandled = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    parts = [asyncio.ensure_future(asyncio.sleep(10)) for _ in range(2)]

    async def work() -> None:
        await asyncio.gather(*parts)

    started = CoroutineDriver(work())

    started.then(lambda result, error: None)
    started.cancel()
    await asyncio.wait(parts)
    await asyncio.sleep(0)
    assert all(part.cancelled() for part in parts)
    del started
    gc.collect()
    assert not unhandled


async def test_a_cancel_during_a_bare_yield_does_not_disturb_the_clean_up() -> None:
    """What was to go on after asyncio.sleep(0) must not step a coroutine that waits for something else by then."""
    clean_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    story: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            await clean_up
            story.append("cleaned up")

    driver = CoroutineDriver(work())
    driver.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not driver.ended
    clean_up.set_result(None)
    await driver.when_ended()
    assert story == ["cleaned up"]
    assert isinstance(driver.error, asyncio.CancelledError)


async def test_one_that_is_cancelled_while_it_runs_ends_on_the_next_turn() -> None:
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    drivers: list[CoroutineDriver[None]] = []

    async def work() -> None:
        await started
        drivers[0].cancel()
        await asyncio.get_running_loop().create_future()

    drivers.append(CoroutineDriver(work()))
    started.set_result(None)
    await drivers[0].when_ended()
    assert isinstance(drivers[0].error, asyncio.CancelledError)


async def test_one_that_failed_is_freed_without_a_garbage_collection() -> None:
    async def fail(held: object) -> None:
        raise ZeroDivisionError

    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    gc.disable()
    try:
        driver = CoroutineDriver(fail(held))
        assert isinstance(driver.error, ZeroDivisionError)
        del driver, held
        assert gone() is None
    finally:
        gc.enable()
