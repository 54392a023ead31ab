"""Admits groups of puts at the pace of merges while those are behind, as the number of tables would grow without bound.

Invariants: with fewer than `tables_slow` tables nothing waits. With more, each admitted put waits for MERGED_PER_PUT
            merged entries: a key is merged two or three times in all, so merges catch up;
            no put waits longer than WAIT_S_MAX: failing merges make puts slow but do not stop them.
"""

from __future__ import annotations

import asyncio
from collections import deque

MERGED_PER_PUT = 4
SAVED_PUTS_MAX = 1000  # puts that merges have made room for while none was waiting
WAIT_S_MAX = 0.2


class Pace:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._saved = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, puts: int) -> None:
        """Wait, behind all earlier waiters, until this many puts may continue."""
        if not self._waiting and self._saved >= puts:
            self._saved -= puts
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((puts, future))
        timer = self._loop.call_later(WAIT_S_MAX, _settle, future)
        try:
            await future
        finally:
            timer.cancel()
            _settle(future)

    def merged(self, entries: int) -> None:
        """A merge has processed this many entries: admit the puts that it makes room for."""
        self._saved = min(self._saved + max(1, entries // MERGED_PER_PUT), SAVED_PUTS_MAX)
        while self._waiting:
            puts, future = self._waiting[0]
            if future.done():  # it has waited for long enough, or was cancelled
                self._waiting.popleft()
            elif puts <= self._saved or self._saved == SAVED_PUTS_MAX:  # a larger group uses up everything saved
                self._waiting.popleft()
                self._saved = max(0, self._saved - puts)
                _settle(future)
            else:
                return

    def end(self) -> None:
        """The partition has ended: wake all waiters."""
        while self._waiting:
            _settle(self._waiting.popleft()[1])


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
