"""How many appended bytes a client holds: a bound for each writer, and one for all of them.

Invariants: nobody goes over a bound, except for one append that alone is larger than it, which goes when nothing else
            is held;
            those who wait for room get it in their order, within a writer; a writer at its own bound stops no other.
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
    waiting: dict[Share, None] = field(default_factory=dict)  # writers with appends that wait, in order

    def share(self, bytes_max: int) -> Share:
        return Share(self, bytes_max)

    def admit(self) -> None:
        """Let those go on for whom there is room."""
        for share in list(self.waiting):
            share.admit()


class Share:
    """One writer's part of the budget."""

    __slots__ = ("_admitted", "_budget", "_waiters", "_watchers", "bytes_max", "used_bytes")

    def __init__(self, budget: Budget, bytes_max: int) -> None:
        self._budget = budget
        self.bytes_max = bytes_max
        self.used_bytes = 0
        # In their order. Who is cancelled stays until it is the first: a hundred thousand may wait, and leave at once.
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        self._admitted = 0  # of those who waited: they have their room, and have not gone on yet
        self._watchers: dict[asyncio.Future[None], int] = {}  # who only want to know when there is room

    def try_take(self, size_bytes: int) -> bool:
        """Take it if there is room, and nobody waits for room already."""
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
        """Wait for room, behind all who wait already, and take it."""
        if self.try_take(size_bytes):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((future, size_bytes))
        self._budget.waiting[self] = None
        try:
            await future  # whoever wakes us has taken it for us
        except asyncio.CancelledError:
            if _is_admitted(future):
                self.give_back(size_bytes)
            raise
        finally:
            if _is_admitted(future):
                # Not before now: from its admission to its next step, nobody may overtake who has waited.
                self._admitted -= 1
            self.admit()
            self._leave()

    async def until_room(self, size_bytes: int) -> None:
        """Wait until so much could be taken, and take nothing: whoever comes first has it.

        Not a waiter: two that wait, look, and wait again would each find the other one waiting, for ever.
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
        """The writer is over: nobody waits any more."""
        for future in [*(future for future, _ in self._waiters), *self._watchers]:
            if not future.done():
                future.set_exception(error)

    def _leave(self) -> None:
        if not self._waiters and not self._watchers and not self._admitted:
            self._budget.waiting.pop(self, None)


def _is_admitted(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
