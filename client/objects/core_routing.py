"""Which server has a key, what an error means for an operation, and which write is which. Pure.

    RegionMap    the regions of one version of the map: from a key to who serves it
    ScanCursor   a walk over a key range that spans partitions, whatever happens to them meanwhile
    CallWindow   numbers of writes, and up to which all of them have ended

Invariants: a map covers every key once, or is refused (an empty one: nothing was set up yet);
            a scan goes on behind the last key that it has given, so that no split or move makes it miss or repeat one;
            a number in a window is used once, and `completed_below` never passes one that may still be sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import (
    Cancelled,
    MetaError,
    NeveError,
    Overloaded,
    OwnershipError,
    ProtocolViolation,
    ReplicaError,
    StreamError,
    TransportError,
    WrongServer,
)

# --- the map -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """The key range [start, end) and who serves it; an empty `end` has no bound, an empty address is nobody yet."""

    partition_id: int
    start: bytes
    end: bytes
    server_id: int
    address: str

    def holds(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)


class RegionMap:
    """The regions of one version."""

    __slots__ = ("_starts", "regions", "version")

    def __init__(self, version: int, regions: Iterable[Region] = ()) -> None:
        self.version = version
        self.regions = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self.regions]
        self.validate()

    @classmethod
    def from_messages(cls, version: int, messages: Iterable[pm.Region]) -> RegionMap:
        return cls(
            version,
            [Region(each.partition_id, each.start, each.end, each.server_id, each.address) for each in messages],
        )

    def validate(self) -> None:
        """ProtocolViolation if a key has no region, or two."""
        expected = b""
        for number, region in enumerate(self.regions):
            if region.start != expected or (number and not expected):
                raise ProtocolViolation(
                    detail=f"map {self.version}: a region begins at {region.start!r}, not {expected!r}"
                )
            expected = region.end
        if self.regions and expected:
            raise ProtocolViolation(detail=f"map {self.version}: no region has the keys from {expected!r} on")

    def find(self, key: bytes) -> Region | None:
        """Who has this key; None while nothing was set up."""
        number = bisect_right(self._starts, key) - 1
        return self.regions[number] if number >= 0 else None


# --- what an error means -------------------------------------------------------------------------------------

# The partition's own streams failed under it, its server lost its lease, or nobody could be reached: the same request,
# with the same call id, may succeed at whoever serves the key in a moment.
TIMEOUT_DOUBLINGS_MAX = 6
_HEALED_ELSEWHERE = (OwnershipError, StreamError, ReplicaError, MetaError, Cancelled)


def may_heal(error: NeveError) -> bool:
    """Whether the same operation may succeed a moment later."""
    return isinstance(error, _HEALED_ELSEWHERE) or (isinstance(error, TransportError) and error.retriable)


def asks_for_the_map(error: NeveError) -> bool:
    """Whether somebody else may serve the key by now."""
    return not isinstance(error, Overloaded)


def map_version_wanted(error: NeveError, version: int) -> int:
    """The version of the map that the next attempt needs; 0: any, there may be nothing newer yet."""
    if isinstance(error, WrongServer) and error.regions_version > version:
        return error.regions_version
    return 0


# --- scans ---------------------------------------------------------------------------------------------------


def attempt_timeout_s(first_s: float, timeouts: int) -> float:
    """How long the next attempt may take, after so many that were too long: a server forgets the call of a caller that
    has gone, so that whatever takes longer than the first would never be done."""
    return first_s * 2.0 ** min(timeouts, TIMEOUT_DOUBLINGS_MAX)


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`; empty: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def key_after(key: bytes) -> bytes:
    """The smallest key above `key`."""
    return key + b"\0"


def smaller_end(one: bytes, other: bytes) -> bytes:
    """The tighter of two exclusive bounds, where empty is none."""
    if not one or not other:
        return one or other
    return min(one, other)


@dataclass(slots=True)
class ScanCursor:
    """Where a scan is. `start` moves forward; `end` stays."""

    start: bytes
    end: bytes  # empty: no bound
    continuation: bytes = b""  # of `partition_id` alone
    partition_id: int = 0
    done: bool = False

    @classmethod
    def over(cls, *, prefix: bytes, start: bytes, end: bytes) -> ScanCursor:
        bound = smaller_end(end, prefix_end(prefix)) if prefix else end
        cursor = cls(max(start, prefix), bound)
        cursor.done = bool(bound) and cursor.start >= bound
        return cursor

    def end_within(self, region: Region) -> bytes:
        """Up to where this region can answer."""
        return smaller_end(self.end, region.end)

    def continuation_for(self, region: Region) -> bytes:
        """A continuation is of one partition's snapshot: another partition, even a half of it, begins anew."""
        return self.continuation if region.partition_id == self.partition_id else b""

    def forget_snapshot(self) -> None:
        """After trouble: go on by the key alone."""
        self.continuation = b""

    def advance(self, region: Region, asked_end: bytes, keys: Sequence[bytes], continuation: bytes) -> None:
        """A page came for [start, asked_end): remember how far it went. Refuses a page that could break the promise."""
        last = self.start
        for number, key in enumerate(keys):
            if key < last or (number and key == last) or (asked_end and key >= asked_end):
                raise ProtocolViolation(detail=f"a scan of [{self.start!r}, {asked_end!r}) gave the key {key!r}")
            last = key
        if keys:
            self.start = key_after(keys[-1])
        self.partition_id, self.continuation = region.partition_id, continuation
        if not continuation:  # complete up to what was asked for
            if not asked_end or asked_end == self.end:
                self.done = True
            else:
                self.start = max(self.start, asked_end)
        if self.end and self.start >= self.end:
            self.done = True


# --- numbers of writes ---------------------------------------------------------------------------------------


class CallWindow:
    """Numbers of writes: which are out, and below which all have ended."""

    __slots__ = ("_ended", "_last", "completed_below")

    def __init__(self) -> None:
        self._last = 0
        self._ended: set[int] = set()
        self.completed_below = 1

    @property
    def span(self) -> int:
        """From the oldest that is out to the newest: how many answers servers may have to keep."""
        return self._last + 1 - self.completed_below

    def begin(self) -> int:
        self._last += 1
        return self._last

    def end(self, call_id: int) -> None:
        """It was answered, or given up: it is never sent again."""
        assert self.completed_below <= call_id <= self._last, call_id
        if call_id != self.completed_below:
            self._ended.add(call_id)
            return
        below = call_id + 1
        while below in self._ended:
            self._ended.remove(below)
            below += 1
        self.completed_below = below
