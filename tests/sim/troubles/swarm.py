"""What a seed's story is like: sizes, policies, and which kinds of trouble it has.

Each story has only some of the kinds, each with a weight of its own (swarm testing): a story with everything in it
hides what a long row of the same would show, since one kind undoes another. Where few stories have to come to every
kind, each is dealt some that it comes to in any case.

Invariants: nothing but the seed decides; a story with fewer events is the beginning of the one with more of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

EVENTS_MIN, EVENTS_MAX = 8, 24
EVENTS_SHORT = (6, 14)
LOSING = {
    "bits flipped": "damage",
    "disk errors": "errors",
    "disks wiped": "wipe",
    "node vanishes": "vanish",
    "bits flipped in a journal": "damage",
    "bits flipped in a label": "damage",
    "bits flipped in a tail": "damage",
    "one disk wiped": "wipe",
}
"""What few stories may have, and what these lose by it."""
LOSING_WEIGHT = 6.0
ROUND = 16  # so many stories, one after the other, come to every kind that is dealt
SYNCED = frozenset(
    {"disks wiped", "node vanishes", "one disk wiped", "power cut everywhere"}
)  # what only stories may have that sync
OWNED = frozenset(  # what there must be users of streams for
    {
        "client killed",
        "client stopped",
        "owner dies, replica loses power",
        "owner stopped past its lease",
        "slow replica and a dead one",
        "stream sealed",
        "stream taken over",
        "tail drained, nodes missing",
    }
)
THEMED = 0.5  # of the stories
THEME_SHARE = 0.4  # of their troubles


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and policies of a story."""

    managers: int
    nodes: int
    disks: int  # of each node
    streams: int
    writers: int  # a stream's
    readers: int
    operators: int  # who truncate, punch, create and delete, split and merge
    sync: bool
    mixed: bool  # with sync, but some writers go without: what they append may be lost when all lose power
    loses: str  # what may become of one node's disks: "" nothing, "wipe", "damage", "vanish", "errors"
    events: int
    extent_bytes: int
    ambushes: float  # share of the troubles that wait for a message
    far: str  # who is far away from the others: "" nobody, "node" one of the nodes, "clients" all of them
    far_s: float  # how far
    append_timeout_s: float  # writers' patience with a node
    hasty: bool  # writers append while appends are under way, more often than they wait
    restless: bool  # writers leave and come back after a few appends, without waiting for them
    ragged: bool  # reads end in the middle of frames, and little is on the way before senders wait
    eager_journal: bool  # it takes the bytes of single extents, too, and larger ones go in place

    @classmethod
    def of(cls, seed: int, *, short: bool = False) -> Shape:
        rng = random.Random(f"shape {seed}")
        sync = rng.random() < 0.7
        loses = rng.choice(("", "wipe", "damage", "vanish", "errors"))
        if loses in ("wipe", "vanish") and not sync:
            loses = ""
        return cls(
            managers=rng.choice((2, 2, 3)),
            nodes=rng.choice((4, 4, 5)),
            disks=max(rng.choice((1, 1, 2)), random.Random(f"disks {seed}").choice((1, 2)) if loses == "wipe" else 1),
            streams=rng.choice((1, 1, 2)),
            writers=rng.choice((1, 1, 2) if short else (1, 2, 3)),
            readers=rng.choice((0, 1, 1) if short else (1, 1, 2)),
            operators=rng.choice((0, 1)),
            sync=sync,
            mixed=sync and not loses and rng.random() < 0.5,  # a lost disk and doubt elsewhere may be too much to seal
            loses=loses,
            events=rng.randint(*EVENTS_SHORT) if short else rng.randint(EVENTS_MIN, EVENTS_MAX),
            extent_bytes=rng.choice((4_000, 12_000, 50_000)),
            ambushes=rng.choice((0.0, 0.5, 0.9, 0.9)),
            far=rng.choice(("", "", "node", "clients")),
            far_s=rng.choice((0.02, 0.15)),
            restless=rng.random() < 0.3,
            ragged=seed % 2 == 0,
            eager_journal=rng.random() < 0.5,
            hasty=rng.random() < 0.3,
            append_timeout_s=rng.choice((0.5, 0.5, 2.0)),
        )


def dealt(seed: int, kinds: Sequence[str]) -> Sequence[str]:
    """The seed's share of the kinds: the shares of `ROUND` seeds in a row are all of them. One may lose disks once."""
    return [*LOSING, *(kind for kind in kinds if kind not in LOSING)][seed % ROUND :: ROUND]


def allowing(shape: Shape, kinds: Sequence[str]) -> Shape:
    """The same, changed as far as these kinds need it."""
    loses = next((LOSING[kind] for kind in kinds if kind in LOSING), shape.loses)
    return replace(
        shape,
        sync=shape.sync or not SYNCED.isdisjoint(kinds),
        mixed=shape.mixed and not loses,
        loses=loses,
        disks=max(shape.disks, 1 + ("one disk wiped" in kinds)),
        streams=max(shape.streams, not OWNED.isdisjoint(kinds)),
    )


def weights_of(seed: int, kinds: Iterable[str]) -> dict[str, float]:
    """About half of the kinds, with weights that differ by up to an order of magnitude. Half of the stories have a
    theme: one kind that they come back to, since what goes wrong at the second time is not seen at the first."""
    weights = {kind: _weight(seed, kind) for kind in kinds}
    rng = random.Random(f"swarm {seed}")
    if not any(weights.values()):
        weights[rng.choice(list(weights))] = 1.0
    if rng.random() < THEMED:
        theme = rng.choice([kind for kind, weight in weights.items() if weight])
        weights[theme] += THEME_SHARE / (1 - THEME_SHARE) * sum(weights.values())
    return weights


def _weight(seed: int, kind: str) -> float:
    """Each by itself: a new kind does not change the others."""
    share = random.Random(f"share {seed}").choice((0.2, 0.5, 0.5, 0.8))
    own = random.Random(f"swarm {seed} {kind}")
    return own.choice((1.0, 3.0, 10.0)) * (own.random() < share) * (LOSING_WEIGHT if kind in LOSING else 1.0)


def has_kind(seed: int, kind: str) -> bool:
    """Whether the seed's story may have this trouble, if its shape allows it."""
    return _weight(seed, kind) > 0
