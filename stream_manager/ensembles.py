"""Ensembles ahead: what placement chose a moment ago, used again for a moment.

Invariants: an ensemble is used only while every node is what it was when it was chosen, and for `KEPT_S` at most;
            whoever avoids or excludes nodes gets a choice of its own.
Neighbours: make_extent.py asks; the placement policies choose.

Choosing looks at every node of the cluster: with a hundred of them it takes longer than all the rest of a creation.
So a busy manager chooses `AHEAD` times within a moment and then goes round. What makes nodes differ, room and load, is
told by heartbeats, which come less often than that.
"""

from __future__ import annotations

from collections.abc import Callable

from neve.stream_manager.context import NodeChoice, Placement, PlacementRequest
from neve.stream_manager.records import NodeEntry
from neve.stream_manager.state import State, StateListener

KEPT_S = 0.25
AHEAD = 24
KINDS_MAX = 100  # distinct requests: policies, replica counts, sizes


class Ensembles(StateListener):
    def __init__(self, state: State, placement: Callable[[], Placement], clock: Callable[[], float]) -> None:
        self._state = state
        self._placement = placement
        self._clock = clock
        self._chosen: dict[PlacementRequest, list[list[NodeChoice]]] = {}
        self._next = 0
        self._since_s = 0.0
        state.listeners.append(self)

    def choose(self, request: PlacementRequest) -> list[NodeChoice]:
        if request.avoid or request.excluded:
            return self._placement().choose(self._state, request)
        now_s = self._clock()
        if now_s - self._since_s > KEPT_S or len(self._chosen) > KINDS_MAX:
            self._chosen.clear()
            self._since_s = now_s
        ahead = self._chosen.setdefault(request, [])
        if len(ahead) < AHEAD:
            ahead.append(self._placement().choose(self._state, request))
            return ahead[-1]
        self._next += 1
        return ahead[self._next % AHEAD]

    def on_node(self, old: NodeEntry | None, new: NodeEntry | None) -> None:
        self._chosen.clear()
