"""Recent failures of nodes, as one client has seen them. They guide choices and prove nothing.

Invariants: bounded: the oldest failures are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

NODES_MAX = 10_000


class NodeHistory:
    """Failures of nodes by id, within the last `window_s` seconds."""

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
        """Return the nodes that failed recently, the latest last."""
        since_s = self._clock() - self._window_s
        for node_id, failed_s in list(self._failed_s.items()):
            if failed_s >= since_s:
                break
            del self._failed_s[node_id]
        return list(self._failed_s)
