"""The memory of failures: it fades, and it is bounded."""

from __future__ import annotations

from neve.stream_manager.placement.failure_history import FailureHistory


def test_a_failure_fades_and_is_forgiven() -> None:
    history = FailureHistory(half_life_s=60)
    assert history.failures(1, 0.0) == 0
    history.note_failure(1, 0.0)
    assert history.failures(1, 0.0) == 1
    assert 0.5 < history.failures(1, 59.0) < 0.52
    assert history.failures(1, 61.0) == 0


def test_who_failed_more_often_counts_more_but_not_without_bound() -> None:
    history = FailureHistory(half_life_s=60)
    for node_id in (1, 1, 1, 2, 3, 3):
        history.note_failure(node_id, 0.0)
    assert [history.failures(node_id, 0.0) for node_id in (1, 2, 3)] == [3, 1, 2]
    for _ in range(10_000):
        history.note_failure(1, 0.0)
    assert history.failures(1, 600.0) == 0


def test_failures_of_made_up_nodes_do_not_pile_up() -> None:
    history = FailureHistory(nodes_max=10)
    for node_id in range(1000):
        history.note_failure(node_id, 0.0)
    assert history.failures(0, 0.0) == 0
    assert history.failures(999, 0.0) == 1
    assert len(history._failures) == 10
