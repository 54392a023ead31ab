"""A coroutine that is under way at once, and calls back when it has ended: what a task is, without its cost.

A task makes its first step on the loop's next turn and costs more than the rest of a small call.

Invariants: `on_done` is called exactly once, never from inside of the constructor, unless the coroutine ended there;
            a cancelled one calls back with CancelledError, at once, and cancels what it has waited for, as a task does:
            nobody else may be left to hear how that ends.
Note:       The coroutine must not use asyncio.timeout, a TaskGroup or current_task: it has no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

OnDone = Callable[[T | None, BaseException | None], None]


class Started(Generic[T]):
    """Runs `coroutine` from now on; `on_done(result, None)` or `on_done(None, error)` ends it."""

    __slots__ = ("_coroutine", "_on_done", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T], on_done: OnDone[T]) -> None:
        self._coroutine = coroutine
        self._on_done: OnDone[T] | None = on_done
        self._waits_for: asyncio.Future[Any] | None = None
        self._step(None)

    def cancel(self) -> None:
        if self._on_done is None:
            return
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is not None:
            waits_for.remove_done_callback(self._wake)
            waits_for.add_done_callback(_see)  # as a task that is cancelled does: nobody else will
            waits_for.cancel()
        self._step(asyncio.CancelledError())

    def _wake(self, future: asyncio.Future[Any]) -> None:
        if future is not self._waits_for:
            return  # cancelled when the future was done already: its callback was on its way
        self._waits_for = None
        self._step(None)  # the awaited future itself raises what it has to raise

    def _step(self, error: BaseException | None) -> None:
        try:
            waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as ended:
            self._end(ended.value, None)
        except BaseException as failed:  # noqa: BLE001 - whatever it was, it belongs to whom we call back
            self._end(None, failed)
        else:
            if waits_for is None:  # asyncio.sleep(0)
                asyncio.get_running_loop().call_soon(self._resume)
                return
            waits_for._asyncio_future_blocking = False
            self._waits_for = waits_for
            waits_for.add_done_callback(self._wake)

    def _resume(self) -> None:
        if self._on_done is not None:
            self._step(None)

    def _end(self, result: T | None, error: BaseException | None) -> None:
        on_done, self._on_done = self._on_done, None
        assert on_done is not None
        on_done(result, error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error


def _see(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
