"""Recent failures that readers have reported, per node: descriptions list the replicas of such nodes last.

Invariants: old failures fade: their weight halves every `half_life_s`;
            at most `nodes_max` nodes are remembered.
"""

from __future__ import annotations

HALF_LIFE_S = 60.0
NODES_MAX = 100_000
FAILURES_MAX = 64.0  # a node with a thousand failures counts no worse than this, so that readers try it again some day
NEGLIGIBLE = 0.5  # a smaller weight counts as none


class FailureHistory:
    def __init__(self, *, half_life_s: float = HALF_LIFE_S, nodes_max: int = NODES_MAX) -> None:
        self._half_life_s = half_life_s
        self._nodes_max = nodes_max
        self._failures: dict[int, tuple[float, float]] = {}  # node id → weight, and the time of that weight

    def note_failure(self, node_id: int, now_s: float) -> None:
        count = min(FAILURES_MAX, self._weight(node_id, now_s) + 1.0)
        self._failures.pop(node_id, None)
        if len(self._failures) >= self._nodes_max:
            del self._failures[next(iter(self._failures))]  # the node whose last failure is the oldest
        self._failures[node_id] = (count, now_s)

    def failures(self, node_id: int, now_s: float) -> float:
        """The weight of the node's failures, each of which halves every half-life; 0.0 if little is left."""
        weight = self._weight(node_id, now_s)
        return weight if weight >= NEGLIGIBLE else 0.0

    def _weight(self, node_id: int, now_s: float) -> float:
        count, at_s = self._failures.get(node_id, (0.0, now_s))
        return count * float(0.5 ** ((now_s - at_s) / self._half_life_s))
