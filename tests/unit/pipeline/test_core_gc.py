"""What a GC run proposes: never on incomplete evidence, never what is young, always the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from neve.pipeline.core.gc import (
    COLLECT,
    DELETE,
    KEEP,
    RECLAIM,
    Evidence,
    LogExtent,
    Policy,
    UnlistedFile,
    UnreferencedExtent,
    make_plan,
)

NOW_MS = 1_000_000
POLICY = Policy(grace_ms=10_000, live_share_max=0.5)
ages = st.sampled_from([0, 9_999, 10_000, 500_000])


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    ids = draw(st.lists(st.integers(1, 50), unique=True, max_size=12))
    unreferenced, unlisted, logs = [], [], []
    for extent_id in ids:
        created_ms = NOW_MS - draw(ages)
        match draw(st.integers(0, 2)):
            case 0:
                changed = draw(st.sampled_from([5, 7, 8]))
                unreferenced.append(UnreferencedExtent(extent_id, 2, 300, created_ms, changed))
            case 1:
                unlisted.append(UnlistedFile(extent_id, 1, 99, 100, created_ms, draw(st.booleans())))
            case _:
                live = draw(st.integers(0, 100))
                pinned = draw(st.sampled_from(["", "it is open"]))
                logs.append(LogExtent(4, extent_id, 2, 100, live, 3, created_ms, pinned))
    return Evidence(7, NOW_MS, unreferenced, unlisted, logs)


@given(evidence())
def test_only_what_is_old_and_unneeded_is_proposed(seen: Evidence) -> None:
    plan = make_plan(seen, POLICY)
    assert plan.refused == []
    proposed = {row.extent_id: row for row in plan.rows if row.action != KEEP}
    assert len(plan.rows) == len(seen.unreferenced) + len(seen.unlisted) + len(seen.logs)
    for extent in seen.unreferenced:
        old = NOW_MS - extent.created_ms >= POLICY.grace_ms and extent.changed_revision <= 7
        assert (extent.extent_id in proposed) == old
        if old:
            assert (proposed[extent.extent_id].action, proposed[extent.extent_id].eversion) == (DELETE, 2)
    for file in seen.unlisted:
        assert (file.extent_id in proposed) == (NOW_MS - file.created_ms >= POLICY.grace_ms)
        assert all(proposed[file.extent_id].action == COLLECT for _ in [0] if file.extent_id in proposed)
    for log in seen.logs:
        old = NOW_MS - log.created_ms >= POLICY.grace_ms
        wanted = old and not log.pinned and log.live_bytes <= 50
        assert (log.extent_id in proposed) == wanted
        if wanted:
            row = proposed[log.extent_id]
            assert (row.action, row.size_bytes, row.live_bytes) == (RECLAIM, 300, log.live_bytes)
    assert all(row.reason for row in plan.rows)
    shuffled = replace(seen, unreferenced=seen.unreferenced[::-1], unlisted=seen.unlisted[::-1], logs=seen.logs[::-1])
    assert make_plan(shuffled, POLICY) == plan


def test_t38_an_extent_that_partitions_share_comes_back_once_whatever_the_order() -> None:
    def shared(partition_id: int, extent_id: int, live_bytes: int) -> LogExtent:
        return LogExtent(partition_id, extent_id, 2, 100, live_bytes, 3, 0)

    logs = [shared(4, 1, 10), shared(5, 1, 20), shared(4, 2, 10), shared(5, 2, 90), shared(6, 3, 0)]
    plan = make_plan(Evidence(7, NOW_MS, logs=logs), POLICY)
    rows = {(row.extent_id, row.partition_id): (row.action, row.size_bytes) for row in plan.rows}
    assert rows == {
        (1, 4): (RECLAIM, 300),
        (1, 5): (RECLAIM, 0),
        (2, 4): (RECLAIM, 0),  # its own part can go; partition 5 needs the extent
        (2, 5): (KEEP, 300),
        (3, 6): (RECLAIM, 300),
    }
    reasons = {(row.extent_id, row.partition_id): row.reason for row in plan.rows}
    assert "partition 5 has it, too" in reasons[2, 4]
    assert make_plan(Evidence(7, NOW_MS, logs=logs[::-1]), POLICY) == plan


@given(evidence(), st.lists(st.sampled_from(["node 3", "partition 9", "a page"]), min_size=1))
def test_t36_evidence_that_lacks_anything_proposes_nothing(seen: Evidence, missing: list[str]) -> None:
    plan = make_plan(replace(seen, missing=missing), POLICY)
    assert plan.rows == []
    assert plan.refused == sorted(missing)
