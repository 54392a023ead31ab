"""Delays double up to a bound; a memory of what was tried is bounded."""

from __future__ import annotations

import pytest

from neve.meta.core_retry import Backoff, Delays, Retries, Retry

DELAYS = Delays(1.0, 10.0)


def test_delays_double_up_to_the_bound() -> None:
    assert [DELAYS.after(failures) for failures in range(6)] == [1, 2, 4, 8, 10, 10]
    assert DELAYS.after(10**6) == 10
    assert DELAYS.after(1, factor=0.75) == 1.5


def test_the_delays_of_a_loop_are_spread_and_begin_again_after_a_success() -> None:
    factors = iter([1.0, 0.5, 0.5, 0.75])
    backoff = Backoff(DELAYS, lambda: next(factors))
    assert [backoff.next_s() for _ in range(3)] == [1.0, 1.0, 2.0]
    backoff.reset()
    assert backoff.next_s() == 0.75
    unspread = Backoff(DELAYS)
    assert [unspread.next_s() for _ in range(5)] == [1, 2, 4, 8, 10]


def test_what_was_not_tried_is_due_and_each_attempt_puts_it_off_for_longer() -> None:
    retry = Retry()
    assert retry.is_due(0.0)
    for now_s, due_s in ((0.0, 1.0), (5.0, 7.0), (7.0, 11.0)):
        retry.postpone(now_s, DELAYS)
        assert retry.due_s == due_s
        assert not retry.is_due(due_s - 0.01)
        assert retry.is_due(due_s)
    assert retry.attempts == 3


def test_a_memory_keeps_each_key_apart_until_it_is_forgotten() -> None:
    retries = Retries[str](DELAYS)
    assert retries.is_due("a", 0.0)
    assert retries.attempts("a") == 0
    retries.postpone("a", 0.0)
    retries.postpone("a", 0.0)
    retries.postpone("b", 0.0)
    assert (retries.attempts("a"), retries.attempts("b")) == (2, 1)
    assert [*retries] == ["a", "b"]
    assert retries.due(1.0) == ["b"]
    assert retries.due(2.0) == ["a", "b"]
    retries.forget("a")
    retries.forget("a")
    assert "a" not in retries
    assert retries.is_due("a", 0.0)
    retries.postpone("a", 0.0)
    assert not retries.is_due("a", 0.9), "it begins again with the first delay"
    assert retries.is_due("a", 1.0)


def test_what_is_expected_is_due_at_its_time_and_has_not_been_tried() -> None:
    retries = Retries[int](DELAYS)
    retries.expect(1, 5.0)
    retries.expect(1, 50.0)
    assert not retries.is_due(1, 4.9)
    assert retries.due(5.0) == [1]
    assert retries.attempts(1) == 0


@pytest.mark.parametrize("known", [[1, 2, 3], [1, 2, 1, 3]])
def test_a_full_memory_forgets_the_key_that_was_postponed_longest_ago(known: list[int]) -> None:
    retries = Retries[int](DELAYS, keys_max=3)
    for key in known:
        retries.postpone(key, 0.0)
    oldest = next(iter(retries))
    retries.postpone(4, 0.0)
    assert len(retries) == 3
    assert oldest not in retries
    assert retries.is_due(oldest, 0.0)
    assert 4 in retries
