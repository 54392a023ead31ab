"""Unique ids for streams, extents and nodes, from one counter in etcd.

Invariants: an id is handed out once, by one manager: managers take ranges of ids by compare-and-swap;
            a range whose transaction has an unknown outcome is lost, never handed out twice;
            after `renew`, every id is larger than all ids that any manager handed out before.
"""

from __future__ import annotations

import asyncio
import logging

from neve.meta.store import MetaStore
from neve.meta.txn import Get, KeyValue, Put, mod_revision_is
from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError
from neve.stream_manager.metadata import records as r

log = logging.getLogger(__name__)

BLOCK_IDS = 10_000  # size of a range; a fail-over wastes the rest of it, of 2^64
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
        """Take `count` consecutive ids and return the first."""
        while self._end - self._next < count:
            await self._refill(count)
        first = self._next
        self._next += count
        return first

    def take_now(self) -> int:
        """Take one id without waiting; 0 if the range is used up, then call `take`."""
        if self._next >= self._end:
            return 0
        self._next += 1
        return self._next - 1

    def renew(self) -> None:
        """Drop the rest of the range: another manager may have handed out larger ids meanwhile."""
        self._next = self._end = 0
        self._renewals += 1  # a range that is being fetched is outdated, too

    async def _refill(self, count: int) -> None:
        """Fetch one range for all waiting callers; it continues if one of them is cancelled."""
        if self._refilling is None:
            work = self._take_range(max(BLOCK_IDS, count))
            self._refilling = asyncio.get_running_loop().create_task(work, name="ids")
            self._refilling.add_done_callback(self._on_refilled)
        await asyncio.shield(self._refilling)

    def _on_refilled(self, task: asyncio.Task[None]) -> None:
        self._refilling = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the waiting callers get it

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
                return  # otherwise the range is lost, and the waiting callers fetch another one
            kv = result.get_at(0).first
        # The caller may try again: if the transaction was applied after all, its range is lost and unused.
        raise MetaUnavailable(detail=f"could not take a range of ids: {error}")


def _counter(kv: KeyValue | None) -> int:
    """The next free id. It is never 0, which means "none" in requests."""
    return int(kv.value) if kv is not None else 1
