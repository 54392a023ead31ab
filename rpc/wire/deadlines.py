"""Deadlines of many calls with few timers.

A timer for each call would cost more than the rest of a small call. Deadlines are rounded up to a bucket of some
milliseconds, and a bucket has one timer; adding and removing a call are operations
on a dict, which keeps their order: calls that expire together do so in the same order in every simulated run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

BUCKETS_PER_S = 100
BUCKETS_SWEEP_MIN = 1024  # with fewer buckets than this, those that emptied early may wait for their time

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls back with each call whose deadline has passed, at most one bucket late."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], None], *, buckets_per_s: int = BUCKETS_PER_S
    ) -> None:
        self._loop = loop
        self._buckets_per_s = buckets_per_s
        self.now_s = loop.time
        self._expired = expired
        self._buckets: dict[int, dict[T, None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._sweep_at = BUCKETS_SWEEP_MIN

    def add(self, call: T, deadline_s: float) -> int:
        """Returns the bucket, which `remove` wants back."""
        bucket = int(deadline_s * self._buckets_per_s) + 1
        calls = self._buckets.get(bucket)
        if calls is None:
            if len(self._buckets) >= self._sweep_at:
                self._sweep()
            calls = self._buckets[bucket] = {}
            self._timers[bucket] = self._loop.call_at(bucket / self._buckets_per_s, self._fire, bucket)
        calls[call] = None
        return bucket

    def remove(self, call: T, bucket: int) -> None:
        calls = self._buckets.get(bucket)
        if calls is not None:
            calls.pop(call, None)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._buckets.clear()

    def _sweep(self) -> None:
        """Drop the buckets whose calls have all ended: their time may be hours away."""
        for bucket in [bucket for bucket, calls in self._buckets.items() if not calls]:
            del self._buckets[bucket]
            self._timers.pop(bucket).cancel()
        self._sweep_at = max(BUCKETS_SWEEP_MIN, 2 * len(self._buckets))

    def _fire(self, bucket: int) -> None:
        del self._timers[bucket]
        for call in self._buckets.pop(bucket, ()):
            self._expired(call)
