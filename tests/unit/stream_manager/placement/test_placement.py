"""Where replicas may go, where they should go, and what is said when they cannot."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto.errors import InvalidArgument, NotEnoughNodes
from neve.proto.placement import DEFAULT_PLACEMENT, PLACEMENT_POLICIES, placement_help
from neve.stream_manager.placement.placement import Candidate, Wish
from neve.stream_manager.placement.policies import POLICIES, policy_named

GIB = 1 << 30


def node(node_id: int, where: str = "", **fields: Any) -> Candidate:
    """`where` is region/rack."""
    region, _, rack = where.partition("/")
    room = fields.pop("room_bytes", 100 * GIB)
    return Candidate(
        **{
            "node_id": node_id,
            "region": region,
            "rack": rack,
            "room_bytes": room,
            "free_bytes": room,
            "capacity_bytes": 200 * GIB,
            **fields,
        }
    )


def place(policy: str, nodes: list[Candidate], replicas: int = 3, seed: int = 0, **wish: Any) -> list[int]:
    return list(policy_named(policy).new_ensemble(nodes, Wish(replicas=replicas, **wish), random.Random(seed)).node_ids)


def replace_in(policy: str, nodes: list[Candidate], kept: list[int], seed: int = 0, **wish: Any) -> int:
    placed = policy_named(policy).replacement(nodes, kept, Wish(replicas=len(kept) + 1, **wish), random.Random(seed))
    return placed.node_ids[0]


def test_the_names_that_users_see_are_those_that_there_are() -> None:
    assert list(POLICIES) == list(PLACEMENT_POLICIES)
    assert DEFAULT_PLACEMENT in POLICIES
    table = (Path(__file__).parents[4] / "docs" / "operations.md").read_text().partition("| placement |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert rows == [f"| `{name}` | {text} |" for name, text in PLACEMENT_POLICIES.items()]
    assert all(name in placement_help() for name in POLICIES)


# --- what holds for every policy ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_replicas_are_on_different_nodes(policy: str) -> None:
    nodes = [node(number, "a/r1") for number in range(1, 6)]
    for seed in range(20):
        assert len(set(place(policy, nodes, 5, seed))) == 5


@pytest.mark.parametrize("policy", POLICIES)
def test_too_few_nodes_is_refused_with_the_reason_of_each(policy: str) -> None:
    nodes = [node(1), node(2, barred="draining"), node(3, barred="dead"), node(4, room_bytes=5)]
    with pytest.raises(NotEnoughNodes) as caught:
        place(policy, nodes, 3, room_bytes_min=GIB)
    assert (caught.value.wanted, caught.value.available) == (3, 1)
    text = str(caught.value)
    assert "3 nodes are needed, 1 can take an extent" in text
    assert "node 2: draining" in text
    assert "node 3: dead" in text
    assert f"node 4: no writable disk has {GIB} bytes free" in text


def test_no_node_at_all_is_said_so_and_many_are_not_all_told() -> None:
    with pytest.raises(NotEnoughNodes, match="no node is registered"):
        place("rack", [])
    with pytest.raises(NotEnoughNodes, match="and 28 others"):
        place("rack", [node(number, barred="dead") for number in range(40)])


@pytest.mark.parametrize("policy", POLICIES)
def test_t44_a_full_node_gets_no_new_extent(policy: str) -> None:
    full = [node(1, "a/r1", room_bytes=0), node(2, "b/r2", room_bytes=GIB - 1)]
    roomy = [node(number, "a/r1") for number in (3, 4, 5)]
    for seed in range(30):
        assert set(place(policy, [*full, *roomy], 3, seed, room_bytes_min=GIB)) == {3, 4, 5}
        assert replace_in(policy, [*full, *roomy], [3, 4], seed, room_bytes_min=GIB) == 5
    with pytest.raises(NotEnoughNodes):
        place(policy, [*full, *roomy], 4, room_bytes_min=GIB)
    with pytest.raises(NotEnoughNodes):  # also when nothing is said about room: an unknown size needs some
        place(policy, full[:1], 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_barred_node_gets_nothing_even_if_that_costs_the_policy(policy: str) -> None:
    nodes = [node(1, "a/r1"), node(2, "a/r1"), node(3, "b/r2", barred="region b is stopped")]
    placed = policy_named(policy).new_ensemble(nodes, Wish(replicas=2), random.Random(0))
    assert set(placed.node_ids) == {1, 2}
    assert "instead of 2" in placed.warnings[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_hints_are_followed_while_others_suffice_and_not_longer(policy: str) -> None:
    nodes = [node(number, f"a/r{number}") for number in range(1, 6)]
    for seed in range(20):
        assert set(place(policy, nodes, 3, seed, avoid=frozenset({1, 2}))) == {3, 4, 5}
        assert {3, 4, 5} < set(place(policy, nodes, 4, seed, avoid=frozenset({1, 2})))
    weak = [node(1, "a/r1", alive=False), node(2, "a/r2", room_bytes=GIB), *nodes[2:]]
    for seed in range(20):
        assert set(place(policy, weak, 3, seed, room_bytes_liked=2 * GIB)) == {3, 4, 5}
        # Of the two weak ones, little room is the lesser evil; an avoided one is the worst.
        assert 2 in place(policy, weak, 4, seed, room_bytes_liked=2 * GIB)
        assert 1 in place(policy, weak, 4, seed, avoid=frozenset({2}))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replacement_is_none_of_those_that_hold_or_lost_a_replica(policy: str) -> None:
    nodes = [node(number, f"a/r{number}") for number in range(1, 5)]
    for seed in range(20):
        assert replace_in(policy, nodes, [1, 2], seed, excluded=frozenset({3})) == 4
    with pytest.raises(NotEnoughNodes, match="node 1: holds a replica"):
        replace_in(policy, nodes, [1, 2, 4], excluded=frozenset({3}))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_places_alike(policy: str) -> None:
    nodes = [node(number, f"a/r{number % 3}") for number in range(1, 20)]
    assert [place(policy, nodes, 3, seed) for seed in range(9)] == [place(policy, nodes, 3, seed) for seed in range(9)]


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidArgument, match=f"'nearest' is not a policy; the policies are {', '.join(sorted(POLICIES))}"
    ):
        policy_named("nearest")


@given(st.data())
def test_whatever_the_cluster_only_nodes_that_may_are_chosen(data: st.DataObject) -> None:
    places = st.sampled_from(["", "a/r1", "a/r2", "b/r1", "b/r2"])
    nodes = [
        node(
            number,
            data.draw(places),
            barred=data.draw(st.sampled_from(["", "", "", "dead"])),
            alive=data.draw(st.booleans()),
            room_bytes=data.draw(st.sampled_from([0, GIB, 50 * GIB])),
        )
        for number in range(1, data.draw(st.integers(1, 9)))
    ]
    replicas = data.draw(st.integers(1, 4))
    policy = data.draw(st.sampled_from(sorted(POLICIES)))
    strict = data.draw(st.booleans())
    may = {n.node_id for n in nodes if not n.barred and n.room_bytes >= GIB}
    avoid = frozenset(data.draw(st.sets(st.integers(1, 9))))
    try:
        wish: dict[str, Any] = {"strict": strict, "avoid": avoid, "room_bytes_min": GIB}
        chosen = place(policy, nodes, replicas, data.draw(st.integers(0, 9)), **wish)
    except NotEnoughNodes:
        assert len(may) < replicas or strict
        return
    assert set(chosen) <= may
    assert len(set(chosen)) == replicas
    if strict and replicas > 1:
        places_used = {(n.region if policy == "region" else n.rack_path) for n in nodes if n.node_id in chosen}
        assert len(places_used) >= 2


# --- racks ----------------------------------------------------------------------------------------------------


def test_each_replica_is_in_its_own_rack_while_racks_last() -> None:
    nodes = [node(number, f"a/r{number % 3}") for number in range(12)]
    for seed in range(30):
        chosen = place("rack", nodes, 3, seed)
        assert {number % 3 for number in chosen} == {0, 1, 2}


def test_with_two_racks_three_replicas_are_in_both_without_a_warning() -> None:
    nodes = [node(number, f"a/r{number % 2}") for number in range(8)]
    placed = policy_named("rack").new_ensemble(nodes, Wish(replicas=3), random.Random(1))
    assert {number % 2 for number in placed.node_ids} == {0, 1}
    assert placed.warnings == ()


def test_one_rack_is_a_warning_or_in_strict_mode_a_refusal() -> None:
    nodes = [node(number, "a/r1") for number in range(1, 5)]
    placed = policy_named("rack").new_ensemble(nodes, Wish(replicas=3), random.Random(0))
    assert "1 rack(s) instead of 2" in placed.warnings[0]
    assert "in /a/r1" in placed.warnings[0]
    with pytest.raises(NotEnoughNodes, match="policy rack cannot be met: 1 rack"):
        place("rack", nodes, 3, strict=True)
    assert len(place("rack", nodes, 1, strict=True)) == 1  # one replica is in one rack, wherever it is


def test_a_cluster_without_racks_is_not_warned_about_them() -> None:
    nodes = [node(number) for number in range(1, 5)]
    assert policy_named("rack").new_ensemble(nodes, Wish(replicas=3), random.Random(0)).warnings == ()
    with pytest.raises(NotEnoughNodes):
        place("rack", nodes, 3, strict=True)


def test_strict_prefers_the_policy_over_hints() -> None:
    nodes = [node(1, "a/r1"), node(2, "a/r1"), node(3, "a/r2", alive=False)]
    for seed in range(10):
        assert 3 in place("rack", nodes, 2, seed, strict=True)
        assert 3 not in place("rack", nodes, 2, seed)


def test_a_replacement_goes_to_the_rack_that_was_lost() -> None:
    nodes = [node(number, f"a/r{number % 3}") for number in range(1, 10)]
    for seed in range(20):
        assert replace_in("rack", nodes, [1, 2], seed) % 3 == 0


def test_racks_of_the_same_name_in_two_regions_are_two() -> None:
    nodes = [node(1, "a/r1"), node(2, "a/r1"), node(3, "b/r1")]
    for seed in range(10):
        assert 3 in place("rack", nodes, 2, seed)


# --- regions --------------------------------------------------------------------------------------------------


def test_replicas_are_spread_over_regions_and_within_them_over_racks() -> None:
    nodes = [node(10 * region + number, f"{'abc'[region]}/r{number % 2}") for region in range(2) for number in range(4)]
    for seed in range(30):
        chosen = place("region", nodes, 4, seed)
        assert Counter(number // 10 for number in chosen) == {0: 2, 1: 2}
        for region in (0, 1):
            assert {number % 2 for number in chosen if number // 10 == region} == {0, 1}


def test_a_lost_region_is_replaced_by_another_region() -> None:
    nodes = [node(1, "a/r1"), node(2, "a/r2"), node(3, "b/r1"), node(4, "b/r2"), node(5, "c/r1", barred="dead")]
    for seed in range(10):
        assert replace_in("region", nodes, [1, 3], seed) in (2, 4)
        assert replace_in("region", nodes, [1, 2], seed) in (3, 4)


def test_one_region_is_a_warning_or_in_strict_mode_a_refusal() -> None:
    nodes = [node(number, f"a/r{number}") for number in range(1, 5)]
    placed = policy_named("region").new_ensemble(nodes, Wish(replicas=3), random.Random(0))
    assert "1 region(s) instead of 2" in placed.warnings[0]
    with pytest.raises(NotEnoughNodes, match="policy region cannot be met"):
        place("region", nodes, 3, strict=True)


# --- weights --------------------------------------------------------------------------------------------------


def counts(nodes: list[Candidate], rounds: int = 2000) -> Counter[int]:
    rng = random.Random(5)
    policy = policy_named("weighted")
    return Counter(policy.new_ensemble(nodes, Wish(replicas=1), rng).node_ids[0] for _ in range(rounds))


def test_a_node_with_thrice_the_free_space_gets_about_thrice_the_extents() -> None:
    got = counts([node(1, room_bytes=10 * GIB), node(2, room_bytes=30 * GIB)])
    assert 2.4 < got[2] / got[1] < 3.7


def test_a_busy_node_gets_fewer_extents_and_not_none() -> None:
    got = counts([node(1, append_bytes_per_s=90e6), node(2, append_bytes_per_s=1e6), node(3, append_bytes_per_s=1e6)])
    assert 0 < got[1] < got[2] / 2
    got = counts([node(1, copies=4), node(2), node(3)])
    assert 0 < got[1] < got[2] / 2


def test_weights_do_not_cost_the_second_rack() -> None:
    nodes = [*(node(number, "a/r1", room_bytes=900 * GIB) for number in range(1, 6)), node(9, "a/r2", room_bytes=GIB)]
    for seed in range(30):
        assert 9 in place("weighted", nodes, 3, seed)
        assert replace_in("weighted", nodes, [1, 2], seed) == 9
