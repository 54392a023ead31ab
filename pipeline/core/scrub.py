"""The verdicts of a scrub on the replicas of an extent, from reads of each replica. Pure.

Invariants: a replica that could not be read is not called bad;
            where replicas of one extent differ although each is sound in itself, the seal's digest decides; without one
            (an open extent, or none has confirmed) what most of them say counts, and if there is no majority nobody is
            called bad: a person has to look;
            what changed since the scan was planned is left to the next scrub: a replica that was moved or deleted
            meanwhile is no finding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

OK, BAD, UNREAD, STALE = "ok", "bad", "unread", "changed meanwhile"


@dataclass(frozen=True, slots=True)
class ReplicaVerdict:
    extent_id: int
    node_id: int
    incarnation: int
    sealed: bool
    verdict: str
    offset: int = 0
    problem: str = ""
    digest: bytes = b""
    blocks: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class Summary:
    replicas: int = 0
    extents: int = 0
    bytes_read: int = 0
    blocks: int = 0
    bad: list[ReplicaVerdict] = field(default_factory=list)
    unread: list[ReplicaVerdict] = field(default_factory=list)
    stale: list[ReplicaVerdict] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)  # extents whose replicas differ without a majority
    notes: list[ReplicaVerdict] = field(default_factory=list)  # sound replicas with something to mention
    endangered: list[int] = field(default_factory=list)  # extents without a replica that was read and found sound
    unconfirmed: list[int] = field(default_factory=list)  # sealed, and no replica may be read, then and now


def compare(verdicts: Iterable[ReplicaVerdict]) -> list[ReplicaVerdict]:
    """The verdicts again, with those turned bad whose bytes differ from what counts."""
    by_extent: dict[int, list[ReplicaVerdict]] = defaultdict(list)
    for verdict in verdicts:
        by_extent[verdict.extent_id].append(verdict)
    judged: list[ReplicaVerdict] = []
    for group in by_extent.values():
        right = _right_digest(group)
        for each in group:
            if right is not None and each.verdict == OK and each.digest != right:
                problem = "its bytes differ from those of most other replicas"
                judged.append(replace(each, verdict=BAD, problem=problem))
            else:
                judged.append(each)
    return judged


def undecided(verdicts: Iterable[ReplicaVerdict]) -> list[int]:
    """Extents whose sound replicas differ without a majority."""
    digests: dict[int, list[bytes]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.verdict == OK:
            digests[verdict.extent_id].append(verdict.digest)
    return sorted(extent_id for extent_id, found in digests.items() if len(set(found)) > 1)


def _right_digest(group: list[ReplicaVerdict]) -> bytes | None:
    """The digest of the majority of the sound replicas; None without a majority."""
    sound = Counter(each.digest for each in group if each.verdict == OK)
    if not sound:
        return None
    digest, count = sound.most_common(1)[0]
    return digest if 2 * count > sound.total() else None


def drop_stale(verdicts: Iterable[ReplicaVerdict], listed_now: Mapping[int, Mapping[int, int]]) -> list[ReplicaVerdict]:
    """`listed_now`: incarnations by extent and node, as metadata has them by now.

    A replica that has lost its confirmation meanwhile stays bad: its node has found the defect, too, and reported it.
    """
    kept: list[ReplicaVerdict] = []
    for each in verdicts:
        same = listed_now.get(each.extent_id, {}).get(each.node_id) == each.incarnation
        kept.append(each if each.verdict == OK or same else replace(each, verdict=STALE))
    return kept


def sort_out(summary: Summary, verdicts: Iterable[ReplicaVerdict]) -> None:
    """Put those with something to say into the summary's lists. Extents that have nothing to say are not among them."""
    judged = list(verdicts)
    for each in judged:
        if each.verdict == BAD:
            summary.bad.append(each)
        elif each.verdict == UNREAD:
            summary.unread.append(each)
        elif each.verdict == STALE:
            summary.stale.append(each)
        elif each.problem:
            summary.notes.append(each)
    sound = {each.extent_id for each in judged if each.verdict in (OK, STALE)}
    summary.undecided = undecided(judged)
    summary.endangered = sorted({each.extent_id for each in judged} - sound)
