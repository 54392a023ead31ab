"""A coroutine that callbacks drive, without a task.

`CoroutineDriver(coroutine)` runs the coroutine up to its first wait at once. When the future that the coroutine waits
for is done, a callback of that future runs the next part. A task would make the first step on the loop's next turn,
and costs more than all the rest of a small call.

Invariants: `then` calls back exactly once;
            `cancel` raises CancelledError in the coroutine at once and cancels the future that it waits for, as
            cancelling a task does; a coroutine that is running at that moment is cancelled on the loop's next turn.
Note:       The coroutine has no task, so it must not use asyncio.timeout, asyncio.TaskGroup or current_task; it waits
            with asyncio.wait(..., timeout=...) instead. Its context variables are those of the code that started it.

This module stands in `proto`, the package that all others import, because `rpc` and `meta` both need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

OnDone = Callable[[T | None, BaseException | None], object]  # (result, None) or (None, error)


class CoroutineDriver(Generic[T_co]):
    """Drives `coroutine` to its end. Once `ended` is True, `error` is what it raised, or `result` what it returned."""

    __slots__ = ("_coroutine", "_on_done", "_waits_for", "ended", "error", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, T_co]) -> None:
        self._coroutine = coroutine
        self._on_done: OnDone[T_co] | None = None
        self._waits_for: asyncio.Future[Any] | None = None
        self.ended = False
        self.result: T_co | None = None
        self.error: BaseException | None = None
        try:  # as `_step` does it: a coroutine that never waits costs no further call
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            self.ended, self.result = True, stop.value
        except BaseException as raised:  # noqa: BLE001 - the callback gets it, whatever it is
            self._end(None, raised)
        else:
            self._wait_for(waits_for)

    def then(self, on_done: OnDone[T_co]) -> None:
        """Call `on_done` when the coroutine has ended: now, if it has ended already. There is one callback at most."""
        assert self._on_done is None, "there is a callback already"
        if self.ended:
            on_done(self.result, self.error)
        else:
            self._on_done = on_done

    def when_ended(self) -> asyncio.Future[None]:
        """Return a future that is done when the coroutine has ended. It takes the place of the callback."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note_end(result: T_co | None, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(None)

        self.then(note_end)
        return future

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine; does nothing if it has ended."""
        if self.ended:
            return
        if getattr(self._coroutine, "cr_running", False):
            asyncio.get_running_loop().call_soon(self.cancel)
            return
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is not None:
            waits_for.remove_done_callback(self._on_future_done)
            waits_for.add_done_callback(_retrieve_error)  # as a cancelled task does: nobody else will
            waits_for.cancel()
        self._step(asyncio.CancelledError())

    def _on_future_done(self, future: asyncio.Future[Any]) -> None:
        if future is not self._waits_for:
            return  # the coroutine was cancelled when this callback was on its way already
        self._waits_for = None
        self._step(None)  # the coroutine takes the result or the error from the future itself

    def _step(self, error: BaseException | None) -> None:
        try:
            waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as stop:
            self._end(stop.value, None)
        except BaseException as raised:  # noqa: BLE001 - the callback gets it, whatever it is
            self._end(None, raised)
        else:
            self._wait_for(waits_for)

    def _wait_for(self, future: asyncio.Future[Any] | None) -> None:
        if future is None:  # asyncio.sleep(0): until the loop's next turn
            future = asyncio.get_running_loop().create_future()
            future.set_result(None)
        future._asyncio_future_blocking = False
        self._waits_for = future
        future.add_done_callback(self._on_future_done)

    def _end(self, result: T_co | None, error: BaseException | None) -> None:
        if error is not None and error.__traceback__ is not None:
            # Without the frame of `_step`: its `self` would have the error, and both would wait for the collector.
            error = error.with_traceback(error.__traceback__.tb_next)
        self.ended, self.result, self.error = True, result, error
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(result, error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error


def _retrieve_error(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an error that no coroutine will see."""
    if not future.cancelled():
        future.exception()
