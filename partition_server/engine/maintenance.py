"""The background work of a partition: flushes, merges, returning extents, expiry.

Invariants: a failure is logged and tried again later, unless a stream's writer has ended, which ends the partition;
            flushes do not wait for merges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from neve.partition_server.engine.scans import Scans
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.uploads import Uploads
from neve.partition_server.log.reclaimer import Reclaimer
from neve.partition_server.tables.compactor import Compactor
from neve.partition_server.tables.flusher import Flusher
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

TROUBLE_DELAY_S = 5.0


class Maintenance:
    def __init__(
        self,
        store: Store,
        *,
        flusher: Flusher,
        compactor: Compactor,
        reclaimer: Reclaimer,
        scans: Scans,
        uploads: Uploads,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._compactor = compactor
        self._reclaimer = reclaimer
        self._scans = scans
        self._uploads = uploads
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = self._store.loop
        works = {"flush": self._flush, "merge": self._merge, "tidy": self._tidy}
        name = f"partition-{self._store.partition_id}"
        self._tasks = [
            loop.create_task(self._repeat(what, work), name=f"{name}-{what}") for what, work in works.items()
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        store = self._store
        while store.error is None:
            if what == "flush":
                store.work.clear()  # before the work, so that work arriving meanwhile is not missed
            try:
                with store.noting_ended_streams():
                    await work()
            except NeveError as error:
                log.warning("maintenance_failed partition_id=%d work=%s error=%s", store.partition_id, what, error)
                await asyncio.sleep(TROUBLE_DELAY_S)
                continue
            if what == "flush":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(store.config.maintenance_s):  # wait_for of 3.11 may swallow a cancel
                        await store.work.wait()
            else:
                await asyncio.sleep(store.config.maintenance_s)

    async def _flush(self) -> None:
        if self._is_due():
            self._flusher.rotate()
        await self._flusher.flush_closed()

    def _is_due(self) -> bool:
        """Whether to close the active memtable now."""
        store = self._store
        memtable = store.active
        if not memtable.last_seq or len(store.view.memtables) > store.config.memtables_closed_max:
            return False
        if memtable.is_full(store.config) or store.memory.should_flush(store.share):
            return True
        return store.loop.time() - store.rotated_s > store.config.flush_after_s

    async def _merge(self) -> None:
        while await self._compactor.run_one():
            pass

    async def _tidy(self) -> None:
        self._scans.expire()
        self._uploads.expire()
        self._store.sessions.expire(self._store.wall_ms())
        await self._reclaimer.tidy()
        for extent_id in self._reclaimer.worth_it():
            await self._reclaimer.reclaim([extent_id])
