"""Keys in order, while they come in any order: buckets that are sorted when somebody looks at them.

A sort of a whole memtable would hold the loop for half a second; here no step costs more than the sort of one bucket.

Invariants: a key is in the bucket whose range has it, once; buckets are in order, and bounded in length;
            whoever iterates sees every key that was there when the iteration came by, in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

BUCKET_KEYS_MAX = 2000  # to sort so many takes about half a millisecond


class KeyIndex:
    __slots__ = ("_buckets", "_starts", "_unsorted", "keys")

    def __init__(self) -> None:
        self._starts: list[bytes] = [b""]  # of each bucket: its keys are at or above
        self._buckets: list[list[bytes]] = [[]]
        self._unsorted: list[bool] = [False]
        self.keys = 0

    def add(self, key: bytes) -> None:
        """A key that is not there yet."""
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
        # Keys that come in order fill the last bucket only: cut there, and full buckets stay full.
        cut = len(bucket) - 1 if number == len(self._buckets) - 1 else len(bucket) // 2
        self._buckets[number] = bucket[:cut]
        self._buckets.insert(number + 1, bucket[cut:])
        self._starts.insert(number + 1, bucket[cut])
        self._unsorted.insert(number + 1, False)

    def _sorted(self, number: int) -> list[bytes]:
        bucket = self._buckets[number]
        if self._unsorted[number]:
            bucket = self._buckets[number] = sorted(bucket)  # another list: iterators keep theirs
            self._unsorted[number] = False
        return bucket

    def runs(self, start: bytes = b"", end: bytes = b"") -> Iterator[list[bytes]]:
        """The keys of [start, end), in order, bucket by bucket; an empty `end` is no bound.

        Between two runs keys may be added: those behind what was given come, too.
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
