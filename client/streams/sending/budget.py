"""The budget of unacknowledged bytes: one bound for each writer, and one for all writers of a client.

Invariants: no bound is exceeded, except by a single append that is larger than the bound, when nothing else is held;
            appends of one writer that wait for room get it in order; a writer at its own bound blocks no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """The bytes of all writers."""

    bytes_max: int
    used_bytes: int = 0
    waiting: dict[Share, None] = field(default_factory=dict)  # writers with waiting appends, in order

    def share(self, bytes_max: int) -> Share:
        return Share(self, bytes_max)

    def admit(self) -> None:
        """Wake the appends for which there is room now."""
        for share in list(self.waiting):
            share.admit()


class Share:
    """One writer's part of the budget."""

    __slots__ = ("_admitted", "_budget", "_waiters", "_watchers", "bytes_max", "used_bytes")

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self._budget = budget
        self.bytes_max = bytes_max
        self.used_bytes = 0
        # In order. A cancelled one stays until it is first: a hundred thousand may wait and be cancelled at once.
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        self._admitted = 0  # waiters that have their room but have not run yet
        self._watchers: dict[asyncio.Future[None], int] = {}  # calls of `until_room`

    def try_take(self, size_bytes: int) -> bool:
        """Take the bytes if there is room and no append is waiting for room."""
        budget = self._budget
        used_bytes, all_used_bytes = self.used_bytes + size_bytes, budget.used_bytes + size_bytes
        if (
            self._waiters
            or self._admitted
            or (used_bytes > self.bytes_max and self.used_bytes)
            or (all_used_bytes > budget.bytes_max and budget.used_bytes)
        ):
            return False
        self.used_bytes, budget.used_bytes = used_bytes, all_used_bytes
        return True

    def _fits(self, size_bytes: int) -> bool:
        budget = self._budget
        own = not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max
        return own and (not budget.used_bytes or budget.used_bytes + size_bytes <= budget.bytes_max)

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._budget.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        self._budget.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        if self._budget.waiting:
            self._budget.admit()

    async def wait_and_take(self, size_bytes: int) -> None:
        """Wait for room behind all earlier waiters, and take it."""
        if self.try_take(size_bytes):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((future, size_bytes))
        self._budget.waiting[self] = None
        try:
            await future  # `admit` has taken the bytes for us
        except asyncio.CancelledError:
            if _is_admitted(future):
                self.give_back(size_bytes)
            raise
        finally:
            if _is_admitted(future):
                # Not earlier: between its admission and its next step, no other append may overtake it.
                self._admitted -= 1
            self.admit()
            self._leave()

    async def until_room(self, size_bytes: int) -> None:
        """Wait until this many bytes could be taken, without taking them.

        The caller does not queue as a waiter: two callers that wait, look and wait again would block each other.
        """
        while self._waiters or self._admitted or not self._fits(size_bytes):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers[future] = size_bytes
            self._budget.waiting[self] = None
            try:
                await future
            finally:
                self._watchers.pop(future, None)
                self._leave()

    def admit(self) -> None:
        """Give room to waiters in order; when none is left, wake the watchers."""
        waiters = self._waiters
        while waiters:
            future, size_bytes = waiters[0]
            if not future.done():
                if not self._fits(size_bytes):
                    return
                self.take(size_bytes)
                self._admitted += 1
                future.set_result(None)
            waiters.popleft()
        if not self._admitted:
            for future, size_bytes in self._watchers.items():
                if not future.done() and self._fits(size_bytes):
                    future.set_result(None)

    def end(self, error: Exception) -> None:
        """The writer has ended: fail everything that waits."""
        for future in [*(future for future, _ in self._waiters), *self._watchers]:
            if not future.done():
                future.set_exception(error)

    def _leave(self) -> None:
        if not self._waiters and not self._watchers and not self._admitted:
            self._budget.waiting.pop(self, None)


def _is_admitted(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
