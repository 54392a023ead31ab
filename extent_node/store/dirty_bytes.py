"""Counts the bytes that are written to extents and not yet synced in place; appends wait when there are too many.

Invariants: `bytes_now` is the sum of `dirty_bytes` over the replicas listed here, in whatever order events happen;
            waiting calls continue when the count is below the bound, one after the other in order of arrival, and
            later calls do not overtake them; at most `append_waiters_max` wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from neve.extent_node.store.config import StoreConfig
from neve.extent_node.store.replica import Replica
from neve.proto.errors import Overloaded, ShuttingDown


class DirtyBytes:
    """The count of dirty bytes, and the queue of appends that wait for it to fall."""

    def __init__(self, config: StoreConfig, *, wake_checkpointer: Callable[[], None]) -> None:
        self.bytes_now = 0
        self._config = config
        self._wake_checkpointer = wake_checkpointer
        self._counted: dict[Replica, int] = {}  # in the order in which they became dirty
        # In order of arrival. Only the first is woken; when it leaves the queue it wakes the next.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._stopped = False

    def update(self, replica: Replica) -> None:
        """Count the replica again: its length or its synced end has changed.

        One that is gone, or whose disk failed, is not counted again when a late sync ends: nothing would lower its
        count any more.
        """
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
        self._wake_next()

    def forget(self, replica: Replica) -> None:
        """Stop counting a replica that is gone or will never be synced again."""
        self.bytes_now -= self._counted.pop(replica, 0)
        self._wake_next()

    def oldest(self) -> list[Replica]:
        """The replicas that have been dirty longest, as many as bring the count below the soft bound."""
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
        """Whether a new call must wait: there is no room, or others wait for it."""
        return self.bytes_now > self._config.dirty_bytes_hard or bool(self._waiters)

    def stop(self) -> None:
        """Wake all waiting calls with an error: no more room will be made."""
        self._stopped = True
        self._wake_next()

    async def wait_for_room(self) -> None:
        """Wait for the caller's turn. It must then continue without awaiting, or the next call overtakes it."""
        if len(self._waiters) >= self._config.append_waiters_max:
            raise Overloaded(what="appends that wait for dirty bytes to be written back")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append(future)
        try:
            while True:
                self._wake_next()
                await future
                if self._stopped:
                    raise ShuttingDown()
                if not self.is_full:
                    return
                future = self._waiters[0] = loop.create_future()  # the call before has used the room
        finally:
            self._waiters.remove(future)
            self._wake_next()

    def _wake_next(self) -> None:
        if not self._waiters:
            return
        if self._stopped or not self.is_full:
            if not self._waiters[0].done():
                self._waiters[0].set_result(None)
        else:
            self._wake_checkpointer()
