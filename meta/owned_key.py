"""A key on our lease that proves a right while it exists: that we lead, or that we own a lock.

Invariants: `lost` is set at once when the lease is lost or the key is seen deleted or replaced, and stays set;
            a key of the same name that another process put is not ours: revisions decide, never names or values;
            giving the key up is retried until the store has answered, even after its caller has ended: see
            key_claim.py.

`lost` may be set late. The proof of ownership is the lease's clock (`ensure`) for actions of this process alone, and
`guard` in the transaction for writes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from neve.meta.key_claim import Bid
from neve.meta.latch import Latch
from neve.meta.lease import Lease
from neve.meta.store import EventKind, MetaStore, Resync, WatchItem
from neve.meta.txn import Compare, KeyValue
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)


class OwnedKey(ABC):
    """Watches its own key in the background until it is lost or given up."""

    def __init__(self, store: MetaStore, lease: Lease, kv: KeyValue, bid: Bid) -> None:
        self.lease = lease
        self.lost = Latch()
        self._store = store
        self._bid = bid
        self._kv = kv
        lease.lost.add_callback(self._on_lease_lost)
        self._task = asyncio.get_running_loop().create_task(
            self._watch_key(), name=f"owned-key-{kv.key.decode(errors='replace')}"
        )
        self._task.add_done_callback(self._on_task_done)

    @property
    def key(self) -> bytes:
        return self._kv.key

    @abstractmethod
    def guard(self) -> tuple[Compare, ...]:
        """The compares for every transaction that only the owner may make."""

    @abstractmethod
    def _is_ours(self, kv: KeyValue) -> bool: ...

    @abstractmethod
    def _withdrawal_guard(self) -> tuple[Compare, ...]:
        """The compares that prove that the key to delete is from our own bid, whichever of its puts created it."""

    @abstractmethod
    def _not_ours(self) -> NeveError:
        """The error for a key that is not ours or does not exist."""

    def ensure(self) -> None:
        """Raise if this process knows, without asking the store, that the key may not be ours. Never waits."""
        self.lease.ensure_alive()
        if self.lost.reached:
            raise self._not_ours()

    async def give_up(self, reason: str) -> None:
        """Stop counting as the owner, then delete the key if it is still ours.

        If the store does not answer within the lease's time, or the caller is cancelled, the deletion continues in the
        background until the store has answered or the lease is lost. Otherwise a renewed lease would keep the key for
        ever.
        """
        self._lose(reason)
        await self._bid.withdraw(self._withdrawal_guard(), wait_s=self.lease.ttl_s)
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.give_up("it was given up")

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self.lease.lost.remove_callback(self._on_lease_lost)
        if asyncio.current_task() is not self._task:  # that task is about to end and closes its watch first
            self._task.cancel()
        log.info("owned_key_lost key=%r reason=%s", self.key, reason)
        self.lost.set(reason)
        if self._bid.doubtful:  # a late put would create the key, and no later call would delete it
            self._bid.withdraw_behind(self._withdrawal_guard())

    def _on_lease_lost(self, reason: str) -> None:
        self._lose(f"the lease is lost: {reason}")

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("owned_key_watch_failed key=%r", self.key, exc_info=error)
        # Without a watch this process would not notice a successor, so it stops counting as the owner.
        self._lose("its watch ended")

    async def _watch_key(self) -> None:
        async with self._store.watch(self.key, start_revision=self._kv.mod_revision + 1) as watch:
            async for item in watch:
                kv = _newest(item)
                if kv is None or not self._is_ours(kv):
                    self._lose("the key was deleted" if kv is None else "the key was replaced")
                    return


def _newest(item: WatchItem) -> KeyValue | None:
    """The watched key after this item; None if it was deleted."""
    if isinstance(item, Resync):
        return item.kvs[0] if item.kvs else None
    event = item.events[-1]
    return event.kv if event.kind is EventKind.PUT else None
