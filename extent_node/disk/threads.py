"""Threads for what blocks: one queue, one wake-up of the loop for each call.

`loop.run_in_executor` makes a work item and two futures for each call, which callbacks and locks chain; here it is one
future and a place in a queue.

Invariants: results come back in the loop's thread; a call that was cancelled before a thread came to it is not carried
            out, one that runs is finished and its outcome dropped, as with an executor;
            at most `count` calls run at a time, the others wait in their order.
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
    """Made in a running loop, for that loop alone. A thread starts when a call finds all others at work."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.unfinished = 0  # calls handed over and not come back

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call it in a thread; the future has its result or its exception."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.unfinished += 1
        if self.unfinished > len(self._threads) < self._count:
            self._start()
        self._queue.put((future, function, args))
        return future

    def shutdown(self) -> None:
        """Wait for what was handed over, then end the threads; blocks. Nothing may be handed over any more."""
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
            except BaseException as raised:  # noqa: BLE001 - it is the caller's, whatever it is
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del work, future, function, args, result, error  # nothing is kept alive while it waits for more

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.unfinished -= 1
        if future.done():  # cancelled: whoever waited has gone
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # no future takes it
            future.set_exception(RuntimeError("a call in a thread raised StopIteration"))
        else:
            future.set_exception(error)
