"""What readers had to see: an acknowledged record that no error explains the absence of is missed when it is read.

Readers of an open extent get what its nodes know to be acknowledged, and restarted nodes know nothing (rule 9); what
managers say of streams may be old where they do not hear of changes. So a reading that ends without an error has

    sealed extents  all of them that there were at the revision of which it was told, to their ends
    the open one    as much as every one of its nodes was told before the reading began, if none has restarted since
    the list        as it was LAG_S before, unless there was trouble by which managers hear of changes late

of what was acknowledged before it began. Whoever follows a stream may be slow, but does not stop: without any trouble,
it has been given within STALL_S what it then has not; and at the end of a story, when all is well, everything.

Invariants: excused is what somebody asked to take out, whoever was deleted, split or merged, and what may be lost for
            want of a sync (cluster.py); nothing is excused because it is the end;
            nodes' memories are not asked: what they were told, they have answered for (wire_watch.py).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.sim.checks.explained_errors import LEADING
from tests.sim.checks.ledger import Attempt, Sighting, Told

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

LAG_S = 1.0  # a change of metadata is known to every manager by then
STALL_S = 4.0  # of a follower: a node waits for a second, and is then given up after two more


class Readings:
    """Judges each reading when it ends. `troubles`: the kinds that there were so far, if all is a story's."""

    def __init__(self, cluster: SimCluster) -> None:
        self.troubles: Collection[str] | None = None  # None: not known, somebody may do anything at any time
        self._cluster = cluster
        self._sealed: dict[int, tuple[int, float]] = {}  # by extent id: revision, and when
        self._told: dict[tuple[int, int], tuple[object, list[tuple[float, int]]]] = {}  # by node and extent
        cluster.wire.on_told = self._on_told
        cluster.ledger.on_reading = self._begin
        cluster.ledger.on_read = self._end
        cluster.ledger.on_left = self._leave

    # --- what was known when ---------------------------------------------------------------------------------

    def note_sealed(self, extent_id: int, revision: int) -> None:
        self._sealed[extent_id] = (revision, asyncio.get_running_loop().time())

    def sealed_s(self, extent_id: int) -> float:
        return self._sealed.get(extent_id, (0, math.inf))[1]

    def _on_told(self, host: str, extent_id: int, committed: int) -> None:
        node_id = int(host.removeprefix("node"))
        process = self._cluster.nodes[node_id].process
        known = self._told.get((node_id, extent_id))
        if known is None or known[0] is not process:
            known = self._told[node_id, extent_id] = (process, [])
        if not known[1] or known[1][-1][1] < committed:
            known[1].append((asyncio.get_running_loop().time(), committed))

    def _told_to_all(self, extent_id: int, by_s: float = math.inf) -> Told:
        """By then."""
        ends: list[int] = []
        knowing: list[tuple[int, object]] = []
        for node_id in self._cluster.etcd.opened_on(extent_id):
            process, heard = self._told.get((node_id, extent_id), (None, []))
            ends.append(max((end for at_s, end in heard if at_s <= by_s), default=0))
            knowing.append((node_id, process))
        told = Told(min(ends, default=0), tuple(knowing))
        return told if self._still_know(told) else Told(0, ())

    def _still_know(self, told: Told) -> bool:
        return all(
            process is not None and self._cluster.nodes[each].process is process for each, process in told.knowing
        )

    # --- readings --------------------------------------------------------------------------------------------

    def _begin(self, sighting: Sighting) -> None:
        sighting.begun_s = sighting.last_s = asyncio.get_running_loop().time()
        sighting.acknowledged = self._cluster.ledger.acknowledged(sighting.stream_id)
        extents = dict.fromkeys(extent_id for attempt in sighting.acknowledged for extent_id, _ in attempt.ends)
        sighting.told = {extent_id: self._told_to_all(extent_id) for extent_id in extents}

    def _end(self, sighting: Sighting) -> None:
        """It was told of no error: nothing is missing but what nobody could know of."""
        if self._is_changed(sighting.stream_id) or not sighting.from_start or sighting.revision is None:
            return
        self._check_list(sighting)
        for attempt in self._missing(sighting, sighting.acknowledged):
            if all(self._was_there(sighting, extent_id, end) for extent_id, end in attempt.ends):
                self._wrong(sighting, attempt, "has read the stream, and not found")

    def _leave(self, sighting: Sighting) -> None:
        if self._is_changed(sighting.stream_id) or self.troubles is None or self.troubles:
            return
        by_s = asyncio.get_running_loop().time() - STALL_S
        if max(sighting.begun_s, sighting.last_s) > by_s:
            return
        there = [each for each in self._cluster.ledger.acknowledged(sighting.stream_id) if each.acknowledged_s <= by_s]
        for attempt in self._missing(sighting, there):
            if all(self._was_known(extent_id, end, by_s) for extent_id, end in attempt.ends):
                self._wrong(sighting, attempt, f"has been given nothing for {STALL_S:g} s, and has not")

    def lacking(self, sighting: Sighting) -> list[Attempt]:
        """What it has not seen of all that is acknowledged by now: nothing, when all is well and it had some time."""
        if self._is_changed(sighting.stream_id):
            return []
        there = self._cluster.ledger.acknowledged(sighting.stream_id)
        return [each for each in self._missing(sighting, there) if not self._cluster.may_be_lost(each)]

    def _wrong(self, sighting: Sighting, attempt: Attempt, what: str) -> None:
        told = f"{sighting.reader} {what} {attempt.payload[:40]!r}, acknowledged at {attempt.position}"
        self._cluster.violations.append(f"{told}, among {len(sighting.records)} of stream {sighting.stream_id} (G2)")

    def _is_changed(self, stream_id: int) -> bool:
        ledger = self._cluster.ledger
        return (
            stream_id in ledger.deleted
            or stream_id in ledger.merged
            or stream_id in ledger.merged.values()
            or stream_id in ledger.twins
            or stream_id in ledger.twins.values()
        )

    def _missing(self, sighting: Sighting, attempts: list[Attempt]) -> list[Attempt]:
        """Of these, what it has not seen; not what somebody asked to take out meanwhile."""
        removed = self._cluster.ledger.removed.get(sighting.stream_id, set())
        seen = {bytes(record.payload) for record in sighting.records}
        kept = [each for each in attempts if removed.isdisjoint(extent_id for extent_id, _ in each.ends)]
        return [each for each in kept if each.payload not in seen]

    def _check_list(self, sighting: Sighting) -> None:
        """Managers that follow hear of changes at once, unless something keeps them from it."""
        if self.troubles is None or not LEADING.isdisjoint(self.troubles):
            return
        listed = self._cluster.etcd.extents_of(sighting.stream_id)
        known = [self._sealed[extent_id] for extent_id in listed if extent_id in self._sealed]
        wanted = max((revision for revision, at_s in known if at_s <= sighting.begun_s - LAG_S), default=0)
        if sighting.revision is not None and sighting.revision < wanted:
            told = f"{sighting.reader} is told of stream {sighting.stream_id} as it was at revision {sighting.revision}"
            self._cluster.violations.append(f"{told}, and {wanted} is more than {LAG_S:g} s old")

    def _was_there(self, sighting: Sighting, extent_id: int, end: int) -> bool:
        """Before the reading began, for whoever was told of metadata what it was told."""
        etcd, revision = self._cluster.etcd, sighting.revision or 0
        sealed_at, at_s = self._sealed.get(extent_id, (0, math.inf))
        if at_s <= sighting.begun_s and sealed_at <= revision:
            return end <= etcd.seals[extent_id]  # what is above is lost, or the seal is wrong
        told = sighting.told.get(extent_id, Told(0, ()))
        return etcd.linked.get(extent_id, revision + 1) <= revision and end <= told.end and self._still_know(told)

    def _was_known(self, extent_id: int, end: int, by_s: float) -> bool:
        """By then, to all."""
        if self.sealed_s(extent_id) <= by_s:
            return end <= self._cluster.etcd.seals[extent_id]
        return end <= self._told_to_all(extent_id, by_s).end
