"""Who serves what: as few moves as possible, and nothing that goes to and fro."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.partition_manager.core_balance import (
    MOVES_MAX,
    Balance,
    BalanceConfig,
    Merge,
    Move,
    Split,
    Step,
    assign,
    weights,
)
from neve.proto import partition_manager_pb2 as pm

MIB = 1 << 20


def region(partition_id: int, server_id: int) -> pm.RegionRecord:
    return pm.RegionRecord(partition_id=partition_id, server_id=server_id)


def load(partition_id: int, *, ops: float = 0.0, size_bytes: int = 0) -> pm.PartitionLoad:
    return pm.PartitionLoad(partition_id=partition_id, reads_per_s=ops / 2, writes_per_s=ops / 2, size_bytes=size_bytes)


class Cluster:
    """What a balance would see of a cluster that does what it says."""

    def __init__(self, homes: Mapping[int, int], servers: list[int], **config: float) -> None:
        self.homes = dict(homes)
        self.servers = servers
        self.ops = dict.fromkeys(homes, 0.0)
        self.size_bytes = dict.fromkeys(homes, 1)
        self.balance = Balance(BalanceConfig(**config))  # type: ignore[arg-type]
        self.now_s = 0.0
        self.moved: list[int] = []

    def step(self) -> list[Step]:
        self.now_s += 5.0
        regions = [region(number, home) for number, home in self.homes.items()]
        loads = {n: load(n, ops=self.ops[n], size_bytes=self.size_bytes[n]) for n in self.homes}
        steps = self.balance.round(regions, self.servers, loads, now_s=self.now_s)
        for each in steps:
            if isinstance(each, Move):
                self.homes[each.partition_id] = each.server_id
                self.moved.append(each.partition_id)
                self.balance.rest([each.partition_id], now_s=self.now_s)
        return steps

    def run(self, rounds: int) -> list[Step]:
        return [step for _ in range(rounds) for step in self.step()]


HOMES = st.dictionaries(st.integers(1, 40), st.integers(0, 6), min_size=1, max_size=30)


@given(HOMES, st.sets(st.integers(1, 6), max_size=5), st.dictionaries(st.integers(1, 40), st.floats(0, 1e6)))
def test_only_partitions_without_a_live_server_are_assigned(
    homes: dict[int, int], servers: set[int], ops: dict[int, float]
) -> None:
    regions = [region(number, home) for number, home in homes.items()]
    found = assign(regions, servers, {number: load(number, ops=each) for number, each in ops.items()})
    homeless = {number for number, home in homes.items() if home not in servers}
    assert set(found) == (homeless if servers else set())
    assert set(found.values()) <= servers


@given(st.integers(1, 60), st.integers(2, 8))
def test_the_partitions_of_a_dead_server_are_shared_out_evenly(partitions: int, servers: int) -> None:
    homes = {number: number % servers for number in range(partitions)}
    alive = set(range(1, servers))
    found = assign([region(number, home) for number, home in homes.items()], alive, {})
    counts = Counter({**homes, **found}.values())
    assert max(counts[each] for each in alive) - min(counts[each] for each in alive) <= 1


@given(HOMES, st.dictionaries(st.integers(1, 40), st.floats(0, 1e5)))
def test_weights_are_shares_of_one(homes: dict[int, int], ops: dict[int, float]) -> None:
    regions = [region(number, home) for number, home in homes.items()]
    found = weights(regions, {number: load(number, ops=each) for number, each in ops.items()})
    assert sum(found.values()) == pytest.approx(1.0)
    assert min(found.values()) >= 0.5 / len(regions) - 1e-9


def test_a_new_server_gets_its_share_a_little_at_a_time_and_then_nothing_moves() -> None:
    cluster = Cluster(dict.fromkeys(range(8), 1), [1, 2])
    first = next(number for number in range(1, 10) if cluster.step())
    assert first == BalanceConfig().rounds, "not before it has been so for some rounds"
    assert len(cluster.moved) == MOVES_MAX
    cluster.run(30)
    assert sorted(Counter(cluster.homes.values()).values()) == [4, 4]
    assert len(cluster.moved) == 4, "none went to and fro"
    assert cluster.run(100) == []


def test_moves_are_seen_before_the_next_ones() -> None:
    """A partition that has just moved is told of by nobody, or as idle: its new server looks emptier than it is."""
    cluster = Cluster(dict.fromkeys(range(8), 1), [1, 2])
    rounds = BalanceConfig().rounds
    assert [len(cluster.step()) for _ in range(2 * rounds)] == [*[0] * (rounds - 1), 2] * 2


def test_what_is_split_in_a_round_is_not_moved_in_it() -> None:
    cluster = Cluster({1: 1, 2: 1, 3: 1, 4: 1}, [1, 2], split_bytes=100, merge_bytes_max=1)
    cluster.size_bytes = {1: 1000, 2: 1, 3: 1, 4: 1}
    cluster.ops = {1: 10.0, 2: 10.0, 3: 10.0, 4: 10.0}
    steps = cluster.run(BalanceConfig().rounds)
    assert steps[0] == Split(1)
    assert [step for step in steps if isinstance(step, Move) and step.partition_id == 1] == []
    assert len(steps) == 3, "others are"


@given(st.lists(st.floats(0, 10_000), min_size=2, max_size=20), st.integers(2, 5))
def test_balancing_ends_whatever_the_loads_are(ops: list[float], servers: int) -> None:
    """With loads that stay as they are, moves come to an end, and no partition comes back to where it was."""
    cluster = Cluster(dict.fromkeys(range(len(ops)), 1), list(range(1, servers + 1)), rest_s=1.0, merge_rounds=10**9)
    cluster.ops = dict(enumerate(ops))
    cluster.run(len(ops) * 6)
    assert cluster.run(20) == []
    assert max(Counter(cluster.moved).values(), default=0) <= servers


def test_one_hot_partition_is_not_sent_around() -> None:
    cluster = Cluster({1: 1, 2: 2}, [1, 2], rest_s=1.0)
    cluster.ops = {1: 10_000.0, 2: 1.0}
    assert cluster.run(50) == [], "moving it would only change who is busy"


def test_a_load_that_comes_and_goes_moves_nothing() -> None:
    cluster = Cluster({number: number % 2 + 1 for number in range(8)}, [1, 2])
    for round_number in range(60):
        busy = round_number % 3 != 0  # two rounds in a row, never three
        cluster.ops = {number: 500.0 if busy and number % 2 else 1.0 for number in range(8)}
        assert cluster.step() == []


def test_large_and_busy_partitions_are_split_one_at_a_time() -> None:
    cluster = Cluster({1: 1, 2: 1, 3: 2, 4: 2}, [1, 2], split_bytes=1000 * MIB, merge_bytes_max=100 * MIB)
    cluster.size_bytes[2] = 2000 * MIB
    cluster.size_bytes[3] = 3000 * MIB
    assert [cluster.step(), cluster.step(), cluster.step()] == [[], [], [Split(3)]]
    cluster.balance.rest([3], now_s=cluster.now_s)
    assert cluster.step() == [Split(2)]
    cluster.balance.rest([2], now_s=cluster.now_s)
    assert cluster.step() == [], "what was split rests"
    cluster.size_bytes = dict.fromkeys(cluster.size_bytes, 1)
    cluster.ops[4] = 50_000.0
    assert Split(4) in cluster.run(3)


class Range:
    """One key range with operations on some keys (of 0 to 1), split in the middle whenever it is told to."""

    def __init__(self, hot: list[float], **config: float) -> None:
        self.hot = hot
        self.bounds = [0.0, 1.0]
        self.balance = Balance(BalanceConfig(regions_per_server_max=1000, **config))  # type: ignore[arg-type]
        self.splits = 0
        self.now_s = 0

    def run(self, for_s: int, *, failing: bool = False) -> None:
        for now_s in range(self.now_s, self.now_s + for_s, 5):
            self.now_s = now_s + 5
            spans = list(itertools.pairwise(self.bounds))
            made = [
                pm.RegionRecord(partition_id=int(low * 2**40) + 1, server_id=1, start=_key(low), end=_key(high))
                for low, high in spans
            ]
            loads = {
                each.partition_id: load(each.partition_id, ops=1e6 * sum(low <= key < high for key in self.hot))
                for each, (low, high) in zip(made, spans, strict=True)
            }
            for step in self.balance.round(made, [1], loads, now_s=float(now_s)):
                if isinstance(step, Split):
                    self.balance.rest([step.partition_id], now_s=float(now_s))
                    self.splits += 1
                    low = (step.partition_id - 1) / 2**40
                    at = self.bounds.index(low)
                    if not failing:
                        self.bounds.insert(at + 1, (low + self.bounds[at + 1]) / 2)


def _key(at: float) -> bytes:
    return b"" if at in (0.0, 1.0) else int(at * 2**40).to_bytes(5)


def test_one_hot_key_is_not_cut_out_for_ever() -> None:
    hot = Range([0.3], merge_rounds=10**6)
    hot.run(3500)
    assert hot.splits == 4
    hot.run(3500)  # after an hour, as many again
    assert hot.splits == 8


def test_a_load_in_one_corner_is_found_and_shared_out() -> None:
    """Three halves are empty; within the fourth one, splits help."""
    corner = Range([0.9 + each / 1000 for each in range(64)], merge_rounds=10**6, split_ops_per_s=9e6)
    corner.run(3500)
    assert all(sum(low <= key < high for key in corner.hot) <= 9 for low, high in itertools.pairwise(corner.bounds))


def test_a_split_that_fails_is_not_one_in_vain() -> None:
    hot = Range([0.3, 0.7], merge_rounds=10**6)
    hot.run(1000, failing=True)
    before = hot.splits
    hot.run(1000)
    assert before > 5
    assert len(hot.bounds) > 5


def test_cold_neighbours_are_merged_late_and_never_below_the_least_number() -> None:
    cluster = Cluster(dict.fromkeys(range(10), 1), [1], merge_rounds=4, regions_per_server_min=9)
    assert cluster.run(3) == []
    assert cluster.step() == [Merge(0, 1)]
    del cluster.homes[1]
    cluster.balance.rest([0], now_s=cluster.now_s)
    assert cluster.run(20) == [], "nine are the least"


def test_what_nobody_has_told_of_is_not_cold() -> None:
    balance = Balance(BalanceConfig(merge_rounds=1, regions_per_server_min=1))
    regions = [region(number, 1) for number in range(1, 5)]
    assert balance.round(regions, [1], {1: load(1), 3: load(3)}, now_s=1.0) == []
    assert balance.round(regions, [1], {1: load(1), 2: load(2)}, now_s=2.0) == [Merge(1, 2)]


def test_bounds_under_which_splits_and_merges_would_chase_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="would alternate"):
        BalanceConfig(split_bytes=100 * MIB, merge_bytes_max=60 * MIB)
    with pytest.raises(ValueError, match="rounds"):
        BalanceConfig(rounds=0)


def test_bounds_may_be_as_close_as_a_half() -> None:
    BalanceConfig(split_bytes=100 * MIB, merge_bytes_max=50 * MIB, split_ops_per_s=100.0, merge_ops_per_s_max=50.0)
    with pytest.raises(ValueError, match="would alternate"):
        BalanceConfig(split_ops_per_s=100.0, merge_ops_per_s_max=51.0)


def test_a_partition_weighs_half_by_its_load() -> None:
    regions = [region(1, 1), region(2, 1)]
    assert weights(regions, {1: load(1, ops=300.0), 2: load(2, ops=100.0)}) == {1: 0.625, 2: 0.375}
    assert weights(regions, {1: load(1, ops=300.0)}) == {1: 0.75, 2: 0.25}, "who says nothing has no load"
    assert weights(regions, {1: load(1, ops=0.9)}) == {1: 0.5, 2: 0.5}, "an idle cluster"
    assert weights(regions, {1: load(1, ops=1.5)}) == {1: 0.75, 2: 0.25}


def test_the_heaviest_are_given_out_first() -> None:
    regions = [region(number, 9) for number in (1, 2, 3)]
    loads = {1: load(1, ops=100.0), 2: load(2, ops=100.0), 3: load(3, ops=1000.0)}
    assert assign(regions, [1, 2], loads) == {3: 1, 1: 2, 2: 2}


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        ({"size_bytes": 60 * MIB}, {"size_bytes": 40 * MIB}, True),
        ({"size_bytes": 60 * MIB}, {"size_bytes": 41 * MIB}, False),
        ({"ops": 20.0}, {"ops": 30.0}, True),
        ({"ops": 21.0}, {"ops": 30.0}, False),
        ({"ops": 30.0}, {"ops": 21.0}, False),
    ],
)
def test_two_are_merged_if_they_are_small_and_idle_together(
    left: dict[str, float], right: dict[str, float], merged: bool
) -> None:
    bounds = {"merge_bytes_max": 100 * MIB, "merge_ops_per_s_max": 50.0}
    balance = Balance(BalanceConfig(merge_rounds=1, regions_per_server_min=1, **bounds))  # type: ignore[arg-type]
    loads = {1: load(1, **left), 2: load(2, **right)}  # type: ignore[arg-type]
    steps = balance.round([region(1, 1), region(2, 1)], [1], loads, now_s=1.0)
    assert (Merge(1, 2) in steps) == merged
