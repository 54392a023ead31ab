"""Ids of streams, extents and nodes: numbers that nobody else ever gets, from one counter in etcd.

Invariants: a number is handed out once, whichever manager hands it out: ranges are taken by compare-and-swap;
            an unknown outcome loses a range, never hands it out twice;
            after `renew`, every number is above all that any manager handed out before.
"""

from __future__ import annotations

import asyncio
import logging

from neve.meta.store import MetaStore
from neve.meta.txn import Get, KeyValue, Put, mod_revision_is
from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError
from neve.stream_manager.metadata import records as r

log = logging.getLogger(__name__)

BLOCK_IDS = 10_000  # taken at once: a fail-over wastes what is left, of 2^64
TRIES_MAX = 20
PAUSE_S = 0.05


class IdSource:
    def __init__(self, store: MetaStore, root: bytes) -> None:
        self._store = store
        self._key = root + r.IDS
        self._next = 0
        self._end = 0
        self._renewals = 0
        self._refilling: asyncio.Task[None] | None = None

    async def take(self, count: int = 1) -> int:
        """The first of `count` numbers in a row."""
        while self._end - self._next < count:
            await self._refill(count)
        first = self._next
        self._next += count
        return first

    def take_now(self) -> int:
        """One number, if there is one at hand; 0: there is none, `take` gets more."""
        if self._next >= self._end:
            return 0
        self._next += 1
        return self._next - 1

    def renew(self) -> None:
        """Forget what is left: another manager may have handed out higher numbers meanwhile."""
        self._next = self._end = 0
        self._renewals += 1  # a range that is on its way is as old

    async def _refill(self, count: int) -> None:
        """One range for all who wait; it goes on if one of them is cancelled."""
        if self._refilling is None:
            work = self._take_range(max(BLOCK_IDS, count))
            self._refilling = asyncio.get_running_loop().create_task(work, name="ids")
            self._refilling.add_done_callback(self._on_refilled)
        await asyncio.shield(self._refilling)

    def _on_refilled(self, task: asyncio.Task[None]) -> None:
        self._refilling = None
        if not task.cancelled():
            task.exception()  # those who wait get it

    async def _take_range(self, count: int) -> None:
        renewals = self._renewals
        kv = await self._store.get(self._key)
        error: NeveError = MetaUnavailable(detail="the id counter changes too fast")
        for _ in range(TRIES_MAX):
            first = _counter(kv)
            put = Put(self._key, str(first + count).encode())
            compare = mod_revision_is(self._key, kv.mod_revision if kv is not None else 0)
            try:
                result = await self._store.txn([compare], [put], [Get(self._key)])
            except (MaybeApplied, MetaUnavailable) as failure:
                log.info("id_range_unanswered error=%s", failure)
                error = failure
                await asyncio.sleep(PAUSE_S)
                kv = await self._store.get(self._key)
                continue
            if result.succeeded:
                if renewals == self._renewals:
                    self._next, self._end = first, first + count
                return  # or it is lost: whoever waits takes another one
            kv = result.get_at(0).first
        # Whoever asked may ask again: if a range was taken after all, it is lost and nobody else's.
        raise MetaUnavailable(detail=f"no id range was had: {error}")


def _counter(kv: KeyValue | None) -> int:
    """The next free number. 0 is never one: in requests it means "none"."""
    return int(kv.value) if kv is not None else 1
