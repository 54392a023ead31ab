"""The placement policies by name. proto/placement.py describes each of them for users.

Invariants: exactly the names of proto/placement.py are here;
            no two replicas share a rack (policy "region": a region) while another one has a node that may take one;
            fewer racks or regions than the policy asks for are a warning, or in strict mode a refusal that names them.

If no node of the cluster names a rack, there is nothing to spread over: then there is no warning, and only strict mode
refuses.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from neve.proto.errors import InvalidArgument
from neve.stream_manager.placement.placement import (
    Candidate,
    Key,
    Placed,
    PlacementPolicy,
    Weight,
    Wish,
    eligible,
    spread,
)


def policy_named(name: str) -> PlacementPolicy:
    policy = POLICIES.get(name)
    if policy is None:
        detail = f"{name!r} is not a policy; the policies are {', '.join(sorted(POLICIES))}"
        raise InvalidArgument(what="placement", detail=detail)
    return policy


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of place to spread over. `distinct_min`: how many different places an extent's replicas should have."""

    word: str
    key: Key
    distinct_min: int = 1


def rack_of(node: Candidate) -> Hashable:
    return node.rack_path


def region_of(node: Candidate) -> Hashable:
    return node.region


class SpreadPolicy(PlacementPolicy):
    """A policy that spreads replicas over its levels, the widest first.

    A replacement goes to the place with the fewest remaining replicas: if a region is lost, another region takes
    its replicas, not the regions of the survivors.
    """

    def __init__(self, name: str, *levels: Level) -> None:
        self.name = name
        self._levels = levels

    def new_ensemble(self, nodes: Sequence[Candidate], wish: Wish, rng: random.Random) -> Placed:
        return self._choose(nodes, [], wish, wish.replicas, rng)

    def replacement(self, nodes: Sequence[Candidate], kept: Sequence[int], wish: Wish, rng: random.Random) -> Placed:
        holding = [node for node in nodes if node.node_id in kept]
        wish = replace(wish, excluded=wish.excluded | frozenset(kept))
        return self._choose(nodes, holding, wish, 1, rng)

    def _choose(
        self, nodes: Sequence[Candidate], kept: Sequence[Candidate], wish: Wish, count: int, rng: random.Random
    ) -> Placed:
        able = eligible(nodes, wish)
        if len(able.candidates) < count:
            raise able.refuse(count)
        chosen = self.pick(able.candidates, kept, wish, count, rng, hints_first=True)
        problem = self._unmet([*kept, *chosen], nodes, wish)
        if problem and wish.strict:
            chosen = self.pick(able.candidates, kept, wish, count, rng, hints_first=False)
            problem = self._unmet([*kept, *chosen], nodes, wish)
            if problem:
                raise able.refuse(count, f"policy {self.name} cannot be met: {problem}")
        return Placed(tuple(node.node_id for node in chosen), (problem,) if problem else ())

    def pick(
        self,
        usable: Sequence[Candidate],
        kept: Sequence[Candidate],
        wish: Wish,
        count: int,
        rng: random.Random,
        *,
        hints_first: bool,
    ) -> list[Candidate]:
        levels = [level.key for level in self._levels]
        return spread(usable, kept, count=count, levels=levels, wish=wish, rng=rng, hints_first=hints_first)

    def _unmet(self, ensemble: Sequence[Candidate], nodes: Sequence[Candidate], wish: Wish) -> str:
        """What the ensemble lacks, in words; empty if nothing."""
        for level in self._levels:
            wanted = min(level.distinct_min, wish.replicas)
            got = {level.key(node): None for node in ensemble}
            if len(got) >= wanted:
                continue
            labelled = any(node.region or node.rack for node in nodes)
            if labelled or wish.strict:
                where = ", ".join(sorted(_path(node) for node in ensemble))
                return f"{len(got)} {level.word} instead of {wanted} ({where})"
        return ""


def _path(node: Candidate) -> str:
    return f"node {node.node_id} in /{node.region or 'default'}/{node.rack or 'default'}"


class WeightedPolicy(SpreadPolicy):
    """A policy that chooses at random, weighted by free capacity and load, on at least `racks_min` racks if
    possible.

    It is for clusters of unequal nodes. A node with twice the free space gets twice the extents, so that all fill
    up together, and a node that is busy or copies much gets fewer; uniform choice would fill the small nodes first.
    A weight is never zero: a busy node is used if others do not suffice. Racks beyond `racks_min` do not matter.
    """

    def __init__(self, name: str, *, racks_min: int) -> None:
        super().__init__(name, Level("rack(s)", rack_of, racks_min))
        self._racks_min = racks_min

    def pick(
        self,
        usable: Sequence[Candidate],
        kept: Sequence[Candidate],
        wish: Wish,
        count: int,
        rng: random.Random,
        *,
        hints_first: bool,
    ) -> list[Candidate]:
        weight = weigh(usable)
        chosen: list[Candidate] = []
        while len(chosen) < count:
            taken = [*kept, *chosen]
            racks = {rack_of(node) for node in taken}
            rest = [node for node in usable if node not in chosen]
            # The choice is free as long as the remaining places suffice for the missing racks.
            missing = min(self._racks_min, wish.replicas) - len(racks)
            levels = [rack_of] if missing >= count - len(chosen) else []
            chosen += spread(
                rest,
                taken,
                count=1,
                levels=levels,
                wish=replace(wish, replicas=1),
                rng=rng,
                weight=weight,
                hints_first=hints_first,
            )
        return chosen


def weigh(nodes: Sequence[Candidate]) -> Weight:
    """Weigh nodes by free bytes, halved at the mean load of `nodes` and by each running copy beyond the first."""
    mean = sum(node.append_bytes_per_s for node in nodes) / max(1, len(nodes))

    def weight(node: Candidate) -> float:
        load = node.append_bytes_per_s / mean if mean > 0 else 0.0
        return node.free_bytes / (1.0 + load) / max(1, node.copies)

    return weight


POLICIES: dict[str, PlacementPolicy] = {
    policy.name: policy
    for policy in (
        SpreadPolicy("rack", Level("rack(s)", rack_of, distinct_min=2)),
        SpreadPolicy("region", Level("region(s)", region_of, distinct_min=2), Level("rack(s)", rack_of)),
        WeightedPolicy("weighted", racks_min=2),
    )
}
