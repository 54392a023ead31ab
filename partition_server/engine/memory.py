"""The memory that all memtables of a process may take together.

Invariants: above the bound nobody adds: writes wait until memtables were flushed, and the largest are flushed first;
            a memtable counts as long as somebody sees it: one that is flushed and that a snapshot has is held, and when
            memory is short, snapshots are let go;
            however many wait, a turn of the loop goes on with a few of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

WOKEN_AT_ONCE = 8  # a batch of a thousand operations takes 3.5 ms to begin, and everybody else waits for the loop


class Waiters:
    """Those who wait for room, in their order. Thousands may: they are woken a few a turn."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = 0  # of them: to be woken; who comes meanwhile waits for the next time
        self._goes_on = False

    def future(self) -> asyncio.Future[None]:
        """Done when it is time to look again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def wake(self) -> None:
        self._due = len(self._waiting)
        if not self._goes_on:
            self._step()

    def _step(self) -> None:
        self._goes_on = False
        left = WOKEN_AT_ONCE
        while self._due and left:
            self._due -= 1
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                left -= 1
        if self._due:
            self._goes_on = True
            self._waiting[0].get_loop().call_soon(self._step)

    def __len__(self) -> int:
        return len(self._waiting)


class MemoryShare:
    """One partition's part."""

    __slots__ = ("budget", "held_bytes", "let_go", "used_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.used_bytes = 0
        self.held_bytes = 0  # of them: flushed, and seen by snapshots only
        self.let_go: Callable[[], None] = lambda: None  # gives up what is held, as far as memory is short

    def add(self, size_bytes: int) -> None:
        if self not in self.budget.shares:
            return  # it has left: what is acknowledged or flushed after that is nobody's memory any more
        self.used_bytes += size_bytes
        self.budget.used_bytes += size_bytes
        self.budget.spare()

    def hold(self, size_bytes: int) -> None:
        """So much of what is used is flushed, and cannot be given back yet."""
        if self in self.budget.shares:
            self.held_bytes += size_bytes
            self.budget.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Nobody sees it any more."""
        if self in self.budget.shares:
            self.held_bytes -= size_bytes
            self.budget.held_bytes -= size_bytes
            assert self.held_bytes >= 0, self.held_bytes
            self.remove(size_bytes)

    def remove(self, size_bytes: int) -> None:
        if self not in self.budget.shares:
            return
        self.used_bytes -= size_bytes
        self.budget.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        self.budget.wake()

    def leave(self) -> None:
        self.release(self.held_bytes)
        self.remove(self.used_bytes)
        self.budget.shares.pop(self, None)


class MemoryBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.held_bytes = 0
        self.shares: dict[MemoryShare, None] = {}
        self._waiting = Waiters()

    def share(self) -> MemoryShare:
        share = MemoryShare(self)
        self.shares[share] = None
        return share

    @property
    def full(self) -> bool:
        return self.used_bytes >= self.bytes_max

    @property
    def short(self) -> bool:
        """Whether snapshots are to give back what they hold: all is used, or they hold so much of it that memtables
        would have to be flushed while they are small."""
        return self.held_bytes > 0 and (self.full or self.held_bytes * 2 > self.bytes_max)

    def spare(self) -> None:
        """If memory is short, ask those who hold some."""
        if self.short:
            for share in list(self.shares):
                if share.held_bytes and self.short:
                    share.let_go()

    def should_flush(self, share: MemoryShare) -> bool:
        """Three quarters are used, and nobody could give back more by a flush than this one."""
        flushable_bytes = share.used_bytes - share.held_bytes
        if self.used_bytes * 4 < self.bytes_max * 3 or not flushable_bytes:
            return False
        return flushable_bytes >= max(each.used_bytes - each.held_bytes for each in self.shares)

    async def until_room(self) -> None:
        while self.full:
            await self._waiting.future()

    def wake(self) -> None:
        if not self.full:
            self._waiting.wake()
