"""Retries: delays that double up to a bound, and a memory of attempts by key.

Invariants: nothing in this module waits, reads a clock or draws random numbers: callers pass the time, and a factor
            that spreads delays;
            a memory is bounded: the key that was postponed longest ago is forgotten first, and is then due at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")

NEVER_S = float("-inf")
DOUBLINGS_MAX = 30
KEYS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays that double from `first_s` up to `max_s`."""

    first_s: float
    max_s: float

    def after(self, failures: int, *, factor: float = 1.0) -> float:
        """The delay in seconds after a failure that was preceded by `failures` others."""
        return float(min(self.max_s, self.first_s * 2 ** min(failures, DOUBLINGS_MAX))) * factor


def _evenly() -> float:
    return 1.0


class Backoff:
    """The delays of one loop that retries until it succeeds, its deadline passes or its owner ends it."""

    __slots__ = ("_delays", "_failures", "_spread")

    def __init__(self, delays: Delays, spread: Callable[[], float] = _evenly) -> None:
        """`spread` returns a factor for each delay, so that many processes do not retry at the same time."""
        self._delays = delays
        self._spread = spread
        self._failures = 0

    def next_s(self) -> float:
        """An attempt failed: the delay before the next one."""
        delay_s = self._delays.after(self._failures, factor=self._spread())
        self._failures += 1
        return delay_s

    def reset(self) -> None:
        """An attempt succeeded."""
        self._failures = 0


class Retry:
    """The number of attempts at one thing, and the time when the next is due. The first attempt is due at once."""

    __slots__ = ("attempts", "due_s")

    def __init__(self, due_s: float = NEVER_S) -> None:
        self.attempts = 0
        self.due_s = due_s

    def is_due(self, now_s: float) -> bool:
        return now_s >= self.due_s

    def postpone(self, now_s: float, delays: Delays) -> None:
        """Count an attempt and make the next one due after its delay. If the attempt succeeds, forget the `Retry`."""
        self.due_s = now_s + delays.after(self.attempts)
        self.attempts += 1


class Retries(Generic[K]):
    """A `Retry` for each of at most `keys_max` keys."""

    def __init__(self, delays: Delays, *, keys_max: int = KEYS_MAX) -> None:
        self._delays = delays
        self._keys_max = keys_max
        self._by_key: dict[K, Retry] = {}  # the one that was postponed longest ago first

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: K) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[K]:
        return iter(self._by_key)

    def is_due(self, key: K, now_s: float) -> bool:
        retry = self._by_key.get(key)
        return retry is None or retry.is_due(now_s)

    def due(self, now_s: float) -> list[K]:
        """The known keys that are due."""
        return [key for key, retry in self._by_key.items() if retry.is_due(now_s)]

    def attempts(self, key: K) -> int:
        retry = self._by_key.get(key)
        return retry.attempts if retry is not None else 0

    def expect(self, key: K, due_s: float) -> None:
        """Add a key that has not been tried yet, due at `due_s`. A known key does not change."""
        if key not in self._by_key:
            self._put(key, Retry(due_s))

    def postpone(self, key: K, now_s: float) -> None:
        """Count an attempt and make the next one due after its delay."""
        retry = self._by_key.pop(key, None) or Retry()
        retry.postpone(now_s, self._delays)
        self._put(key, retry)

    def forget(self, key: K) -> None:
        """Remove a key that succeeded or is no longer needed."""
        self._by_key.pop(key, None)

    def _put(self, key: K, retry: Retry) -> None:
        if len(self._by_key) >= self._keys_max:
            del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = retry
