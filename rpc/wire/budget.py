"""A bounded count of bytes; coroutines queue for a share of it.

Invariants: first come, first served: a small request does not overtake a large one that waits;
            a request larger than the bound is granted once nothing else is held, so that it cannot wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def fits(self, size_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + size_bytes <= self.bytes_max

    async def acquire(self, size_bytes: int) -> None:
        if not self._waiters and self.fits(size_bytes):
            self.held_bytes += size_bytes
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, future))
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.release(size_bytes)  # granted and cancelled in the same turn of the loop
            else:
                future.cancel()
                self._grant()  # the next in the queue may fit now
            raise

    def release(self, size_bytes: int) -> None:
        assert 0 <= size_bytes <= self.held_bytes, (size_bytes, self.held_bytes)
        self.held_bytes -= size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiters:
            size_bytes, future = self._waiters[0]
            if future.done():  # cancelled
                self._waiters.popleft()
            elif self.fits(size_bytes):
                self._waiters.popleft()
                self.held_bytes += size_bytes
                future.set_result(None)
            else:
                return
