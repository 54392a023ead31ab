"""The region map: whatever is done to it, it covers all keys once, or it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.partition_manager import core_regions as core
from neve.partition_manager.core_regions import (
    KEY_BYTES_MAX,
    Cause,
    Change,
    MapBroken,
    PartitionStreamIds,
    RegionMap,
)
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import InvalidArgument, NotFound


def cause(number: int = 1, method_id: int = 7) -> Cause:
    return Cause(common_pb2.CallId(client_id=5, call_id=number), method_id)


def streams_of(number: int) -> PartitionStreamIds:
    return PartitionStreamIds(100 * number + 1, 100 * number + 2, 100 * number + 3)


def first_map(*split_keys: bytes) -> RegionMap:
    edges = [b"", *split_keys, b""]
    regions = [
        core.new_region(10 * number, edges[number - 1], edges[number], streams_of(number))
        for number in range(1, len(edges))
    ]
    return core.bootstrap(regions, cause()).after


def split(before: RegionMap, partition_id: int, middle_key: bytes, right_id: int, number: int = 2) -> Change:
    streams = PartitionStreamIds(right_id + 1, right_id + 2, right_id + 3)
    return core.split(
        before, partition_id, middle_key=middle_key, right_id=right_id, right_streams=streams, cause=cause(number)
    )


KEYS = st.binary(min_size=1, max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["split", "merge", "move", "pause"]), KEYS, st.integers(0, 5)), max_size=30)


@given(st.lists(KEYS, unique=True, max_size=6).map(sorted), STEPS, st.lists(KEYS, max_size=10))
def test_t52_any_changes_leave_every_key_in_one_region(
    split_keys: list[bytes], steps: list[tuple[str, bytes, int]], probes: list[bytes]
) -> None:
    now = first_map(*split_keys)
    stored = {region.partition_id: region for region in now.regions}
    for number, (what, key, server_id) in enumerate(steps, start=2):
        region = now.find(key)
        change: Change | None = None
        if what == "split" and key != region.start:
            change = split(now, region.partition_id, key, 1000 * number, number)
        elif what == "merge" and region.end:
            right = now.find(region.end)
            where = [common_pb2.Position(extent_id=1), common_pb2.Position(extent_id=2)]
            change = core.merge(now, region.partition_id, right.partition_id, manifests=where, cause=cause(number))
        elif what == "move":
            change = core.move(now, {region.partition_id: server_id}, cause(number))
        elif what == "pause":
            change = core.pause_balancing(now, bool(server_id % 2), cause(number))
        if change is None:
            continue
        for put in change.put:
            stored[put.partition_id] = put
        for gone in change.deleted:
            del stored[gone]
        assert change.version == now.version + 1
        assert all(put.version == change.version for put in change.put)
        assert change.after.call_made(cause(number).call) is not None
        now = change.after
        # What is stored key by key is the same map as the one that was decided.
        assert RegionMap.of(now.record(), stored.values()) == now
    for probe in [*probes, b"\x00", b"\xff" * 5]:
        owners = [r for r in now.regions if r.start <= probe and (not r.end or probe < r.end)]
        assert owners == [now.find(probe)]


@given(st.lists(st.tuples(KEYS, KEYS), min_size=1, max_size=4))
def test_regions_with_a_gap_or_an_overlap_are_no_map(ranges: list[tuple[bytes, bytes]]) -> None:
    """Against a slow oracle: each key of a small universe is counted."""
    regions = [
        core.new_region(number, start, end, PartitionStreamIds(1, 2, 3))
        for number, (start, end) in enumerate(ranges, 1)
    ]
    regions[0].start = b""
    regions[-1].end = b""
    edges = sorted({key for each in ranges for key in each} | {b"\x00", b"\xff" * 4})
    probes = [key + tail for key in edges for tail in (b"", b"\x00")]
    covered = all(sum(r.start <= key and (not r.end or key < r.end) for r in regions) == 1 for key in probes)
    sound = covered and all(not r.end or r.start < r.end for r in regions)
    record = pm.RegionMapRecord(format=1, version=1)
    if sound:
        RegionMap.of(record, regions)
    else:
        with pytest.raises(MapBroken):
            RegionMap.of(record, regions)


def test_the_first_map_is_what_was_asked_for_and_remembers_who_asked() -> None:
    regions = [
        core.new_region(10, b"", b"m", streams_of(1)),
        core.new_region(20, b"m", b"", streams_of(2)),
    ]
    change = core.bootstrap(regions, cause(9))
    assert change.put == change.after.regions
    assert [(r.format, r.epoch, r.version) for r in change.put] == [(1, 1, 1)] * 2
    assert [(r.log_stream_id, r.row_stream_id, r.meta_stream_id) for r in change.put] == [
        (101, 102, 103),
        (201, 202, 203),
    ]
    made = change.after.call_made(cause(9).call)
    assert made is not None
    assert (made.version, made.method_id, list(made.partition_ids)) == (1, 7, [10, 20])
    assert change.after.record().format == 1


def test_what_lies_behind_a_key() -> None:
    regions = first_map(b"g", b"p")
    assert regions.after(b"") == regions.regions
    assert regions.after(b"g") == regions.regions[2:]
    assert regions.after(b"h") == regions.regions[2:]
    assert regions.after(b"p") == ()
    with pytest.raises(NotFound, match="no such partition: 99"):
        regions.get(99)


def test_keys_may_be_as_long_as_keys_may_be() -> None:
    longest = b"k" * KEY_BYTES_MAX
    core.check_split_keys([b"a", longest])
    core.check_middle_key(first_map().find(b"a"), longest)
    for wrong in ([longest + b"k"], [b""], [b"b", b"a"], [b"a", b"a"]):
        with pytest.raises(InvalidArgument, match="split_keys"):
            core.check_split_keys(wrong)
    with pytest.raises(InvalidArgument, match="middle_key"):
        core.check_middle_key(first_map().find(b"a"), longest + b"k")


def test_a_split_cannot_make_a_partition_that_is_there() -> None:
    with pytest.raises(InvalidArgument, match="partition 30 exists already"):
        split(first_map(b"g", b"p"), 20, b"h", 30)


def test_t19_a_middle_key_outside_of_the_region_is_an_error() -> None:
    before = first_map(b"g", b"p")
    for partition_id, middle_key in ((20, b"g"), (20, b"p"), (20, b"a"), (20, b"z"), (20, b""), (10, b""), (30, b"p")):
        with pytest.raises(InvalidArgument):
            split(before, partition_id, middle_key, 1000)
    with pytest.raises(InvalidArgument):
        split(before, 20, b"h" * 5000, 1000)
    with pytest.raises(NotFound):
        split(before, 99, b"h", 1000)


def test_a_split_keeps_the_left_streams_and_gives_the_right_ones_another_lock() -> None:
    before = core.move(first_map(b"m"), {20: 4}, cause(2))
    assert before is not None
    after = split(before.after, 20, b"t", 1000, 3).after
    left, right = after.get(20), after.get(1000)
    assert (left.start, left.end, right.start, right.end) == (b"m", b"t", b"t", b"")
    assert (left.log_stream_id, left.row_stream_id, left.meta_stream_id) == (201, 202, 203)
    assert (right.log_stream_id, right.row_stream_id, right.meta_stream_id) == (1001, 1002, 1003)
    assert (left.lock, right.lock) == ("partition/0000000000000014", "partition/00000000000003e8")
    assert (left.server_id, right.server_id) == (4, 4)
    assert (left.epoch, right.epoch, after.get(10).epoch) == (2, 1, 1)
    assert after.get(10).version == 1, "a region that is not touched keeps its version"


def test_only_neighbours_are_merged_and_the_right_one_goes() -> None:
    before = first_map(b"g", b"p")
    where = [common_pb2.Position(extent_id=7, offset=1), common_pb2.Position(extent_id=9)]
    for left, right in ((10, 30), (20, 10), (10, 10)):
        with pytest.raises(InvalidArgument):
            core.merge(before, left, right, manifests=where, cause=cause(2))
    change = core.merge(before, 10, 20, manifests=where, cause=cause(2))
    grown = change.after.get(10)
    assert (grown.start, grown.end, grown.epoch, grown.merged_at) == (b"", b"p", 2, 2)
    assert list(grown.merged_manifests) == where
    assert change.deleted == (20,)
    again = core.merge(change.after, 10, 30, manifests=where[:1], cause=cause(3)).after.get(10)
    assert list(again.merged_manifests) == where[:1], "what described an earlier merge is replaced"


def test_a_move_changes_neither_epoch_nor_range_and_nothing_if_it_is_there() -> None:
    before = first_map(b"g")
    change = core.move(before, {10: 3, 20: 0}, cause(2))
    assert change is not None
    assert [(each.partition_id, each.server_id, each.epoch) for each in change.put] == [(10, 3, 1)]
    assert core.move(change.after, {10: 3}, cause(3)) is None


def test_calls_are_remembered_by_number_and_the_oldest_are_forgotten() -> None:
    now = first_map()
    for number in range(2, core.REPLAYED_MAX + 10):
        moved = core.move(now, {10: number}, cause(number))
        assert moved is not None
        now = moved.after
    assert len(now.replayed) == core.REPLAYED_MAX
    assert now.call_made(cause(2).call) is None
    assert now.call_made(common_pb2.CallId()) is None, "a call without an id is never one of before"
    made = now.call_made(common_pb2.CallId(client_id=5, call_id=100, completed_below=3))
    assert made is not None
    assert made.version == 100


def test_split_keys_are_in_order_and_of_a_size() -> None:
    core.check_split_keys([b"a", b"b"])
    for wrong in ([b"b", b"a"], [b"a", b"a"], [b""], [b"x" * 4097]):
        with pytest.raises(InvalidArgument):
            core.check_split_keys(wrong)
