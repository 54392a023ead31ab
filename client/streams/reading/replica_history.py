"""What this client has seen of nodes: who failed lately, who answers how fast. A memory only, never a proof.

Invariants: bounded: a node that was not heard of for long, or one too many, is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

NODES_MAX = 10_000


class NodeHistory:
    """Failures of nodes by id, for `window_s`."""

    def __init__(self, clock: Callable[[], float], *, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._failed_s: dict[int, float] = {}  # the oldest first

    def failed(self, node_id: int) -> None:
        self._failed_s.pop(node_id, None)
        self._failed_s[node_id] = self._clock()
        if len(self._failed_s) > NODES_MAX:
            del self._failed_s[next(iter(self._failed_s))]

    def failed_lately(self) -> list[int]:
        """In the order of their failures, the last one last."""
        since_s = self._clock() - self._window_s
        for node_id, failed_s in list(self._failed_s.items()):
            if failed_s >= since_s:
                break
            del self._failed_s[node_id]
        return list(self._failed_s)
