"""Regions, scans and numbers of writes: the decisions, without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.objects.core_routing import (
    CallWindow,
    Region,
    RegionMap,
    ScanCursor,
    attempt_timeout_s,
    key_after,
    map_version_wanted,
    may_have_moved,
    may_heal,
    prefix_end,
    smaller_end,
)
from neve.proto import errors
from neve.proto import partition_manager_pb2 as pm

KEYS = st.binary(min_size=1, max_size=3)


def region_map(*bounds: bytes, version: int = 1) -> RegionMap:
    edges = [b"", *bounds, b""]
    return RegionMap(
        version, [Region(n + 1, edges[n], edges[n + 1], n + 1, f"ps{n + 1}:1") for n in range(len(edges) - 1)]
    )


@given(st.sets(KEYS, max_size=8), KEYS)
def test_every_key_is_found_in_the_region_that_holds_it(bounds: set[bytes], key: bytes) -> None:
    regions = region_map(*sorted(bounds))
    found = regions.find(key)
    assert found is not None
    assert found.holds(key)
    assert [each for each in regions.regions if each.holds(key)] == [found]


@pytest.mark.parametrize(
    "regions",
    [
        [Region(1, b"", b"m", 1, "a:1")],  # no end
        [Region(1, b"a", b"", 1, "a:1")],  # no beginning
        [Region(1, b"", b"m", 1, "a:1"), Region(2, b"n", b"", 1, "a:1")],  # a gap
        [Region(1, b"", b"m", 1, "a:1"), Region(2, b"k", b"", 1, "a:1")],  # an overlap
        [Region(1, b"", b"", 1, "a:1"), Region(2, b"", b"", 1, "a:1")],  # twice
    ],
)
def test_a_map_with_a_gap_or_an_overlap_is_refused(regions: list[Region]) -> None:
    with pytest.raises(errors.ProtocolViolation):
        RegionMap(1, regions)


def test_an_empty_map_has_nobody_for_a_key() -> None:
    assert RegionMap(0).find(b"x") is None


def test_a_map_is_what_the_manager_sent() -> None:
    messages = [
        pm.Region(partition_id=4, start=b"m", end=b"", server_id=2, address="two:1"),
        pm.Region(partition_id=3, start=b"", end=b"m", server_id=1, address="one:1"),
    ]
    regions = RegionMap.from_messages(17, messages)
    assert regions.version == 17
    assert regions.regions == [Region(3, b"", b"m", 1, "one:1"), Region(4, b"m", b"", 2, "two:1")]
    with pytest.raises(errors.ProtocolViolation, match=r"map 18: a region begins at b'm'"):
        RegionMap.from_messages(18, messages[:1])
    with pytest.raises(errors.ProtocolViolation, match=r"map 18: no region contains the keys from b'm' on"):
        RegionMap.from_messages(18, messages[1:])


@given(st.binary(max_size=3), st.binary(max_size=5))
def test_a_prefix_ends_behind_all_keys_that_begin_with_it(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    inside = prefix <= key and (not end or key < end)
    assert inside == key.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"\xfe", b"\xff"), (b"X", b"Y"), (b"aX\xff\xff", b"aY"), (b"\xff", b""), (b"", b"")],
)
def test_where_a_prefix_ends(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


@given(st.binary(max_size=3), st.binary(max_size=3))
def test_no_key_lies_between_a_key_and_the_one_after_it(key: bytes, other: bytes) -> None:
    assert key < key_after(key)
    assert not key < other < key_after(key)
    assert key_after(b"a") == b"a\0"


@given(st.binary(max_size=3), st.binary(max_size=3))
def test_the_tighter_bound_is_kept(one: bytes, other: bytes) -> None:
    infinite = b"\xff" * 9
    assert (smaller_end(one, other) or infinite) == min(one or infinite, other or infinite)


def test_what_another_attempt_heals_and_whether_the_map_is_asked_for() -> None:
    for error in (
        errors.WrongServer(),
        errors.LeaseLost(),
        errors.NotOwner(),
        errors.AppendOutcomeUnknown(),
        errors.ConnectionLost(),
        errors.ShuttingDown(),
        errors.DeadlineExceeded(),
        errors.MetaUnavailable(),
    ):
        assert may_heal(error), error
        assert may_have_moved(error), error
    assert may_heal(errors.Overloaded())
    assert not may_have_moved(errors.Overloaded())
    for final in (
        errors.NotFound(),
        errors.ConditionFailed(),
        errors.InvalidArgument(),
        errors.TooLarge(),
        errors.Unauthenticated(),
        errors.Internal(),
        errors.ProtocolViolation(),
        errors.UnknownError(),
    ):
        assert not may_heal(final), final


def test_a_newer_map_is_waited_for_only_if_the_server_knows_one() -> None:
    assert map_version_wanted(errors.WrongServer(regions_version=7), 5) == 7
    assert map_version_wanted(errors.WrongServer(regions_version=5), 5) == 0
    assert map_version_wanted(errors.ConnectionLost(), 5) == 0


# --- scans -----------------------------------------------------------------------------------------------------


@given(
    keys=st.sets(KEYS, max_size=30),
    bounds=st.lists(st.sets(KEYS, max_size=5), min_size=1, max_size=6),
    prefix=st.binary(max_size=1),
    start=st.binary(max_size=2),
    end=st.binary(max_size=2),
    page=st.integers(1, 4),
    lose=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_t51_a_scan_gives_every_key_once_whatever_the_partitions_do(
    keys: set[bytes],
    bounds: list[set[bytes]],
    prefix: bytes,
    start: bytes,
    end: bytes,
    page: int,
    lose: list[bool],
) -> None:
    """The map is another one for every page, and snapshots are lost now and then."""
    expected = sorted(key for key in keys if key.startswith(prefix) and key >= start and (not end or key < end))
    cursor = ScanCursor.over(prefix=prefix, start=start, end=end)
    given_keys: list[bytes] = []
    for step in range(200):
        if cursor.done:
            break
        regions = region_map(*sorted(bounds[step % len(bounds)]))
        region = regions.find(cursor.start)
        assert region is not None
        asked_end = cursor.end_within(region)
        left = [key for key in sorted(keys) if key >= cursor.start and (not asked_end or key < asked_end)]
        shown = left[:page]
        cursor.advance(region, asked_end, shown, shown[-1] if len(left) > page else b"")
        given_keys += shown
        if lose[step % len(lose)]:
            cursor.forget_snapshot()
    assert cursor.done
    assert given_keys == expected


@pytest.mark.parametrize("page", [[b"a"], [b"c", b"b"], [b"c", b"c"], [b"c", b"m"], [b"c", b"x"]])
def test_a_page_that_goes_back_repeats_or_leaves_its_range_is_refused(page: list[bytes]) -> None:
    cursor = ScanCursor.over(prefix=b"", start=b"b", end=b"m")
    region = Region(1, b"", b"", 1, "a:1")
    with pytest.raises(errors.ProtocolViolation, match="returned the key"):
        cursor.advance(region, b"m", page, b"")


def test_a_continuation_is_for_its_own_partition_alone() -> None:
    cursor = ScanCursor.over(prefix=b"", start=b"", end=b"")
    one, other = Region(1, b"", b"m", 1, "a:1"), Region(2, b"m", b"", 1, "a:1")
    cursor.advance(one, b"m", [b"a"], b"token")
    assert cursor.continuation_for(one) == b"token"
    assert cursor.continuation_for(other) == b""
    assert cursor.start == key_after(b"a")
    cursor.forget_snapshot()
    assert cursor.continuation_for(one) == b""


@pytest.mark.parametrize(
    ("prefix", "start", "end", "first", "bound", "done"),
    [
        (b"", b"b", b"m", b"b", b"m", False),
        (b"", b"b", b"", b"b", b"", False),
        (b"", b"m", b"m", b"m", b"m", True),
        (b"", b"n", b"m", b"n", b"m", True),
        (b"k", b"", b"", b"k", b"l", False),
        (b"k", b"ka", b"kx", b"ka", b"kx", False),
        (b"k", b"a", b"z", b"k", b"l", False),
        (b"k", b"l", b"", b"l", b"l", True),
        (b"k", b"", b"k", b"k", b"k", True),
    ],
)
def test_a_scan_is_of_what_lies_in_both_its_range_and_its_prefix(
    prefix: bytes, start: bytes, end: bytes, first: bytes, bound: bytes, done: bool
) -> None:
    cursor = ScanCursor.over(prefix=prefix, start=start, end=end)
    assert (cursor.start, cursor.end, cursor.done) == (first, bound, done)


def test_a_region_is_asked_up_to_its_own_end_or_that_of_the_scan() -> None:
    cursor = ScanCursor.over(prefix=b"", start=b"b", end=b"m")
    assert cursor.end_within(Region(1, b"", b"k", 1, "a:1")) == b"k"
    assert cursor.end_within(Region(1, b"", b"x", 1, "a:1")) == b"m"
    assert cursor.end_within(Region(1, b"", b"", 1, "a:1")) == b"m"


def test_a_scan_that_has_given_the_last_key_below_its_end_is_done_though_there_is_a_continuation() -> None:
    cursor = ScanCursor.over(prefix=b"", start=b"", end=b"a\0")
    cursor.advance(Region(1, b"", b"", 1, "a:1"), b"a\0", [b"a"], b"token")
    assert cursor.done is True


# --- numbers of writes -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=60))
def test_completed_below_never_passes_a_write_that_is_out(choices: list[int]) -> None:
    window = CallWindow()
    out: list[int] = []
    used: set[int] = set()
    for choice in choices:
        if choice < 5 or not out:
            call_id = window.begin()
            assert call_id not in used
            used.add(call_id)
            out.append(call_id)
        else:
            window.end(out.pop(choice % len(out)))
        assert all(call_id >= window.completed_below for call_id in out)
        if out:
            assert window.completed_below == min(out)
            assert window.span == max(used) + 1 - min(out)
    for call_id in out:
        window.end(call_id)
    assert window.span == 0
    assert window.completed_below == len(used) + 1


def test_each_attempt_that_was_too_long_lets_the_next_one_take_twice_as_long_up_to_a_bound() -> None:
    assert [attempt_timeout_s(0.5, timeouts) for timeouts in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert attempt_timeout_s(0.5, 1000) == attempt_timeout_s(0.5, 6) == 32.0
