"""Replicas by chance, weighted with free capacity and load; on two racks where that is possible.

For clusters of unlike nodes: one with twice the free space gets twice the extents, so that all fill up together, and
one that is busy or copies much gets fewer. Uniform chance would fill the small ones first.

Invariants: a weight is never zero: a busy node is used when others do not suffice;
            at least `racks_min` racks, as in the rack policy; beyond that racks do not matter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from neve.stream_manager.placement import Candidate, Weight, Wish, register_policy, spread
from neve.stream_manager.placement_rack import Level, SpreadPolicy, rack_of


def weigh(nodes: Sequence[Candidate]) -> Weight:
    """Free bytes, halved at the mean load of `nodes` and by each running copy beyond the first."""
    mean = sum(node.append_bytes_per_s for node in nodes) / max(1, len(nodes))

    def weight(node: Candidate) -> float:
        load = node.append_bytes_per_s / mean if mean > 0 else 0.0
        return node.free_bytes / (1.0 + load) / max(1, node.copies)

    return weight


class Weighted(SpreadPolicy):
    def __init__(self, name: str = "weighted", *, racks_min: int = 2) -> None:
        super().__init__(name, [Level("rack(s)", rack_of, racks_min)])
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
            # Free choice, as long as the places that are left suffice for the racks that are missing.
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


register_policy(Weighted())
