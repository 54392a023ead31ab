"""Ensembles ahead: what placement chose a moment ago, used again for a moment.

Invariants: an ensemble is used only while every node is what it was when it was chosen, and for `KEPT_S` at most;
            whoever avoids or excludes nodes gets a choice of its own.

Choosing looks at every node of the cluster: with a hundred of them it takes longer than all the rest of a creation.
So a busy manager chooses `AHEAD` times within a moment and then goes round. What makes nodes differ, room and load, is
told by heartbeats, which come less often than that.
"""

from __future__ import annotations

from collections.abc import Callable

from neve.stream_manager.context import NodeChoice, Placement, PlacementRequest
from neve.stream_manager.records import NodeEntry, Policy
from neve.stream_manager.state import State, StateListener

KEPT_S = 0.25
AHEAD = 24
KINDS_MAX = 100  # distinct requests: policies, replica counts, sizes


class Ensembles(StateListener):
    def __init__(
        self, state: State, placement: Callable[[], Placement], clock: Callable[[], float], *, default: str
    ) -> None:
        self._state = state
        self._placement = placement
        self._clock = clock
        self._default = default  # the name of the policy where a stream names none
        self._chosen: dict[Policy, list[list[NodeChoice]]] = {}
        self._next = 0
        self._since_s = 0.0
        state.listen(self)

    def choose(
        self, policy: Policy, *, avoid: frozenset[int] = frozenset(), excluded: frozenset[int] = frozenset()
    ) -> list[NodeChoice]:
        """As many different nodes as replicas; `NotEnoughNodes` says why it cannot."""
        if avoid or excluded:
            return self._choose(policy, avoid, excluded)
        now_s = self._clock()
        if now_s - self._since_s > KEPT_S or len(self._chosen) > KINDS_MAX:
            self._chosen.clear()
            self._since_s = now_s
        ahead = self._chosen.get(policy)
        if ahead is None:
            ahead = self._chosen[policy] = []
        if len(ahead) < AHEAD:
            ahead.append(self._choose(policy, avoid, excluded))
            return ahead[-1]
        self._next += 1
        return ahead[self._next % AHEAD]

    def _choose(self, policy: Policy, avoid: frozenset[int], excluded: frozenset[int]) -> list[NodeChoice]:
        request = PlacementRequest(
            replicas=policy.replicas,
            extent_bytes_max=policy.extent_bytes_max,
            policy=policy.placement or self._default,
            strict=policy.strict,
            avoid=avoid,
            excluded=excluded,
        )
        choices = self._placement().choose(self._state, request)
        assert len({choice.node_id for choice in choices}) == policy.replicas, choices
        return choices

    def on_node(self, old: NodeEntry | None, new: NodeEntry | None) -> None:
        self._chosen.clear()
