"""The proposal of a GC run from its findings. Pure: Spark gathers the evidence, and owners carry out the plan.

    delete     an extent that no stream refers to: the manager deletes it, if that is still so
    collect    a file that metadata does not list: the manager's collector removes it after its own grace period
    reclaim    a log extent in which little is live: its partition's server moves that and punches the extent
    keep       would be one of these, but for the reason that stands beside it

Invariants: evidence that lacks anything, a node, a page, a task, a partition, proposes nothing at all (T36);
            nothing younger than the grace period, by the clock of the run and by the revision of its snapshot, is
            proposed: what is being made while the run looks is no garbage (T37);
            the same evidence gives the same plan, and a plan that is carried out twice does no more than once (T38): an
            extent is named by id and eversion, a file by its incarnation, and ids are never used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

DELETE, COLLECT, RECLAIM, KEEP = "delete", "collect", "reclaim", "keep"


@dataclass(frozen=True, slots=True)
class Policy:
    grace_ms: int = 24 * 3600 * 1000
    live_share_max: float = 0.5  # of a log extent: with more than that, moving costs more than it gives back


@dataclass(frozen=True, slots=True)
class UnreferencedExtent:
    """In metadata, and in no stream's list."""

    extent_id: int
    eversion: int
    size_bytes: int  # of all replicas together
    created_ms: int
    changed_revision: int


@dataclass(frozen=True, slots=True)
class UnlistedFile:
    """On a node, and not where metadata has a replica of that extent."""

    extent_id: int
    node_id: int
    incarnation: int
    size_bytes: int
    created_ms: int
    known_extent: bool  # metadata has the extent, elsewhere


@dataclass(frozen=True, slots=True)
class LogExtent:
    """An extent of a partition's log, and what of it is live."""

    partition_id: int
    extent_id: int
    eversion: int
    length: int  # of one copy
    live_bytes: int
    replicas: int
    created_ms: int
    pinned: str = ""  # why it cannot go, whatever is live: open, to be replayed, of a snapshot


@dataclass(frozen=True, slots=True)
class Evidence:
    revision: int
    seen_ms: int  # the clock when the run began, before it looked at anything
    unreferenced: Sequence[UnreferencedExtent] = ()
    unlisted: Sequence[UnlistedFile] = ()
    logs: Sequence[LogExtent] = ()
    missing: Sequence[str] = ()  # what could not be seen


@dataclass(frozen=True, slots=True)
class PlanRow:
    action: str
    extent_id: int
    reason: str
    eversion: int = 0
    node_id: int = 0
    incarnation: int = 0
    partition_id: int = 0
    size_bytes: int = 0  # that come back, on all disks together
    live_bytes: int = 0  # to be moved first, of one copy


@dataclass(frozen=True, slots=True)
class Plan:
    revision: int
    rows: list[PlanRow] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # why nothing is proposed

    def rows_for(self, action: str) -> list[PlanRow]:
        return [row for row in self.rows if row.action == action]


def make_plan(evidence: Evidence, policy: Policy) -> Plan:
    if evidence.missing:
        return Plan(evidence.revision, refused=sorted(evidence.missing))
    rows = [*_unreferenced(evidence, policy), *_unlisted(evidence, policy), *_shared_once(_logs(evidence, policy))]
    order = sorted(rows, key=lambda row: (row.action, row.extent_id, row.node_id, row.partition_id))
    return Plan(evidence.revision, order)


def _young(created_ms: int, evidence: Evidence, policy: Policy) -> str:
    age_ms = evidence.seen_ms - created_ms
    if age_ms >= policy.grace_ms:
        return ""
    return f"{max(0, age_ms) // 1000} s old; the grace period is {policy.grace_ms // 1000} s"


def _unreferenced(evidence: Evidence, policy: Policy) -> Iterator[PlanRow]:
    for extent in evidence.unreferenced:
        why_not = _young(extent.created_ms, evidence, policy)
        if extent.changed_revision > evidence.revision:
            why_not = f"it changed at revision {extent.changed_revision}"
        yield PlanRow(
            KEEP if why_not else DELETE,
            extent.extent_id,
            why_not or "no stream refers to it",
            eversion=extent.eversion,
            size_bytes=extent.size_bytes,
        )


def _unlisted(evidence: Evidence, policy: Policy) -> Iterator[PlanRow]:
    for file in evidence.unlisted:
        why_not = _young(file.created_ms, evidence, policy)
        reason = "metadata has its replicas elsewhere" if file.known_extent else "metadata does not know the extent"
        yield PlanRow(
            KEEP if why_not else COLLECT,
            file.extent_id,
            why_not or reason,
            node_id=file.node_id,
            incarnation=file.incarnation,
            size_bytes=file.size_bytes,
        )


def _shared_once(rows: Iterable[PlanRow]) -> Iterator[PlanRow]:
    """Of an extent that several partitions have, after a split: bytes come back once, when all of them let it go."""
    by_extent: dict[int, list[PlanRow]] = {}
    for row in rows:
        by_extent.setdefault(row.extent_id, []).append(row)
    for sharing in by_extent.values():
        sharing.sort(key=lambda row: row.partition_id)
        keepers = [row.partition_id for row in sharing if row.action == KEEP]
        first = sharing[0].partition_id
        why = f"partition {keepers[0]} has it, too, and keeps it" if keepers else f"counted with partition {first}"
        for number, row in enumerate(sharing):
            if row.action == KEEP or (number == 0 and not keepers):
                yield row
            else:
                yield replace(row, size_bytes=0, reason=f"{row.reason}; {why}")


def _logs(evidence: Evidence, policy: Policy) -> Iterator[PlanRow]:
    for log in evidence.logs:
        assert 0 <= log.live_bytes <= log.length, log
        share = log.live_bytes / log.length if log.length else 0.0
        why_not = log.pinned or _young(log.created_ms, evidence, policy)
        if not why_not and share > policy.live_share_max:
            why_not = f"{share:.0%} of it is live"
        yield PlanRow(
            KEEP if why_not else RECLAIM,
            log.extent_id,
            why_not or f"{share:.0%} of it is live",
            eversion=log.eversion,
            partition_id=log.partition_id,
            size_bytes=log.length * log.replicas,
            live_bytes=log.live_bytes,
        )
