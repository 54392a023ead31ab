"""A key on our lease that proves something while it stands: that we lead, or that we own a lock.

Invariants: `lost` is set at once when the lease is lost, or when the key is seen deleted or replaced, and stays;
            a key of the same name that somebody else put is not ours: revisions decide, never names or values.
            giving it up is tried until the store has answered, also when its caller is gone: see `bid`.

`lost` is news, and news may come late. What proves ownership is the lease's clock (`ensure`) for what we do alone,
and `guard` in the transaction for what we write.
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
        """What to compare in every transaction that only the owner may do."""

    @abstractmethod
    def _is_ours(self, kv: KeyValue) -> bool: ...

    @abstractmethod
    def _withdrawal_guard(self) -> tuple[Compare, ...]:
        """What tells that the key to delete is of our own bid, whichever of its puts it was."""

    @abstractmethod
    def _not_ours(self) -> NeveError:
        """The error for a key that somebody else has, or nobody."""

    def ensure(self) -> None:
        """Raise unless, for all we can know without asking, the key is still ours. Never waits."""
        self.lease.ensure_alive()
        if self.lost.reached:
            raise self._not_ours()

    async def give_up(self, reason: str) -> None:
        """Stop counting as the owner, then delete the key if it is still ours.

        If the store does not answer within a lease's time, or the caller is cancelled, the deleting goes on behind
        it until the store has answered or the lease is lost: a lease that is renewed would keep the key for ever.
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
        if asyncio.current_task() is not self._task:  # that one is about to end, and closes its watch first
            self._task.cancel()
        log.info("owned_key_lost key=%r reason=%s", self.key, reason)
        self.lost.set(reason)
        if self._bid.doubtful:  # a late put would stand although nobody asks us to give it up any more
            self._bid.withdraw_behind(self._withdrawal_guard())

    def _on_lease_lost(self, reason: str) -> None:
        self._lose(f"the lease is lost: {reason}")

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("owned_key_watch_failed key=%r", self.key, exc_info=error)
        # Without a watch we would not hear of a successor: better to stop than to go on deaf.
        self._lose("its watch ended")

    async def _watch_key(self) -> None:
        async with self._store.watch(self.key, start_revision=self._kv.mod_revision + 1) as watch:
            async for item in watch:
                kv = _newest(item)
                if kv is None or not self._is_ours(kv):
                    self._lose("the key was deleted" if kv is None else "the key was replaced")
                    return


def _newest(item: WatchItem) -> KeyValue | None:
    """The one watched key after this item; None when it is deleted."""
    if isinstance(item, Resync):
        return item.kvs[0] if item.kvs else None
    event = item.events[-1]
    return event.kv if event.kind is EventKind.PUT else None
