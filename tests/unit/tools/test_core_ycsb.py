"""The mixes of YCSB: shares, popularity, keys."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from neve.tools.objects.core_ycsb import MIXES, THETA, Action, Keys, Zipfian, key_of


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_has_the_shares_that_it_says(name: str) -> None:
    mix = MIXES[name]
    rng = random.Random(1)
    counts = Counter(mix.action(rng.random()) for _ in range(20_000))
    for action in Action:
        assert counts[action] / 20_000 == pytest.approx(mix.shares.get(action, 0.0), abs=0.02)
    assert sum(mix.shares.values()) == pytest.approx(1.0)
    assert mix.action(0.999999999999) in mix.shares


def test_the_popular_ones_have_the_shares_of_the_formula() -> None:
    count = 1000
    zeta = sum(n**-THETA for n in range(1, count + 1))
    zipfian = Zipfian(count)
    rng = random.Random(2)
    counts = Counter(zipfian.next(rng.random()) for _ in range(100_000))
    assert set(counts) <= set(range(count))
    for rank, tolerance in ((0, 0.05), (1, 0.05), (5, 0.25)):  # exact for the first two, an approximation behind them
        assert counts[rank] / 100_000 == pytest.approx((rank + 1) ** -THETA / zeta, rel=tolerance)
    assert sum(counts[rank] for rank in range(100)) > 0.6 * 100_000


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_small_numbers_of_objects_work(count: int) -> None:
    rng = random.Random(3)
    for latest in (False, True):
        keys = Keys(count, latest=latest)
        chosen = {keys.choose(rng.random()) for _ in range(300)} | {keys.choose(0.0), keys.choose(0.9999999999)}
        assert chosen <= set(range(count))


def test_latest_prefers_what_was_inserted_last_and_growing_is_the_same_as_beginning_large() -> None:
    keys = Keys(100, latest=True)
    for expected in range(100, 200):
        assert keys.insert() == expected
    rng = random.Random(4)
    counts = Counter(keys.choose(rng.random()) for _ in range(10_000))
    assert counts.most_common(1)[0][0] == 199
    grown, begun = Zipfian(100), Zipfian(200)
    grown.grow(200)
    assert [grown.next(n / 1000) for n in range(1000)] == [begun.next(n / 1000) for n in range(1000)]


def test_keys_are_different_and_not_in_the_order_of_their_numbers() -> None:
    keys = [key_of(number) for number in range(10_000)]
    assert len(set(keys)) == 10_000
    assert {len(key) for key in keys} == {24}
    assert keys[:100] != sorted(keys[:100])
