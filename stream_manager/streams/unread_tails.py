"""Seals tails that have no owner and cannot be read to their end, so that an idle stream reads as it was written.

A node learns from the writer how far readers may go in an open extent, and forgets it at a restart (protocol rule 9).
Once all nodes of an idle stream have restarted, no process knows it any more, and only a seal can establish it.

    a node reports: open, and readable to less than its end   asked about, soon
    a process holds the stream's lock                         dropped: the owner informs the nodes, or opens the stream
    some replica can be read to its end                       dropped: readers use that replica
    none can, and there is no owner                           asked again after `recovery.unread_delay_s`
    the same again, and no replica has changed                sealed, by protocol rules 17 to 20

Invariants: a stream with a live owner is never sealed: that the lock is free is read linearizably each time, and
            compared by the transaction that seals;
            if an owner opened the tail meanwhile, its replicas have another token, and the delay starts again;
            what is dropped returns with a node's next report; everything is bounded, tries too.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NamedTuple

from neve.proto import extent_node_pb2 as en
from neve.proto.errors import NeveError, NotLeader, VersionConflict
from neve.stream_manager.metadata.records import Extent, ReplicaAt
from neve.stream_manager.streams.seal_tail import seal_open_extent
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems

log = logging.getLogger(__name__)

NOTED_MAX = 100_000
LOOKS_AT_A_TIME = 64
SEALS_AT_A_TIME = 16
TRIES_MAX = 8


class Seen(NamedTuple):
    """A replica that cannot be read to its end."""

    node_id: int
    length: int
    token: int


@dataclass(slots=True)
class Waiting:
    seen: tuple[Seen, ...]  # empty: some replica did not reply
    due_s: float
    tries: int = 0  # failed looks and seals


class UnreadTails:
    def __init__(self, ctx: LeaderContext, problems: Problems) -> None:
        self._ctx = ctx
        self._problems = problems
        self._delay_s = ctx.config.recovery.unread_delay_s
        self._noted: dict[int, None] = {}  # not examined yet
        self._waiting: dict[int, Waiting] = {}  # in the order in which they are due: all have the same delay
        self.sealed = 0

    def note(self, info: en.ReplicaInfo) -> None:
        """Note a node's report about its replica of an open extent."""
        if info.committed < info.length and info.extent_id not in self._waiting and len(self._noted) < NOTED_MAX:
            self._noted[info.extent_id] = None

    async def run_once(self, now_s: float) -> None:
        due = self._take_due(now_s)
        locks = {extent_id: lock for extent_id in due if (lock := self._lock_of(extent_id)) is not None}
        if not locks:
            return
        try:
            free = await self._ctx.owners.unheld(locks.values())
        except NeveError:
            self._noted.update(dict.fromkeys(locks))  # nothing is known: start again
            raise
        unowned = [extent_id for extent_id, lock in locks.items() if lock in free]
        for extent_id in locks:
            if due[extent_id].tries and locks[extent_id] not in free:
                self._problems.solved(extent_id)  # this is the owner's task now
        await asyncio.gather(*(self._look(extent_id, due[extent_id], now_s) for extent_id in unowned))

    def _take_due(self, now_s: float) -> dict[int, Waiting]:
        """Remove and return the due extents. One that must be asked again is added again."""
        due: dict[int, Waiting] = {}
        for extent_id, waiting in self._waiting.items():
            if waiting.due_s > now_s or len(due) == SEALS_AT_A_TIME:
                break
            due[extent_id] = waiting
        for extent_id in due:
            del self._waiting[extent_id]
        while self._noted and len(due) < LOOKS_AT_A_TIME and len(self._waiting) < NOTED_MAX:
            extent_id = next(iter(self._noted))
            del self._noted[extent_id]
            due.setdefault(extent_id, Waiting((), now_s))
        return due

    def _lock_of(self, extent_id: int) -> str | None:
        """The lock of the stream whose open tail this is; None if it is no longer a tail."""
        state = self._ctx.state
        if extent_id not in state.open_extents:
            return None
        streams = (state.streams[stream_id] for stream_id in state.streams_of(extent_id))
        return next((stream.lock for stream in streams if stream.tail_id == extent_id), None)

    async def _look(self, extent_id: int, waiting: Waiting, now_s: float) -> None:
        extent = self._ctx.state.extents.get(extent_id)
        if extent is None or extent.seal is not None:
            return
        try:
            replicas = await asyncio.gather(*(self._unread(extent, replica) for replica in extent.replicas))
        except NotLeader:
            raise
        except NeveError as error:
            log.info("tail_not_looked_at extent_id=%d error=%s", extent_id, error)
            self._ask_again(extent_id, (), waiting.tries + 1, now_s)
            return
        seen = tuple(replica for replica in replicas if replica is not None)
        if len(seen) < len(extent.replicas):
            return
        if seen != waiting.seen:
            self._ask_again(extent_id, seen, waiting.tries, now_s)
            return
        await self._seal(extent_id, waiting, now_s)

    async def _unread(self, extent: Extent, replica: ReplicaAt) -> Seen | None:
        info = await self._ctx.nodes.describe(extent.extent_id, replica)
        return Seen(replica.node_id, info.length, info.token) if info.committed < info.length else None

    async def _seal(self, extent_id: int, waiting: Waiting, now_s: float) -> None:
        try:
            done = await seal_open_extent(self._ctx, extent_id, unowned=True)
        except NotLeader:
            raise
        except VersionConflict as error:  # an owner has just taken the lock
            log.info("tail_not_sealed extent_id=%d error=%s", extent_id, error)
            return
        except NeveError as error:
            self._problems.note(extent_id, f"open without an owner, and cannot be sealed: {error}", now_s)
            self._ask_again(extent_id, waiting.seen, waiting.tries + 1, now_s)
            return
        if done:
            self.sealed += 1
            self._problems.solved(extent_id)
            log.info("unread_tail_sealed extent_id=%d", extent_id)

    def _ask_again(self, extent_id: int, seen: tuple[Seen, ...], tries: int, now_s: float) -> None:
        if tries < TRIES_MAX:  # otherwise only a report brings it back
            self._waiting[extent_id] = Waiting(seen, now_s + self._delay_s, tries)
