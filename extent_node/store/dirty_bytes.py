"""Counts the bytes that are written to extents and not yet synced in place; appends wait when they are too many.

Invariants: `bytes_now` is the sum of `dirty_bytes` over the replicas listed here, whatever order things happen in;
            who waits is let go when the count is below the bound, one after the other in the order of coming, and
            nobody who comes later overtakes them; at most `append_waiters_max` wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from neve.extent_node.store.config import StoreConfig
from neve.extent_node.store.replica import Replica
from neve.proto.errors import Overloaded, ShuttingDown


class DirtyBytes:
    def __init__(self, config: StoreConfig, *, wake_checkpointer: Callable[[], None]) -> None:
        self.bytes_now = 0
        self._config = config
        self._wake_checkpointer = wake_checkpointer
        self._counted: dict[Replica, int] = {}  # in the order in which they became dirty
        # In the order of coming. Only the first is ever let go; it leaves when it goes on, and lets go the next.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._stopped = False

    def update(self, replica: Replica) -> None:
        """Its length or its synced end has changed. One that is gone, or whose disk failed, is not counted again by a
        sync that ends late: nothing would ever bring its count down."""
        read_only = replica.state.read_only
        is_over = replica.gone or (read_only is not None and not read_only.can_sync)
        now = 0 if is_over else replica.dirty_bytes
        self.bytes_now += now - self._counted.get(replica, 0)
        if now:
            self._counted[replica] = now
        else:
            self._counted.pop(replica, None)
        if self.bytes_now > self._config.dirty_bytes_soft:
            self._wake_checkpointer()
        self._let_go()

    def forget(self, replica: Replica) -> None:
        """It is gone, or will never be synced again: its bytes count no more."""
        self.bytes_now -= self._counted.pop(replica, 0)
        self._let_go()

    def oldest(self) -> list[Replica]:
        """As many of the replicas that have been dirty longest as bring the count below the soft bound."""
        excess, chosen = self.bytes_now - self._config.dirty_bytes_soft, []
        for replica, size_bytes in self._counted.items():
            if excess <= 0:
                break
            chosen.append(replica)
            excess -= size_bytes
        return chosen

    @property
    def is_full(self) -> bool:
        return self.bytes_now > self._config.dirty_bytes_hard

    @property
    def must_wait(self) -> bool:
        """For who comes now: there is no room, or others wait for it."""
        return self.bytes_now > self._config.dirty_bytes_hard or bool(self._waiters)

    def stop(self) -> None:
        """Nobody will make room any more: let all go who wait."""
        self._stopped = True
        self._let_go()

    async def wait_for_room(self) -> None:
        """Until it is the caller's turn, who goes on without any other wait: else the next one overtakes it."""
        if len(self._waiters) >= self._config.append_waiters_max:
            raise Overloaded(what="appends that wait for dirty bytes to be written back")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append(future)
        try:
            while True:
                self._let_go()
                await future
                if self._stopped:
                    raise ShuttingDown()
                if not self.is_full:
                    return
                future = self._waiters[0] = loop.create_future()  # whoever went before has taken the room
        finally:
            self._waiters.remove(future)
            self._let_go()

    def _let_go(self) -> None:
        if not self._waiters:
            return
        if self._stopped or not self.is_full:
            if not self._waiters[0].done():
                self._waiters[0].set_result(None)
        else:
            self._wake_checkpointer()
