"""Ask several nodes side by side, without a task for those that answer at once.

Invariants: every call takes its first step, which sends it, before any of them is waited for;
            when the caller is cancelled, or one of them fails, the others are cancelled;
            up to its first wait a call has no task of its own: it must not use asyncio.timeout or current_task before
            (see `rpc.service.eager`, which is the same idea on the other side).
Neighbours: make_extent.py, seal_tail.py and confirm.py ask replicas by it. A task costs more than all the rest of a
            small call, and an allocation makes nine of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Started(Generic[T]):
    """A call that was begun: `task` is None when it is done already, and `value` its result."""

    __slots__ = ("task", "value")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task: asyncio.Task[T] | None = None
        self.value: T
        try:
            waits_for = work.send(None)
        except StopIteration as returned:
            self.value = returned.value
        else:
            self.task = asyncio.get_running_loop().create_task(_rest(work, waits_for))


async def fan_out(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order."""
    started: list[Started[T]] = []
    try:
        for work in works:
            started.append(Started(work))  # noqa: PERF401 - those that began must be known if a later one fails
        return [one.value if one.task is None else await one.task for one in started]
    except BaseException:
        for one in started:
            if one.task is not None:
                one.task.cancel()
        raise


async def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _Resumed(work, waits_for)


class _Resumed(Generic[T]):
    """Awaitable: the rest of a coroutine that was stepped once and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as returned:
            value: T = returned.value
            return value
