"""Slices: every block in exactly one of them, tasks of bounded size."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from neve.pipeline.core.filters import Condition, Filters
from neve.pipeline.core.follow import advance
from neve.pipeline.core.slices import ScanExtent, Slice, cut, pack


def extent(extent_id: int = 1, end: int = 100, *, sealed: bool = True) -> ScanExtent:
    return ScanExtent(extent_id, 7, end, sealed, b"")


@given(st.integers(0, 500), st.integers(1, 600), st.integers(0, 500), st.lists(st.integers(0, 520), max_size=3))
def test_the_slices_of_an_extent_meet_and_cover_what_is_admitted(
    end: int, slice_bytes: int, start: int, bounds: list[int]
) -> None:
    tests = [
        Condition("offset", kind, (bound,)) for kind, bound in zip(("GreaterThan", "LessThan"), bounds, strict=False)
    ]
    filters = Filters(tuple(tests))
    slices = list(cut(extent(end=end), slice_bytes=slice_bytes, filters=filters, start=start))
    covered = [offset for piece in slices for offset in range(piece.start, piece.end)]
    assert covered == [at for at in range(start, end) if filters.admits("offset", at)]
    assert all(0 < piece.end - piece.start <= slice_bytes for piece in slices)


def test_an_open_extent_is_one_slice_from_where_a_block_is_known_to_begin() -> None:
    after = Filters((Condition("offset", "GreaterThan", (60,)),))
    assert [(p.start, p.end) for p in cut(extent(sealed=False), slice_bytes=10, filters=after, start=20)] == [(20, 100)]
    other = Filters((Condition("extent_id", "EqualTo", (2,)),))
    assert list(cut(extent(), slice_bytes=10, filters=other)) == []


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 400))
def test_tasks_keep_the_order_and_the_bound(sizes: list[int], slice_bytes: int) -> None:
    slices = [Slice(extent(number), 0, size) for number, size in enumerate(sizes)]
    packs = pack(slices, slice_bytes=slice_bytes)
    assert [piece for some in packs for piece in some] == slices
    totals = [sum(piece.end for piece in some) for some in packs]
    assert all(total <= slice_bytes or len(some) == 1 for total, some in zip(totals, packs, strict=True))
    assert all(a + b > slice_bytes for a, b in zip(totals, [some[0].end for some in packs[1:]], strict=False))


@st.composite
def growing(draw: st.DrawFn) -> list[list[tuple[int, int, bool]]]:
    """A stream at several moments: extents are appended, the last one grows, and is sealed before the next begins."""
    moments: list[list[tuple[int, int, bool]]] = []
    now: list[tuple[int, int, bool]] = [(1, 0, False)]
    for _ in range(draw(st.integers(1, 6))):
        for _ in range(draw(st.integers(0, 3))):
            extent_id, end, _ = now[-1]
            now[-1] = (extent_id, end + draw(st.integers(0, 50)), False)
            if draw(st.booleans()):
                now[-1] = (*now[-1][:2], True)
                now.append((extent_id + 1, 0, False))
        moments.append(list(now))
    return moments


@given(growing(), st.one_of(st.none(), st.integers(1, 80)))
def test_a_followed_stream_is_read_once_in_order_and_to_its_end(
    moments: list[list[tuple[int, int, bool]]], bytes_max: int | None
) -> None:
    done: dict[int, int] = {}
    for extents in moments:
        before = dict(done)
        done = advance(extents, done, bytes_max)
        fresh = {extent_id: end - before.get(extent_id, 0) for extent_id, end in done.items()}
        assert all(size >= 0 for size in fresh.values())
        if bytes_max is not None and sum(size > 0 for size in fresh.values()) > 1:
            assert sum(fresh.values()) <= bytes_max
        for (extent_id, end, _), (later, _, _) in itertools.pairwise(extents):
            assert done.get(later, 0) == 0 or done.get(extent_id, 0) == end  # in the stream's order
    for _ in range(50):
        done = advance(moments[-1], done, bytes_max)
    assert {extent_id: done.get(extent_id, 0) for extent_id, _, _ in moments[-1]} == {
        e: end for e, end, _ in moments[-1]
    }
    target = {1: 5}
    assert all(end <= target.get(extent_id, 0) for extent_id, end in advance(moments[-1], {}, None, target).items())
