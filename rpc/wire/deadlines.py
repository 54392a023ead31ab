"""Deadlines of many calls with few timers.

A timer for each call would cost more than the rest of a small call. Deadlines are rounded up to a bucket of some
milliseconds, and a bucket has one timer; adding and removing a call are set operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BUCKETS_PER_S = 100


class Deadlines:
    """Calls back with the key of each call whose deadline has passed, at most one bucket late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[int], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._buckets: dict[int, set[int]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def add(self, key: int, deadline_s: float) -> int:
        """Returns the bucket, which `remove` wants back."""
        bucket = int(deadline_s * BUCKETS_PER_S) + 1
        keys = self._buckets.get(bucket)
        if keys is None:
            keys = self._buckets[bucket] = set()
            self._timers[bucket] = self._loop.call_at(bucket / BUCKETS_PER_S, self._fire, bucket)
        keys.add(key)
        return bucket

    def remove(self, key: int, bucket: int) -> None:
        keys = self._buckets.get(bucket)
        if keys is not None:
            keys.discard(key)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._buckets.clear()

    def _fire(self, bucket: int) -> None:
        del self._timers[bucket]
        for key in self._buckets.pop(bucket, ()):
            self._expired(key)
