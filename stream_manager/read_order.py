"""In which order readers should try the replicas of an extent: near ones first, those that failed lately last.

Invariants: every replica stays in the order: a node that failed is the last choice, not none;
            old failures fade: their weight halves every `half_life_s`;
            no more than `nodes_max` nodes are remembered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from neve.stream_manager.placement import Candidate, PlacementPolicy

HALF_LIFE_S = 60.0
NODES_MAX = 100_000
FAILURES_MAX = 64.0  # a node that failed a thousand times is not worse than this: it should be tried again some day
NEGLIGIBLE = 0.5  # less than half a failure orders nothing


class FailureHistory:
    def __init__(self, *, half_life_s: float = HALF_LIFE_S, nodes_max: int = NODES_MAX) -> None:
        self._half_life_s = half_life_s
        self._nodes_max = nodes_max
        self._failures: dict[int, tuple[float, float]] = {}  # node id → how many, as of when

    def note_failure(self, node_id: int, now_s: float) -> None:
        count = min(FAILURES_MAX, self.failures(node_id, now_s) + 1.0)
        self._failures.pop(node_id, None)
        if len(self._failures) >= self._nodes_max:
            del self._failures[next(iter(self._failures))]  # the one that has not failed for longest
        self._failures[node_id] = (count, now_s)

    def failures(self, node_id: int, now_s: float) -> float:
        """How many, each counting half after every half-life."""
        count, at_s = self._failures.get(node_id, (0.0, now_s))
        return count * float(0.5 ** ((now_s - at_s) / self._half_life_s))


def order_replicas(
    policy: PlacementPolicy,
    replicas: Sequence[Candidate],
    reader: tuple[str, str],
    history: FailureHistory,
    *,
    now_s: float,
    rng: random.Random,
) -> list[int]:
    """Node ids, best first. `reader` is its (region, rack), empty if unknown."""
    failures = {node.node_id: history.failures(node.node_id, now_s) for node in replicas}
    by_distance = policy.read_order(replicas, reader, rng)
    return sorted(by_distance, key=lambda node_id: failures[node_id] if failures[node_id] >= NEGLIGIBLE else 0.0)
