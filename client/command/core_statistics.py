"""Statistics of a benchmark: a histogram of latencies, the current interval, and the final report.

Invariants: memory is bounded: a histogram has a fixed number of buckets, and only the current and the last interval are
            kept;
            a quantile is never below the true one, and less than 1/128 above it;
            a failed operation counts as an error, never as a latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# 2^7 buckets for each power of two, so the width of a bucket is at most 1/128 of its values.
_BITS = 7
_LINEAR = 2 << _BITS  # each value below this has its own bucket

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
NS = 1_000_000_000


def bucket_of(value: int) -> int:
    """Return the bucket of a non-negative value."""
    if value < _LINEAR:
        return value
    shift = value.bit_length() - _BITS - 1
    return (shift << _BITS) + (value >> shift)


def bucket_top(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < _LINEAR:
        return bucket
    shift = (bucket >> _BITS) - 1
    return (((bucket - (shift << _BITS)) + 1) << shift) - 1


class Histogram:
    """Counts of integers, here nanoseconds, by bucket."""

    __slots__ = ("_counts", "count", "largest", "smallest", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.smallest = 0
        self.largest = 0

    def record(self, value: int, times: int = 1) -> None:
        value = max(0, value)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.smallest = value if self.count == 0 else min(self.smallest, value)
        self.largest = max(self.largest, value)
        self.count += times
        self.total += value * times

    def merge(self, other: Histogram) -> None:
        if other.count == 0:
            return
        for bucket, times in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + times
        self.smallest = other.smallest if self.count == 0 else min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        self.count += other.count
        self.total += other.total

    def quantile(self, share: float) -> int:
        """Return the smallest value with at least this share of all values at or below it; 0 if there are none."""
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return min(bucket_top(bucket), self.largest)
        return 0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class Interval:
    """The samples in [start_s, start_s + length_s) of a run."""

    start_s: float
    length_s: float
    operations: int = 0
    size_bytes: int = 0
    errors: int = 0
    latency_ns: Histogram = field(default_factory=Histogram)

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.length_s

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.length_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One call with `operations`, which ended at `at_s` of the run. `error`: the name of its exception, or ""."""

    at_s: float
    latency_ns: int
    operations: int
    size_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a whole run."""

    duration_s: float
    operations: int
    size_bytes: int
    latency_ms: Mapping[str, float]  # by name: p50 …, mean, max; empty if nothing succeeded
    errors: Mapping[str, int]  # failed operations, by name of the error

    @property
    def operations_per_s(self) -> float:
        return self.operations / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def megabytes_per_s(self) -> float:
        return self.size_bytes / self.duration_s / 1e6 if self.duration_s > 0 else 0.0

    @property
    def errors_total(self) -> int:
        return sum(self.errors.values())

    def fields(self) -> dict[str, object]:
        return {
            "duration_s": round(self.duration_s, 6),
            "operations": self.operations,
            "bytes": self.size_bytes,
            "operations_per_s": round(self.operations_per_s, 3),
            "megabytes_per_s": round(self.megabytes_per_s, 6),
            "latency_ms": dict(self.latency_ms),
            "errors": dict(self.errors),
            "errors_total": self.errors_total,
        }


class Recorder:
    """Collects samples. They may come slightly out of order; a late one counts for the current interval."""

    def __init__(self, *, interval_s: float = 1.0) -> None:
        if interval_s <= 0:
            raise ValueError("interval_s must be above 0")
        self._interval_s = interval_s
        self._latency_ns = Histogram()
        self._errors: dict[str, int] = {}
        self.operations = 0
        self.size_bytes = 0
        self.running = Interval(0.0, interval_s)
        self.last: Interval | None = None  # the latest complete one

    def add(self, sample: Sample) -> None:
        self.advance(sample.at_s)
        if sample.error:
            self._errors[sample.error] = self._errors.get(sample.error, 0) + sample.operations
            self.running.errors += sample.operations
            return
        self.running.operations += sample.operations
        self.running.size_bytes += sample.size_bytes
        self.running.latency_ns.record(sample.latency_ns, sample.operations)
        self.operations += sample.operations
        self.size_bytes += sample.size_bytes
        self._latency_ns.record(sample.latency_ns, sample.operations)

    def advance(self, now_s: float) -> None:
        """Close the current interval if `now_s` is past its end. An interval without samples counts too."""
        end_s = self.running.start_s + self._interval_s
        if now_s < end_s:
            return
        number = int(now_s / self._interval_s)
        start_s = number * self._interval_s
        skipped = start_s - end_s >= self._interval_s / 2
        self.last = Interval(start_s - self._interval_s, self._interval_s) if skipped else self.running
        self.running = Interval(start_s, self._interval_s)

    @property
    def errors(self) -> Mapping[str, int]:
        return self._errors

    def report(self, duration_s: float) -> Report:
        return Report(
            duration_s, self.operations, self.size_bytes, latency_fields(self._latency_ns), dict(self._errors)
        )


def latency_fields(latency_ns: Histogram) -> dict[str, float]:
    """Return the latencies in milliseconds, by name; none for an empty histogram."""
    if latency_ns.count == 0:
        return {}
    values = {name: latency_ns.quantile(share) / 1e6 for name, share in QUANTILES.items()}
    return {**values, "mean": round(latency_ns.mean / 1e6, 6), "max": latency_ns.largest / 1e6}
