"""The in-memory metadata store: a `MemoryStore` is the cluster, a `MemoryClient` is one process's connection to it.

Invariants: it gives the same answers as etcd to the same requests (conformance and differential tests run on both);
            it is deterministic: time is the loop's, ids are counted, faults come from the client's `FaultPlan`;
            a watch reads the store's history from its own position, so it has no queue that could overflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from neve.meta.lease import HeldLeases, Lease
from neve.meta.memory.link import FaultPlan, Link
from neve.meta.memory.mvcc import KeySpace
from neve.meta.store import (
    MetaStore,
    RangePage,
    Resync,
    Watch,
    WatchItem,
    check_read,
    check_start_revision,
    check_ttl,
)
from neve.meta.txn import (
    Compare,
    KeyRange,
    Keys,
    Operation,
    TxnResult,
    as_range,
    check_int64,
    check_lease_id,
    check_txn,
)
from neve.proto.errors import LeaseLost, MetaUnavailable

CALL_TIMEOUT_S = 5.0
LEASE_ID_FIRST = 0x1001  # far from revisions, so that a test that confuses the two fails


class MemoryStore:
    """The state that an etcd cluster would hold, for all clients of one loop."""

    def __init__(self) -> None:
        self.key_space = KeySpace()
        self._lease_id_next = LEASE_ID_FIRST
        self._ttls_s: dict[int, float] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.watches: dict[MemoryWatch, None] = {}  # a dict and not a set, to wake them in the order of creation

    def client(self, *, plan: FaultPlan | None = None, call_timeout_s: float = CALL_TIMEOUT_S) -> MemoryClient:
        return MemoryClient(self, plan=plan, call_timeout_s=call_timeout_s)

    def txn(self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> TxnResult:
        result = self.key_space.txn(compares, success, failure)
        self._wake()
        return result

    def grant(self, ttl_s: float) -> int:
        lease_id = self._lease_id_next
        self._lease_id_next += 1
        self._ttls_s[lease_id] = ttl_s
        self.key_space.leases[lease_id] = set()
        self._arm(lease_id)
        return lease_id

    def keep_alive(self, lease_id: int) -> float:
        if lease_id not in self._ttls_s:
            return 0.0
        self._arm(lease_id)
        return self._ttls_s[lease_id]

    def end_lease(self, lease_id: int) -> None:
        """End a revoked or expired lease. Its keys are deleted in one revision."""
        if self._ttls_s.pop(lease_id, None) is None:
            return
        self._timers.pop(lease_id).cancel()
        self.key_space.end_lease(lease_id)
        self._wake()

    def compact(self, revision: int) -> None:
        self.key_space.compact(revision)
        self._wake()

    def _arm(self, lease_id: int) -> None:
        if (timer := self._timers.get(lease_id)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[lease_id] = loop.call_later(self._ttls_s[lease_id], self.end_lease, lease_id)

    def _wake(self) -> None:
        for watch in self.watches:
            watch.wake()


class MemoryWatch(Watch):
    """The watch. `next_revision` is the first undelivered revision; it moves only when an item is returned."""

    def __init__(self, client: MemoryClient, keys: KeyRange, start_revision: int) -> None:
        self._client = client
        self._store = client.store
        self._link = client.link
        self._keys = keys
        self._next_revision = start_revision
        self._down_until_s = 0.0
        self._closed = False
        self._awake = asyncio.Event()
        self._store.watches[self] = None
        client.watches[self] = None

    async def __anext__(self) -> WatchItem:
        loop = asyncio.get_running_loop()
        while not self._closed:
            if not self._link.passing or not self._anything_new():
                self._awake.clear()
                await self._awake.wait()
                continue
            if self._down_until_s > loop.time():
                await asyncio.sleep(self._down_until_s - loop.time())
                continue
            if (delay_s := self._link.plan.draw_delay_s()) > 0:
                await asyncio.sleep(delay_s)
            # No await from here to the return, so a cancelled consumer loses no item.
            if self._link.passing and not self._closed and (item := self._take()) is not None:
                return item
        raise StopAsyncIteration

    def _anything_new(self) -> bool:
        return self._next_revision <= self._store.key_space.revision

    def _take(self) -> WatchItem | None:
        key_space = self._store.key_space
        if not self._anything_new():
            return None
        if self._next_revision <= key_space.compact_revision:
            page = key_space.read(self._keys)
            self._next_revision = page.revision + 1
            return Resync(page.revision, page.kvs)
        batch = key_space.first_batch(self._next_revision, self._keys)
        self._next_revision = (batch.revision if batch else key_space.revision) + 1
        return batch

    def wake(self) -> None:
        self._awake.set()

    def interrupt(self, for_s: float) -> None:
        self._down_until_s = asyncio.get_running_loop().time() + for_s

    async def close(self) -> None:
        self._closed = True
        self._store.watches.pop(self, None)
        self._client.watches.pop(self, None)
        self.wake()


class MemoryClient(MetaStore):
    """One process's connection. The methods at the end inject faults; `plan` may change at any time."""

    def __init__(
        self, store: MemoryStore, *, plan: FaultPlan | None = None, call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self.plan = plan or FaultPlan()
        self.clock = lambda: asyncio.get_running_loop().time()
        self.store = store
        self.link = Link(self.plan, call_timeout_s=call_timeout_s)
        self._leases = HeldLeases()
        self.watches: dict[MemoryWatch, None] = {}
        self._closed = False

    async def range(self, keys: Keys, *, limit: int = 0, revision: int = 0, serializable: bool = False) -> RangePage:
        check_read(limit=limit, revision=revision)
        wanted = as_range(keys)
        self._check_open()
        return await self.link.call(
            lambda: self.store.key_space.read(wanted, limit=limit, revision=revision), write=False
        )

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(compares, success, failure)
        self._check_open()
        request = tuple(compares), tuple(success), tuple(failure)  # copies: the caller may change its lists
        try:
            return await self.link.call(lambda: self.store.txn(*request), write=True)
        except LeaseLost as error:
            self._leases.ended(error.lease_id)
            raise

    async def grant_lease(self, ttl_s: int) -> Lease:
        check_ttl(ttl_s)
        self._check_open()
        sent_s = self.clock()
        lease_id = await self.link.call(lambda: self.store.grant(ttl_s), write=True)
        return self._leases.add(Lease(self, lease_id=lease_id, ttl_s=ttl_s, sent_s=sent_s, clock=self.clock))

    async def keep_alive(self, lease_id: int, *, timeout_s: float) -> float:
        self._check_open()
        return await self.link.call(lambda: self.store.keep_alive(lease_id), write=False, timeout_s=timeout_s)

    async def revoke(self, lease_id: int) -> None:
        check_lease_id(lease_id)
        self._check_open()
        await self.link.call(lambda: self.store.end_lease(lease_id), write=True)

    async def compact(self, revision: int) -> None:
        check_int64("revision", revision)
        self._check_open()
        await self.link.call(lambda: self.store.compact(revision), write=True)

    def watch(self, keys: Keys, *, start_revision: int) -> MemoryWatch:
        check_start_revision(start_revision)
        self._check_open()
        return MemoryWatch(self, as_range(keys), start_revision)

    async def close(self) -> None:
        self._closed = True
        await self._leases.abandon_all("its store was closed")
        for watch in list(self.watches):
            await watch.close()
        self.link.disconnect()

    def _check_open(self) -> None:
        if self._closed:
            raise MetaUnavailable(detail="this connection is closed")

    # --- fault hooks, for the simulator --------------------------------------------------------------------

    def stall(self) -> None:
        self.link.stall()

    def resume(self) -> None:
        self.link.resume()
        self._wake_watches()

    def disconnect(self) -> None:
        self.link.disconnect()

    def reconnect(self) -> None:
        self.link.reconnect()
        self._wake_watches()

    def interrupt_watches(self, for_s: float) -> None:
        """The watches see nothing for `for_s` seconds and then resume, as after a reconnection."""
        for watch in self.watches:
            watch.interrupt(for_s)

    def _wake_watches(self) -> None:
        for watch in self.watches:
            watch.wake()
