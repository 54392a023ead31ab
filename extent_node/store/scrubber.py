"""Reads all replicas again, slowly and without end, to find changes on the disk before a reader meets them.

A bad sealed replica is quarantined: moved aside, not deleted, so that the manager orders a copy from good ones and a
person can look at it. A bad open one becomes doubtful and accepts no more appends. Both are reported to `on_bad`.

Invariants: a reported finding was seen twice and still holds (store/audit.py); a disk's error is not damage;
            at most `bytes_per_s` are read, however much data there is;
            one replica's trouble does not end the round.

A round begins at a random extent. So a node that restarts more often than a round takes still reads all of them,
without storing its position.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from neve.extent_node.store.audit import SLICE_BYTES, Audit, Finding, audit
from neve.extent_node.store.bandwidth import Pacer
from neve.extent_node.store.control import quarantine
from neve.extent_node.store.storage import Storage
from neve.proto.errors import DiskFailed, NeveError
from neve.proto.stream_manager_pb2 import BadReplica

log = logging.getLogger(__name__)

PAGE_REPLICAS = 256
ROUND_INTERVAL_S = 24 * 3600.0  # a small node does not read all day long


@dataclass(slots=True)
class Round:
    """The outcome of one pass over everything."""

    seconds: float = 0.0
    bytes_read: int = 0
    extents: int = 0  # audited
    bad: int = 0
    skipped: int = 0  # changed meanwhile, or known to be bad
    read_errors: int = 0
    indexes_rebuilt: int = 0


@dataclass(slots=True)
class Counters:
    """Counts since the process started, for metrics. `last_round` is the last finished one."""

    rounds: int = 0
    bytes_read: int = 0
    extents: int = 0
    bad: int = 0
    read_errors: int = 0
    indexes_rebuilt: int = 0
    last_round: Round = field(default_factory=Round)


class Scrubber:
    """Audits all replicas in rounds."""

    def __init__(
        self,
        storage: Storage,
        *,
        bytes_per_s: int,
        on_bad: Callable[[BadReplica], None],
        rng: random.Random | None = None,
        round_interval_s: float = ROUND_INTERVAL_S,
        reporter: str = "",
    ) -> None:
        """`bytes_per_s` 0: no bound. `round_interval_s`: from the beginning of a round to the next."""
        self.counters = Counters()
        self._store = storage.state
        self._inventory = storage.inventory
        self._on_bad = on_bad
        self._rng = rng or random.Random()
        self._round_interval_s = round_interval_s
        self._reporter = reporter
        self._pacer = Pacer(bytes_per_s=bytes_per_s, burst_bytes=SLICE_BYTES)

    async def run(self) -> None:
        """Scrub in rounds until cancelled, which must happen before the store stops."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            try:
                await self.scrub_all()
            except Exception:  # top of a daemon's loop
                log.exception("scrub_failed")
            await asyncio.sleep(max(1.0, begun_s + self._round_interval_s - loop.time()))

    async def scrub_all(self) -> Round:
        """One round over every existing replica."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        now = Round()
        for extent_id in await self._extent_ids():
            await self._scrub(extent_id, now)
        now.seconds = loop.time() - begun_s
        self.counters.rounds += 1
        self.counters.last_round = now
        log.info(
            "scrub_round extents=%d bytes=%d bad=%d read_errors=%d seconds=%.1f",
            now.extents,
            now.bytes_read,
            now.bad,
            now.read_errors,
            now.seconds,
        )
        return now

    async def _extent_ids(self) -> list[int]:
        """All ids, beginning with a random one. Replicas made meanwhile wait for the next round."""
        ids: list[int] = []
        more = True
        while more:
            after = ids[-1] if ids else 0
            page, more = self._inventory.list(after_extent_id=after, limit=PAGE_REPLICAS, unsealed_only=False)
            ids += [info.extent_id for info in page]
            await asyncio.sleep(0)  # 100,000 replicas take a fifth of a second
        begin = self._rng.randrange(len(ids)) if ids else 0
        return ids[begin:] + ids[:begin]

    async def _scrub(self, extent_id: int, now: Round) -> None:
        try:
            result = await audit(self._store, extent_id, pacer=self._pacer)
        except NeveError as error:
            # The disk fails or has too many waiting calls. Its state says so; its replicas are recovered elsewhere.
            now.read_errors += isinstance(error, DiskFailed)
            self.counters.read_errors += isinstance(error, DiskFailed)
            log.warning("scrub_not_read extent_id=%d error=%s", extent_id, error)
            return
        now.bytes_read += result.bytes_read
        self.counters.bytes_read += result.bytes_read
        if result.skipped:
            now.skipped += 1
            return
        now.extents += 1
        self.counters.extents += 1
        now.indexes_rebuilt += result.index_rebuilt
        self.counters.indexes_rebuilt += result.index_rebuilt
        if result.finding is not None:
            now.bad += 1
            self.counters.bad += 1
            await self._bad(extent_id, result, result.finding)

    async def _bad(self, extent_id: int, result: Audit, finding: Finding) -> None:
        if result.sealed:
            try:
                incarnation = result.replica.incarnation
                await quarantine(self._store, extent_id, incarnation=incarnation, reason=finding.reason)
            except NeveError as error:
                # It is marked as damaged, so it is not served; a copy will replace it in place.
                log.error("scrub_not_quarantined extent_id=%d error=%s", extent_id, error)
        self._on_bad(
            BadReplica(
                extent_id=extent_id,
                replica=result.replica,
                offset=finding.offset,
                reason=finding.reason,
                reporter=self._reporter,
            )
        )
