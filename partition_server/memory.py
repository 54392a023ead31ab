"""The memory that all memtables of a process may take together.

Invariants: above the bound nobody adds: writes wait until memtables were flushed, and the largest are flushed first.
Neighbours: every partition of the process has a share; writes.py waits, flusher.py asks who is to flush.
"""

from __future__ import annotations

import asyncio


class MemoryShare:
    """One partition's part."""

    __slots__ = ("budget", "used_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.used_bytes = 0

    def add(self, size_bytes: int) -> None:
        if self not in self.budget.shares:
            return  # it has left: what is acknowledged or flushed after that is nobody's memory any more
        self.used_bytes += size_bytes
        self.budget.used_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        if self not in self.budget.shares:
            return
        self.used_bytes -= size_bytes
        self.budget.used_bytes -= size_bytes
        assert self.used_bytes >= 0, self.used_bytes
        self.budget.wake()

    def leave(self) -> None:
        self.remove(self.used_bytes)
        self.budget.shares.pop(self, None)


class MemoryBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.shares: dict[MemoryShare, None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def share(self) -> MemoryShare:
        share = MemoryShare(self)
        self.shares[share] = None
        return share

    @property
    def full(self) -> bool:
        return self.used_bytes >= self.bytes_max

    def should_flush(self, share: MemoryShare) -> bool:
        """Three quarters are used, and nobody uses more than this one."""
        if self.used_bytes * 4 < self.bytes_max * 3 or not share.used_bytes:
            return False
        return share.used_bytes >= max(each.used_bytes for each in self.shares)

    async def until_room(self) -> None:
        while self.full:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def wake(self) -> None:
        if not self.full and self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
