"""Placement of replicas: the interface of placement policies, and what all policies share (policies.py).

As in BookKeeper's EnsemblePlacementPolicy, a policy answers two questions: on which nodes to create a new extent, and
which node replaces a lost replica.

Invariants: at most one replica of an extent on a node;
            no policy chooses a node that must not take a replica: dead, draining, read-only, in maintenance, in a
            stopped region, or without a writable disk that has room (scenario T44);
            hints (suspect, avoided, little room) are weaker: such nodes are used if others do not suffice;
            a request that cannot be met is `NotEnoughNodes`, with the reason for each node; a request that can only be
            met in part is the same in strict mode, and a warning otherwise.
Not here:   the disks of a node: the node uses the writable one with most room.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from neve.proto.errors import NotEnoughNodes

REASONS_MAX = 12  # an error names this many nodes, and counts the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node as placement sees it. `barred`: why it takes nothing now; empty: it may take replicas."""

    node_id: int
    region: str = ""
    rack: str = ""
    barred: str = ""
    alive: bool = True  # False: suspect
    room_bytes: int = 0  # free on the writable disk that has most
    capacity_bytes: int = 0  # of its writable disks
    free_bytes: int = 0  # on its writable disks together
    append_bytes_per_s: float = 0.0
    copies: int = 0

    @property
    def rack_path(self) -> tuple[str, str]:
        """The rack with its region, because two regions may both have an r1."""
        return self.region, self.rack


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request for nodes."""

    replicas: int
    strict: bool = False
    room_bytes_min: int = 0  # a node without this much on one disk is not used
    room_bytes_liked: int = 0  # a node with less is used only if others do not suffice
    avoid: frozenset[int] = frozenset()  # a hint: they failed the caller recently
    excluded: frozenset[int] = frozenset()  # never used: they hold a replica, or are to be replaced


@dataclass(frozen=True, slots=True)
class Placed:
    node_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Eligible:
    """The nodes that may take a replica, and why each of the others may not."""

    candidates: tuple[Candidate, ...]
    reasons: dict[int, str] = field(default_factory=dict)

    def refuse(self, wanted: int, detail: str = "") -> NotEnoughNodes:
        reasons = [f"node {node_id}: {reason}" for node_id, reason in self.reasons.items()]
        if len(reasons) > REASONS_MAX:
            reasons = [*reasons[:REASONS_MAX], f"and {len(reasons) - REASONS_MAX} others"]
        parts = [
            detail,
            "; ".join(reasons) if reasons else ("" if detail or self.candidates else "no node is registered"),
        ]
        return NotEnoughNodes(
            wanted=wanted, available=len(self.candidates), detail=". ".join(part for part in parts if part)
        )


class PlacementPolicy(ABC):
    """A policy. `nodes` are all nodes of the cluster: a refusal names those that it cannot use."""

    name: str

    @abstractmethod
    def new_ensemble(self, nodes: Sequence[Candidate], wish: Wish, rng: random.Random) -> Placed:
        """Choose nodes for all replicas of a new extent."""

    @abstractmethod
    def replacement(self, nodes: Sequence[Candidate], kept: Sequence[int], wish: Wish, rng: random.Random) -> Placed:
        """Choose one node to join the replicas on `kept`. `wish.replicas`: their number including the new one."""


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
    """A node's preference; 0 is best. The hints, from the strongest to the weakest: avoided, suspect, little room."""
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
    """Choose `count` of `usable`, one by one, each as far as possible from those chosen before and `kept`.

    Distance is counted by `levels`, the widest first: how many are in the same region, then in the same rack. Among
    equals the choice is random, weighted if `weight` is given. `hints_first`: hints outweigh distance.
    """
    chosen: list[Candidate] = []
    counts = [Counter(level(node) for node in kept) for level in levels]
    # Nodes of one place and tier are equivalent, so places are compared instead of nodes, which are many more.
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
