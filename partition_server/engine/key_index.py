"""An index of keys that are added in any order, in buckets that are sorted when they are read.

Sorting a whole memtable would block the loop for half a second; here no step costs more than sorting one bucket.

Invariants: each key is once in the bucket whose range contains it; buckets are in order and bounded in length;
            an iteration returns in order every key that existed when it reached the key's place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

BUCKET_KEYS_MAX = 2000  # sorting this many takes about half a millisecond


class KeyIndex:
    __slots__ = ("_buckets", "_starts", "_unsorted", "keys")

    def __init__(self) -> None:
        self._starts: list[bytes] = [b""]  # of each bucket: its keys are at or above this one
        self._buckets: list[list[bytes]] = [[]]
        self._unsorted: list[bool] = [False]
        self.keys = 0

    def add(self, key: bytes) -> None:
        """Add a key that is not in the index."""
        number = bisect_right(self._starts, key) - 1
        bucket = self._buckets[number]
        if bucket and not self._unsorted[number] and key < bucket[-1]:
            self._unsorted[number] = True
        bucket.append(key)
        self.keys += 1
        if len(bucket) > BUCKET_KEYS_MAX:
            self._split(number)

    def _split(self, number: int) -> None:
        bucket = self._sorted(number)
        # Ascending keys fill only the last bucket: split at its end, so that full buckets stay full.
        cut = len(bucket) - 1 if number == len(self._buckets) - 1 else len(bucket) // 2
        self._buckets[number] = bucket[:cut]
        self._buckets.insert(number + 1, bucket[cut:])
        self._starts.insert(number + 1, bucket[cut])
        self._unsorted.insert(number + 1, False)

    def _sorted(self, number: int) -> list[bytes]:
        bucket = self._buckets[number]
        if self._unsorted[number]:
            bucket = self._buckets[number] = sorted(bucket)  # a new list, since iterators hold the old one
            self._unsorted[number] = False
        return bucket

    def runs(self, start: bytes = b"", end: bytes = b"") -> Iterator[list[bytes]]:
        """Iterate over the keys of [start, end) in order, bucket by bucket. An empty `end` means no bound.

        Keys may be added between two runs. Those after the last returned key are included.
        """
        while True:
            number = bisect_right(self._starts, start) - 1
            bucket = self._sorted(number)
            first = bisect_left(bucket, start)
            last = bisect_left(bucket, end) if end else len(bucket)
            behind = self._starts[number + 1] if number + 1 < len(self._starts) else None
            if first < last:
                yield bucket[first:last]
            if behind is None or (end and behind >= end):
                return
            start = behind
