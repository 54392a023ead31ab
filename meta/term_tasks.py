"""The tasks of one term of leadership, which end with it.

Invariants: after `cancel` no task of the term takes another step but to end; one that is started later is cancelled;
            a background task that fails is logged, as an error: nobody waits for it who could tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from neve.meta.prompt import Prompt
from neve.meta.resumed import Resumed

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Steps:
    """Takes the steps of work that has no task yet. A task costs more than many a step."""

    __slots__ = ("_tasks", "_work")

    def __init__(self, tasks: TermTasks, work: Coroutine[Any, Any, None]) -> None:
        self._tasks = tasks
        self._work = work

    def take(self) -> None:
        try:
            waits_for = self._work.send(None)
        except StopIteration:
            return
        if isinstance(waits_for, Prompt):
            waits_for.go_on = self.take
        else:
            self._tasks.go_on(self._work, waits_for)


class TermTasks:
    """Background tasks that end with the term."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were made
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
        """The same for work that tells of its failures itself, and that has no task before it waits for anything but a
        `Prompt`: up to then it must not use asyncio.timeout or current_task, and whoever settles what it waits for must
        do so when the term ends."""
        _Steps(self, work).take()

    def go_on(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        """As a task with work that has taken its first steps and waits."""
        task = asyncio.get_running_loop().create_task(Resumed(work, waits_for))
        if self.ended:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(self._on_awaited_done)

    def cancel(self) -> None:
        self.ended = True
        for task in list(self._tasks):
            task.cancel()

    async def stopped(self) -> None:
        """Wait until all of them have ended."""
        while self._tasks:
            tasks = list(self._tasks)
            await asyncio.wait(tasks)
            for task in tasks:
                self._tasks.pop(task, None)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self.ended:
            log.error("term_task_failed task=%s error=%r", task.get_name(), error, exc_info=error)

    def _on_awaited_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # its caller may have given up: that is no unhandled error
