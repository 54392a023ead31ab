"""The default policy: replicas on as many racks as there are, and on at least two where that is possible.

Invariants: no two replicas share a rack while another rack has a node that may take one;
            fewer than `racks_min` racks are a warning, or in strict mode a refusal that names the racks.

A cluster in which no node names a rack has nothing to be aware of: there is no warning then, only strict mode refuses.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from neve.stream_manager.placement import (
    Candidate,
    Key,
    Placed,
    PlacementPolicy,
    Wish,
    eligible,
    register_policy,
    spread,
)


@dataclass(frozen=True, slots=True)
class Level:
    """One kind of place to spread over. `distinct_min`: how many different ones an extent's replicas should have."""

    word: str
    key: Key
    distinct_min: int = 1


def rack_of(node: Candidate) -> Hashable:
    return node.rack_path


class SpreadPolicy(PlacementPolicy):
    """Spreads over its levels, the widest first."""

    def __init__(self, name: str, levels: Sequence[Level]) -> None:
        self.name = name
        self._levels = tuple(levels)

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


class RackAware(SpreadPolicy):
    def __init__(self, name: str = "rack", *, racks_min: int = 2) -> None:
        super().__init__(name, [Level("rack(s)", rack_of, racks_min)])


register_policy(RackAware())
