"""Decisions of the key-value client: which server has a key, whether an error can heal, and how writes are numbered.

    RegionMap    the regions of one version of the map, with the server of each
    ScanCursor   the progress of a scan across partitions, whatever happens to them meanwhile
    CallWindow   the numbers of writes, and the number below which all have ended

Invariants: a map covers every key once, or is refused; an empty one means that no partitions exist yet;
            a scan continues after the last key returned, so a split or move makes it neither skip nor repeat a key;
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
    """The key range [start, end) and its server. An empty `end` means no bound, an empty `address` no server yet."""

    partition_id: int
    start: bytes
    end: bytes
    server_id: int
    address: str

    def holds(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)


class RegionMap:
    """The regions of one version of the map."""

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
        """Raise ProtocolViolation if a key has no region or two."""
        expected = b""
        for number, region in enumerate(self.regions):
            if region.start != expected or (number and not expected):
                raise ProtocolViolation(
                    detail=f"map {self.version}: a region begins at {region.start!r}, not {expected!r}"
                )
            expected = region.end
        if self.regions and expected:
            raise ProtocolViolation(detail=f"map {self.version}: no region contains the keys from {expected!r} on")

    def find(self, key: bytes) -> Region | None:
        """Return the region of this key; None if no partitions exist yet."""
        number = bisect_right(self._starts, key) - 1
        return self.regions[number] if number >= 0 else None


# --- handling errors -----------------------------------------------------------------------------------------

# The partition's streams failed, its server lost its lease, or it was unreachable: a moment later, the same request
# with the same call id may succeed at the key's server.
TIMEOUT_DOUBLINGS_MAX = 6
_HEALED_ELSEWHERE = (OwnershipError, StreamError, ReplicaError, MetaError, Cancelled)


def may_heal(error: NeveError) -> bool:
    """Whether the same operation may succeed later."""
    return isinstance(error, _HEALED_ELSEWHERE) or (isinstance(error, TransportError) and error.retriable)


def may_have_moved(error: NeveError) -> bool:
    """Whether another server may serve the key by now."""
    return not isinstance(error, Overloaded)


def map_version_wanted(error: NeveError, version: int) -> int:
    """Return the map version that the next attempt needs; 0: any, since there may be no newer one."""
    if isinstance(error, WrongServer) and error.regions_version > version:
        return error.regions_version
    return 0


# --- scans ---------------------------------------------------------------------------------------------------


def attempt_timeout_s(first_s: float, timeouts: int) -> float:
    """Return the timeout of the next attempt, after this many that timed out.

    It doubles, because a server drops the call of a caller that has given up: an operation that takes longer than a
    constant timeout would never complete.
    """
    return first_s * 2.0 ** min(timeouts, TIMEOUT_DOUBLINGS_MAX)


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix; empty if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


def key_after(key: bytes) -> bytes:
    """Return the smallest key above `key`."""
    return key + b"\0"


def smaller_end(one: bytes, other: bytes) -> bytes:
    """Return the smaller of two exclusive bounds, where empty means no bound."""
    if not one or not other:
        return one or other
    return min(one, other)


@dataclass(slots=True)
class ScanCursor:
    """The progress of a scan. `start` moves forward; `end` stays."""

    start: bytes
    end: bytes  # empty: no bound
    continuation: bytes = b""  # valid for `partition_id` only
    partition_id: int = 0
    done: bool = False

    @classmethod
    def over(cls, *, prefix: bytes, start: bytes, end: bytes) -> ScanCursor:
        bound = smaller_end(end, prefix_end(prefix)) if prefix else end
        cursor = cls(max(start, prefix), bound)
        cursor.done = bool(bound) and cursor.start >= bound
        return cursor

    def end_within(self, region: Region) -> bytes:
        """Return the end of the part of the scan that this region contains."""
        return smaller_end(self.end, region.end)

    def continuation_for(self, region: Region) -> bytes:
        """Return the continuation for a region. It is of one partition's snapshot, so any other one starts without."""
        return self.continuation if region.partition_id == self.partition_id else b""

    def forget_snapshot(self) -> None:
        """The server has dropped the snapshot: continue by key alone."""
        self.continuation = b""

    def advance(self, region: Region, asked_end: bytes, keys: Sequence[bytes], continuation: bytes) -> None:
        """Record a page for [start, asked_end). Raises ProtocolViolation for keys out of order or range."""
        last = self.start
        for number, key in enumerate(keys):
            if key < last or (number and key == last) or (asked_end and key >= asked_end):
                raise ProtocolViolation(detail=f"a scan of [{self.start!r}, {asked_end!r}) returned the key {key!r}")
            last = key
        if keys:
            self.start = key_after(keys[-1])
        self.partition_id, self.continuation = region.partition_id, continuation
        if not continuation:  # the page is complete up to `asked_end`
            if not asked_end or asked_end == self.end:
                self.done = True
            else:
                self.start = max(self.start, asked_end)
        if self.end and self.start >= self.end:
            self.done = True


# --- numbers of writes ---------------------------------------------------------------------------------------


class CallWindow:
    """The numbers of writes: which are open, and below which all have ended."""

    __slots__ = ("_ended", "_last", "completed_below")

    def __init__(self) -> None:
        self._last = 0
        self._ended: set[int] = set()
        self.completed_below = 1

    @property
    def span(self) -> int:
        """The distance from the oldest open write to the newest, which bounds the replies that servers keep."""
        return self._last + 1 - self.completed_below

    def begin(self) -> int:
        self._last += 1
        return self._last

    def end(self, call_id: int) -> None:
        """The write was answered or given up, and is never sent again."""
        assert self.completed_below <= call_id <= self._last, call_id
        if call_id != self.completed_below:
            self._ended.add(call_id)
            return
        below = call_id + 1
        while below in self._ended:
            self._ended.remove(below)
            below += 1
        self.completed_below = below
