"""The region map, and every change that it can have. No I/O.

Invariants: the regions cover every key exactly once: a map that does not is never made (scenario T52);
            every change makes the next version, and every region that it changes gets that version;
            a region's epoch grows exactly when its range or its streams change; then its server loads it again;
            a partition keeps its streams and lock for life; only a split creates streams, only a merge ends some;
            the map itself contains the last calls, so that any manager recognises a repeated one (scenario T19).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neve.meta.keys import partition_lock
from neve.meta.regions import FORMAT
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import InvalidArgument, NotFound

REPLAYED_MAX = 128  # calls in the map: far more than are under way at a time
KEY_BYTES_MAX = 4096


class MapBroken(Exception):
    """The regions do not cover every key exactly once. Only a bug makes such a map."""


@dataclass(frozen=True, slots=True)
class PartitionStreamIds:
    log: int
    row: int
    meta: int


@dataclass(frozen=True, slots=True)
class RegionMap:
    """An immutable version of the map. `regions` are ordered by start."""

    version: int
    regions: tuple[pm.RegionRecord, ...]
    replayed: tuple[pm.ReplayedCall, ...] = ()
    balancing_paused: bool = False
    _by_id: dict[int, pm.RegionRecord] = field(init=False, repr=False, compare=False)
    _starts: list[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {region.partition_id: region for region in self.regions})
        object.__setattr__(self, "_starts", [region.start for region in self.regions])
        self.validate()

    @classmethod
    def of(cls, record: pm.RegionMapRecord, regions: Iterable[pm.RegionRecord]) -> RegionMap:
        """The map as it was stored; MapBroken if it is not valid."""
        ordered = tuple(sorted(regions, key=lambda region: region.start))
        return cls(record.version, ordered, tuple(record.replayed), record.balancing_paused)

    def validate(self) -> None:
        regions = self.regions
        if not regions:
            raise MapBroken("there is no region")
        if len(self._by_id) < len(regions):
            raise MapBroken("a partition is there twice")
        if regions[0].start:
            raise MapBroken(f"no region has the keys before {regions[0].start!r}")
        if regions[-1].end:
            raise MapBroken(f"no region has the keys from {regions[-1].end!r} on")
        for left, right in itertools.pairwise(regions):
            if not left.end or left.end != right.start or left.start >= left.end:
                raise MapBroken(f"partition {left.partition_id} ends at {left.end!r}, the next is at {right.start!r}")
        for region in regions:
            if region.version > self.version:
                raise MapBroken(f"partition {region.partition_id} is newer than the map")

    def get(self, partition_id: int) -> pm.RegionRecord:
        region = self._by_id.get(partition_id)
        if region is None:
            raise NotFound(kind="partition", name=str(partition_id))
        return region

    def has(self, partition_id: int) -> bool:
        return partition_id in self._by_id

    @property
    def starts(self) -> list[bytes]:
        return list(self._starts)

    def find(self, key: bytes) -> pm.RegionRecord:
        """The region that contains a key."""
        return self.regions[bisect_right(self._starts, key) - 1]

    def after(self, key: bytes) -> tuple[pm.RegionRecord, ...]:
        """The regions that begin after `key`; all of them if it is empty."""
        return self.regions[bisect_right(self._starts, key) :] if key else self.regions

    def call_made(self, call: common_pb2.CallId) -> pm.ReplayedCall | None:
        """The record of this call, if it changed the map recently."""
        for made in reversed(self.replayed):
            if (made.call.client_id, made.call.call_id) == (call.client_id, call.call_id) and call.client_id:
                return made
        return None

    def record(self) -> pm.RegionMapRecord:
        return pm.RegionMapRecord(
            format=FORMAT,
            version=self.version,
            replayed=self.replayed,
            balancing_paused=self.balancing_paused,
        )


@dataclass(frozen=True, slots=True)
class Change:
    """A change from one map to the next: what to put and delete, in one transaction with the map's own record."""

    after: RegionMap
    put: tuple[pm.RegionRecord, ...]
    deleted: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        return self.after.version


@dataclass(frozen=True, slots=True)
class Cause:
    """The call that causes a change. The map records it."""

    call: common_pb2.CallId
    method_id: int


def check_split_keys(split_keys: Sequence[bytes]) -> None:
    for key in split_keys:
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise InvalidArgument(what="split_keys", detail=f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}")
    if any(left >= right for left, right in itertools.pairwise(split_keys)):
        raise InvalidArgument(what="split_keys", detail="they must be in ascending order, without repetitions")


def new_region(partition_id: int, start: bytes, end: bytes, streams: PartitionStreamIds) -> pm.RegionRecord:
    return pm.RegionRecord(
        format=FORMAT,
        partition_id=partition_id,
        start=start,
        end=end,
        log_stream_id=streams.log,
        row_stream_id=streams.row,
        meta_stream_id=streams.meta,
        lock=partition_lock(partition_id),
        epoch=1,
    )


def bootstrap(regions: Sequence[pm.RegionRecord], cause: Cause) -> Change:
    """The first map."""
    put = [_touched(region, version=1) for region in regions]
    replayed = _remembered((), cause, [region.partition_id for region in put], version=1)
    return Change(RegionMap(1, tuple(put), replayed), tuple(put))


def check_middle_key(region: pm.RegionRecord, middle_key: bytes) -> None:
    """Check that both sides of a split have a key.

    A middle key outside is an error, never a silent OK (scenario T19).
    """
    if len(middle_key) > KEY_BYTES_MAX:
        raise InvalidArgument(what="middle_key", detail=f"{len(middle_key)} bytes, at most {KEY_BYTES_MAX}")
    if not region.start < middle_key or (region.end and middle_key >= region.end):
        detail = f"{middle_key!r} is not inside ({region.start!r}, {region.end!r})"
        raise InvalidArgument(what="middle_key", detail=detail)


def split(
    before: RegionMap,
    partition_id: int,
    *,
    middle_key: bytes,
    right_id: int,
    right_streams: PartitionStreamIds,
    cause: Cause,
) -> Change:
    """Split [start, end) into [start, middle) with its streams and [middle, end) with their twins. The server stays."""
    region = before.get(partition_id)
    check_middle_key(region, middle_key)
    if before.has(right_id):
        raise InvalidArgument(what="right_id", detail=f"partition {right_id} exists already")
    version = before.version + 1
    left = _touched(region, version=version, end=middle_key, epoch=region.epoch + 1)
    right = _touched(
        region,
        version=version,
        partition_id=right_id,
        start=middle_key,
        log_stream_id=right_streams.log,
        row_stream_id=right_streams.row,
        meta_stream_id=right_streams.meta,
        lock=partition_lock(right_id),
        epoch=1,
    )
    return _change(before, [left, right], cause)


def merge(
    before: RegionMap,
    left_id: int,
    right_id: int,
    *,
    manifests: Sequence[common_pb2.Position],
    cause: Cause,
) -> Change:
    """Merge: the left partition takes over the keys of its right neighbour, whose streams are joined to its own."""
    left, right = before.get(left_id), before.get(right_id)
    check_neighbours(left, right)
    version = before.version + 1
    grown = _touched(left, version=version, end=right.end, epoch=left.epoch + 1, merged_at=version)
    del grown.merged_manifests[:]
    grown.merged_manifests.extend(manifests)
    return _change(before, [grown], cause, deleted=[right_id])


def check_neighbours(left: pm.RegionRecord, right: pm.RegionRecord) -> None:
    if not left.end or left.end != right.start:
        detail = f"partition {right.partition_id} does not begin where partition {left.partition_id} ends"
        raise InvalidArgument(what="right_partition_id", detail=detail)


def move(before: RegionMap, servers: Mapping[int, int], cause: Cause) -> Change | None:
    """Assign partitions to servers; None if all of them are there already."""
    moved = [
        _touched(region, version=before.version + 1, server_id=servers[region.partition_id])
        for region in before.regions
        if servers.get(region.partition_id, region.server_id) != region.server_id
    ]
    return _change(before, moved, cause) if moved else None


def pause_balancing(before: RegionMap, paused: bool, cause: Cause) -> Change:
    """Pause or resume balancing. The version changes even if nothing else does, because the map records the call."""
    return _change(before, [], cause, paused=paused)


def remember(before: RegionMap, partition_id: int, cause: Cause) -> Change:
    """A version in which no region changes, because the call found the partition as it should be.

    The map records the call, so that repeating it changes nothing either, even if the partition has changed by then
    (scenario T50).
    """
    return _change(before, [], cause, unchanged=[partition_id])


def _touched(region: pm.RegionRecord, **changes: bytes | int | str) -> pm.RegionRecord:
    copy = pm.RegionRecord()
    copy.CopyFrom(region)
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


def _change(
    before: RegionMap,
    put: Sequence[pm.RegionRecord],
    cause: Cause,
    *,
    deleted: Sequence[int] = (),
    unchanged: Sequence[int] = (),
    paused: bool | None = None,
) -> Change:
    version = before.version + 1
    regions = {region.partition_id: region for region in before.regions if region.partition_id not in deleted}
    regions.update((region.partition_id, region) for region in put)
    touched = [*(region.partition_id for region in put), *deleted, *unchanged]
    after = RegionMap(
        version,
        tuple(sorted(regions.values(), key=lambda region: region.start)),
        _remembered(before.replayed, cause, touched, version=version),
        before.balancing_paused if paused is None else paused,
    )
    return Change(after, tuple(put), tuple(deleted))


def _remembered(
    before: Sequence[pm.ReplayedCall], cause: Cause, partition_ids: Sequence[int], *, version: int
) -> tuple[pm.ReplayedCall, ...]:
    made = pm.ReplayedCall(call=cause.call, method_id=cause.method_id, partition_ids=partition_ids[:2], version=version)
    return (*before, made)[-REPLAYED_MAX:]
