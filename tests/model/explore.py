"""Visit every state that a model can reach, shortest way first, until one breaks what must hold.

    outcome = explore(model)
    outcome.broken, outcome.trace      # what is broken, and the shortest way there; "" and () if nothing is

Invariants: breadth first, so that a counterexample is one of the shortest;
            states that a model calls equal (`canonical`) are visited once; a trace is of real states all the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

STATES_MAX = 5_000_000  # about 5 GB; a configuration that comes near it is too large to be of use


class TooManyStates(RuntimeError):
    """This configuration is larger than its bound: what was visited proves nothing."""


class Model(Protocol[S]):
    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Everything that may happen next, in words, and what it leads to."""

    def broken(self, state: S) -> str:
        """Which guarantee does not hold in this state; "" if all do."""

    def canonical(self, state: S) -> S:
        """One representative for all states that differ only by names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    states: int
    steps: int  # transitions that were looked at
    depth: int  # of the longest shortest way
    broken: str = ""
    trace: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()


def explore(
    model: Model[S], *, witnesses: Mapping[str, Callable[[S], bool]] | None = None, states_max: int = STATES_MAX
) -> Outcome:
    """`witnesses`: situations to look out for, by name; a model that never gets into them shows nothing about them."""
    collects = gc.isenabled()
    gc.disable()  # states are tuples without cycles: looking for cycles in a million of them takes most of the time
    try:
        return _explore(model, witnesses or {}, states_max)
    finally:
        if collects:
            gc.enable()


def _explore(model: Model[S], witnesses: Mapping[str, Callable[[S], bool]], states_max: int) -> Outcome:
    wanted = dict(witnesses)
    first = model.canonical(model.initial())
    came_from: dict[S, S | None] = {first: None}
    frontier = [first]
    steps = depth = 0
    while frontier:
        following: list[S] = []
        for state in frontier:
            for _, after in model.steps(state):
                steps += 1
                reached = model.canonical(after)
                if reached in came_from:
                    continue
                came_from[reached] = state
                if broken := model.broken(reached):
                    return Outcome(len(came_from), steps, depth + 1, broken, _trace(model, came_from, reached))
                for name in [name for name, there in wanted.items() if there(reached)]:
                    del wanted[name]
                following.append(reached)
        if len(came_from) > states_max:
            raise TooManyStates(f"{len(came_from)} states at depth {depth}")
        depth += bool(following)
        frontier = following
    return Outcome(len(came_from), steps, depth, reached=frozenset(witnesses) - frozenset(wanted))


def _trace(model: Model[S], came_from: dict[S, S | None], last: S) -> tuple[str, ...]:
    """Walked once more without representatives, so that a name means the same in all of its lines."""
    way: list[S] = []
    state: S | None = last
    while state is not None:
        way.append(state)
        state = came_from[state]
    concrete = model.initial()
    labels: list[str] = []
    for wanted in way[-2::-1]:
        label, concrete = next(step for step in model.steps(concrete) if model.canonical(step[1]) == wanted)
        labels.append(label)
    return tuple(labels)
