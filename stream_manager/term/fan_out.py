"""Ask several nodes side by side, without tasks.

Invariants: every call takes its first step, which sends it, before any of them is waited for;
            an error of `proto.errors` is an answer like others; when the caller is cancelled, or one of them fails
            otherwise, the others are cancelled;
            a call has no task of its own: it must not use asyncio.timeout, a TaskGroup or current_task (rpc.started).
Note:       A task costs more than all the rest of a small call, and an allocation makes nine of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, TypeVar

from neve.proto.errors import NeveError
from neve.rpc.started import Started

T = TypeVar("T")


class Asked(Generic[T]):
    """A call that was begun: `waits` is None if it was answered at once, else done when it is answered; `value` is its
    result or error then."""

    __slots__ = ("_answered", "_failure", "_started", "value", "waits")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.waits: asyncio.Future[None] | None = None
        self.value: T | NeveError
        self._failure: BaseException | None = None  # a bug's, or that it was cancelled
        self._answered = False
        self._started = Started(work, self._on_done)
        if not self._answered:
            self.waits = asyncio.get_running_loop().create_future()
        elif self._failure is not None:
            raise self._failure

    def _on_done(self, value: T | None, error: BaseException | None) -> None:
        self._answered = True
        if error is None:
            self.value = value  # type: ignore[assignment]
        elif isinstance(error, NeveError):
            self.value = error
        else:
            self._failure = error
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)

    async def result(self) -> T | NeveError:
        if self.waits is not None:
            await self.waits
        if self._failure is not None:
            raise self._failure
        return self.value

    def cancel(self) -> None:
        self._started.cancel()


async def fan_out(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | NeveError]:
    """All results, in order."""
    asked: list[Asked[T]] = []
    try:
        for work in works:
            asked.append(Asked(work))  # noqa: PERF401 - those that began must be known if a later one fails
        return [one.value if one.waits is None else await one.result() for one in asked]
    except BaseException:
        for one in asked:
            one.cancel()
        raise
