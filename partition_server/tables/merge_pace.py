"""Lets groups of puts in at the pace of merges while those are behind: tables would grow in number without a bound.

Invariants: while there are fewer than `tables_slow` tables nobody waits; with more, each put that is let in has to wait
            for `MERGED_PER_PUT` entries that are merged: a key is merged some two or three times in all, so merges
            catch up;
            nobody waits for more than `WAIT_S_MAX`: trouble with merges makes puts slow, and stops none.
"""

from __future__ import annotations

import asyncio
from collections import deque

MERGED_PER_PUT = 4
SAVED_PUTS_MAX = 1000  # that merges have paid for while nobody waited
WAIT_S_MAX = 0.2


class Pace:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._saved = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, puts: int) -> None:
        """Until so many puts may go on, behind all who wait already."""
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
        """A merge has done so much: let those in who have waited for it."""
        self._saved = min(self._saved + max(1, entries // MERGED_PER_PUT), SAVED_PUTS_MAX)
        while self._waiting:
            puts, future = self._waiting[0]
            if future.done():  # it has waited long enough, or its caller went away
                self._waiting.popleft()
            elif puts <= self._saved or self._saved == SAVED_PUTS_MAX:  # a larger group pays with all that there is
                self._waiting.popleft()
                self._saved = max(0, self._saved - puts)
                _settle(future)
            else:
                return

    def end(self) -> None:
        """Nobody need wait any more."""
        while self._waiting:
            _settle(self._waiting.popleft()[1])


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
