"""Ask several nodes side by side, without a task for those that answer at once.

Invariants: every call takes its first step, which sends it, before any of them is waited for;
            an error of `proto.errors` is an answer like others; when the caller is cancelled, or one of them fails
            otherwise, the others are cancelled;
            up to its first wait a call has no task of its own: it must not use asyncio.timeout or current_task before
            (see `rpc.service.eager`, which is the same idea on the other side).
Neighbours: make_extent.py, seal_tail.py and confirm.py ask replicas by it. A task costs more than all the rest of a
            small call, and an allocation makes nine of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, TypeVar

from neve.meta.resumed import Resumed
from neve.proto.errors import NeveError

T = TypeVar("T")


class Started(Generic[T]):
    """A call that was begun: `task` is None when it is done already, and `value` its result or error."""

    __slots__ = ("task", "value")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task: asyncio.Task[T] | None = None
        self.value: T | NeveError
        try:
            waits_for = work.send(None)
        except StopIteration as returned:
            self.value = returned.value
        except NeveError as error:
            self.value = error
        else:
            self.task = asyncio.get_running_loop().create_task(Resumed(work, waits_for))

    async def result(self) -> T | NeveError:
        if self.task is None:
            return self.value
        try:
            return await self.task
        except NeveError as error:
            return error


async def fan_out(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | NeveError]:
    """All results, in order."""
    started: list[Started[T]] = []
    try:
        for work in works:
            started.append(Started(work))  # noqa: PERF401 - those that began must be known if a later one fails
        return [one.value if one.task is None else await one.result() for one in started]
    except BaseException:
        for one in started:
            if one.task is not None:
                one.task.cancel()
        raise
