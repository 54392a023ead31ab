"""Where replicas go: the interface of placement policies, and what all of them share (policies.py).

A policy answers two questions, in the manner of BookKeeper's EnsemblePlacementPolicy: on which nodes a new extent is
made, and which node takes the place of a lost replica.

Invariants: at most one replica of an extent on a node;
            a node that must not take a replica never does, whatever the policy: dead, draining, read-only, in
            maintenance, in a region that is stopped, without a writable disk that has room (T44);
            hints (suspect, avoided, little room) are weaker: such nodes are used when others do not suffice;
            what cannot be met is `NotEnoughNodes`, which says for each node why not; what can be met only in part is
            the same in strict mode, and a warning otherwise.
Not here:   disks of a node: the node takes the writable one with most room.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from neve.proto.errors import NotEnoughNodes

REASONS_TOLD_MAX = 12  # an error names so many nodes, and counts the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node as placement sees it. `barred` is why it takes nothing now; empty: it may."""

    node_id: int
    region: str = ""
    rack: str = ""
    barred: str = ""
    alive: bool = True  # False: suspect
    room_bytes: int = 0  # free on its writable disk that has most
    capacity_bytes: int = 0  # of its writable disks
    free_bytes: int = 0  # on its writable disks together
    append_bytes_per_s: float = 0.0
    copies: int = 0

    @property
    def rack_path(self) -> tuple[str, str]:
        """Racks are told apart by region, too: two regions may both have an r1."""
        return self.region, self.rack


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be placed."""

    replicas: int
    strict: bool = False
    room_bytes_min: int = 0  # without this much on one disk a node gets nothing
    room_bytes_liked: int = 0  # a node with less is used only when others do not suffice
    avoid: frozenset[int] = frozenset()  # a hint: these just failed the one who asks
    excluded: frozenset[int] = frozenset()  # never: they hold a replica, or are the ones to be replaced


@dataclass(frozen=True, slots=True)
class Placed:
    node_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Eligible:
    """Who may take a replica, and why each of the others may not."""

    candidates: tuple[Candidate, ...]
    reasons: dict[int, str] = field(default_factory=dict)

    def refuse(self, wanted: int, detail: str = "") -> NotEnoughNodes:
        told = [f"node {node_id}: {reason}" for node_id, reason in self.reasons.items()]
        if len(told) > REASONS_TOLD_MAX:
            told = [*told[:REASONS_TOLD_MAX], f"and {len(told) - REASONS_TOLD_MAX} others"]
        parts = [detail, "; ".join(told) if told else ("" if detail or self.candidates else "no node is registered")]
        return NotEnoughNodes(
            wanted=wanted, available=len(self.candidates), detail=". ".join(part for part in parts if part)
        )


class PlacementPolicy(ABC):
    """`nodes` are all nodes of the cluster: what a policy cannot use, it names in its refusal."""

    name: str

    @abstractmethod
    def new_ensemble(self, nodes: Sequence[Candidate], wish: Wish, rng: random.Random) -> Placed:
        """Nodes for all replicas of a new extent."""

    @abstractmethod
    def replacement(self, nodes: Sequence[Candidate], kept: Sequence[int], wish: Wish, rng: random.Random) -> Placed:
        """One node that joins the replicas on `kept`; `wish.replicas` is how many there are to be with it."""


# --- what policies share --------------------------------------------------------------------------------------


def eligible(nodes: Sequence[Candidate], wish: Wish) -> Eligible:
    reasons: dict[int, str] = {}
    usable: list[Candidate] = []
    for node in nodes:
        if node.barred:
            reasons[node.node_id] = node.barred
        elif node.node_id in wish.excluded:
            reasons[node.node_id] = "holds a replica or is to be replaced"
        elif node.room_bytes < max(1, wish.room_bytes_min):
            reasons[node.node_id] = f"no writable disk has {max(1, wish.room_bytes_min)} bytes free"
        else:
            usable.append(node)
    return Eligible(tuple(usable), reasons)


def tier(node: Candidate, wish: Wish) -> int:
    """0 is best. Hints, from the strongest to the weakest: avoided, suspect, little room."""
    return 4 * (node.node_id in wish.avoid) + 2 * (not node.alive) + (node.room_bytes < wish.room_bytes_liked)


Key = Callable[[Candidate], Hashable]
Weight = Callable[[Candidate], float]


def spread(
    usable: Sequence[Candidate],
    kept: Sequence[Candidate],
    *,
    count: int,
    levels: Sequence[Key],
    wish: Wish,
    rng: random.Random,
    weight: Weight | None = None,
    hints_first: bool = True,
) -> list[Candidate]:
    """Choose `count` of `usable`, one by one: each as far as possible from those chosen and `kept`.

    Far is counted by `levels`, from the widest: how many have the same region, then the same rack. Among equals chance
    decides, weighted if `weight` is given. `hints_first`: a hint outweighs distance.
    """
    chosen: list[Candidate] = []
    counts = [Counter(level(node) for node in kept) for level in levels]
    # Nodes of one place and tier are alike: places are compared, not nodes, of which there are many more.
    groups: dict[tuple[int, tuple[Hashable, ...]], list[Candidate]] = {}
    for node in usable:
        groups.setdefault((tier(node, wish), tuple([level(node) for level in levels])), []).append(node)
    while groups and len(chosen) < count:
        ranks: dict[tuple[int, ...], list[Candidate]] = {}
        for (hint, keys), nodes in groups.items():
            near = [counter[key] for counter, key in zip(counts, keys, strict=True)]
            ranks.setdefault((hint, *near) if hints_first else (*near, hint), []).extend(nodes)
        equal = ranks[min(ranks)]
        weights = None if weight is None else [max(weight(node), 1e-9) for node in equal]
        node = rng.choices(equal, weights)[0]
        chosen.append(node)
        group = tier(node, wish), tuple([level(node) for level in levels])
        groups[group].remove(node)
        if not groups[group]:
            del groups[group]
        for counter, key in zip(counts, group[1], strict=True):
            counter[key] += 1
    return chosen
