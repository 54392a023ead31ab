"""The tasks of one term of leadership, which end with it.

Invariants: after `cancel` no task of the term takes another step but to end; one that is started later is cancelled;
            work that runs without a task (`begin`) hears of the end at once, inside of `cancel`;
            a background task that fails is logged, as an error: nobody waits for it who could tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from neve.proto.coroutine_driver import CoroutineDriver

log = logging.getLogger(__name__)

T = TypeVar("T")


class TermTasks:
    """Background tasks, and work without a task, that end with the term."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were made
        self._drivers: dict[CoroutineDriver[None], None] = {}  # of work that has no task, in the same order
        self._no_driver = asyncio.Event()
        self.ended = False

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        if self.ended:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same for work whose failure somebody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        if self.ended:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(self._on_awaited_done)
        return task

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that reports its failures itself without a task: see `proto.coroutine_driver` for what it must not
        use."""
        driver = CoroutineDriver(work)
        if driver.ended:
            return
        self._drivers[driver] = None
        driver.then(partial(self._on_driver_done, driver))
        if self.ended:
            driver.cancel()

    def cancel(self) -> None:
        self.ended = True
        for task in list(self._tasks):
            task.cancel()
        for driver in list(self._drivers):
            driver.cancel()

    async def stopped(self) -> None:
        """Wait until all of them have ended, and all work without a task."""
        while self._tasks or self._drivers:
            if self._drivers:
                self._no_driver.clear()
                await self._no_driver.wait()
                continue
            tasks = list(self._tasks)
            await asyncio.wait(tasks)
            for task in tasks:
                self._tasks.pop(task, None)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self.ended:
            log.error("term_task_failed task=%s error=%r", task.get_name(), error, exc_info=error)

    def _on_driver_done(self, driver: CoroutineDriver[None], result: None, error: BaseException | None) -> None:
        self._drivers.pop(driver, None)
        if not self._drivers:
            self._no_driver.set()

    def _on_awaited_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # its caller may have given up: that is no unhandled error
