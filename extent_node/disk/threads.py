"""A thread pool for blocking calls: one queue, and one wake-up of the loop for each call.

`loop.run_in_executor` makes a work item and two futures for each call, linked by callbacks and locks. This pool makes
one future and one queue entry.

Invariants: results arrive in the loop's thread; a call cancelled before a thread takes it is not made; a running call
            is finished and its outcome dropped, as in an executor;
            at most `count` calls run at a time, the others wait in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Work = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    """A pool for the loop that is running when it is made. A thread starts when a call finds all others busy."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.unfinished = 0  # calls that were queued and have not returned

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call the function in a thread; the future gets its result or its exception."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.unfinished += 1
        if self.unfinished > len(self._threads) < self._count:
            self._start()
        self._queue.put((future, function, args))
        return future

    def shutdown(self) -> None:
        """Wait for all queued calls, then end the threads; blocks. No call may follow."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            future, function, args = work
            result: Any = None
            error: BaseException | None = None
            try:
                if not future.cancelled():
                    result = function(*args)
            except BaseException as raised:  # noqa: BLE001 - every error belongs to the caller
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: no caller waits any more
            del work, future, function, args, result, error  # keep nothing alive while waiting for the next call

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.unfinished -= 1
        if future.done():  # the caller cancelled it
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses this class
            future.set_exception(RuntimeError("a call in a thread raised StopIteration"))
        else:
            future.set_exception(error)
