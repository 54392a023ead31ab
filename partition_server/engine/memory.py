"""The memory budget of all memtables of a process.

Invariants: above the limit nothing is added: writes wait for flushes, which begin with the largest memtables;
            a memtable counts while anything refers to it. One that is flushed but that a snapshot needs is held; when
            memory is short, snapshots are dropped;
            waiting writes resume a few in each turn of the loop, however many wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

WOKEN_AT_ONCE = 8  # starting a batch of a thousand operations takes 3.5 ms, during which the loop serves nothing else


class Waiters:
    """Writes that wait for room, in order. There may be thousands, so only a few are woken in each turn."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = 0  # how many of them to wake; later ones wait for the next time
        self._goes_on = False

    def future(self) -> asyncio.Future[None]:
        """Return a future that is done when the caller should check again."""
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
    """One partition's part of the budget."""

    __slots__ = ("budget", "held_bytes", "let_go", "used_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.used_bytes = 0
        self.held_bytes = 0  # of these, flushed and needed only by snapshots
        self.let_go: Callable[[], None] = lambda: None  # drops snapshots while memory is short

    def add(self, size_bytes: int) -> None:
        if self not in self.budget.shares:
            return  # it has left: bytes acknowledged or flushed afterwards are not counted
        self.used_bytes += size_bytes
        self.budget.used_bytes += size_bytes
        self.budget.spare()

    def hold(self, size_bytes: int) -> None:
        """Mark used bytes as flushed, but still needed by a snapshot."""
        if self in self.budget.shares:
            self.held_bytes += size_bytes
            self.budget.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Return held bytes that no snapshot needs any more."""
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
        """Whether snapshots should return what they hold.

        True if all memory is used, or if snapshots hold so much that memtables would have to be flushed while small.
        """
        return self.held_bytes > 0 and (self.full or self.held_bytes * 2 > self.bytes_max)

    def spare(self) -> None:
        """If memory is short, have the partitions with held memory drop snapshots."""
        if self.short:
            for share in list(self.shares):
                if share.held_bytes and self.short:
                    share.let_go()

    def should_flush(self, share: MemoryShare) -> bool:
        """Whether three quarters are used, and no other partition would free more by a flush."""
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
