"""A result that comes later, for those whom a future would cost too much.

A future wakes whoever waits for it in the loop's next turn, through a task. Here the one who waits may go on in the
very step in which the result comes: a driver of coroutines that is no task (`term_tasks`) sets `go_on`. A task can wait
for it as well: to asyncio it looks like a future.

Invariants: it is settled once; one waits for it at a time;
            `go_on` must not raise: it is called by whoever settles;
            cancelling it, as the task that waits is cancelled, settles it: what was to come is not heard any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prompt(Generic[T]):
    __slots__ = ("_asyncio_future_blocking", "_context", "_loop", "_wake", "done", "error", "go_on", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False  # asyncio's word for "somebody waits for this by `await`"
        self._loop = loop
        self._wake: Callable[[Prompt[T]], object] | None = None
        self.go_on: Callable[[], None] | None = None
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def settle(self, value: T | None, error: BaseException | None) -> None:
        """Nothing happens if it is settled already."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        if self.go_on is not None:
            self.go_on()
        elif self._wake is not None:
            self._loop.call_soon(self._wake, self, context=self._context)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            self._asyncio_future_blocking = True
            yield self
            assert self.done, "it is not settled"
        if self.error is not None:  # as `result` does it
            raise self.error
        return self.value  # type: ignore[return-value]

    # --- what a task asks of a future ------------------------------------------------------------------------

    def result(self) -> T:
        assert self.done, "it is not settled"
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Prompt[T]], object], *, context: Context | None = None) -> None:
        assert self._wake is None, "one waits for it at a time"
        assert not self.done, "whoever waits for it has looked"
        self._wake, self._context = wake, context

    def remove_done_callback(self, wake: Callable[[Prompt[T]], object]) -> int:
        if self._wake != wake:
            return 0
        self._wake = None
        return 1

    def cancel(self, msg: object = None) -> bool:
        if self.done:
            return False
        self.settle(None, asyncio.CancelledError())
        return True
