"""A bid for a key: a put on a lease that must not take effect after the bidder has given the key up.

An unanswered put may reach the store much later: after a timeout, a cancellation or a release. It would then create a
key that no process holds and every other process waits for, as long as the lease is renewed.

Invariants: every put of a bid compares that the bid's void key is absent, and a withdrawal puts the void key;
            a withdrawal is retried until the store has answered it or the lease is lost, even after its caller has
            ended.

A withdrawal puts the void key only if an outcome was unknown. The void key is on the same lease; once the lease has
ended, late puts fail for that reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from neve.meta.lease import Lease
from neve.meta.store import MetaStore
from neve.meta.txn import Compare, Delete, Get, KeyValue, Put, key_absent
from neve.meta.waiting import until_settled, while_alive
from neve.proto.errors import LeaseLost, MaybeApplied, NeveError

log = logging.getLogger(__name__)


class Bid:
    """The claim to a key. `put` is the desired put, on `lease`. No other bid uses `void_key`."""

    def __init__(self, store: MetaStore, lease: Lease, put: Put, *, void_key: bytes) -> None:
        assert put.lease_id == lease.lease_id, put
        self.put = put
        self.doubtful = False  # a put was sent whose outcome is unknown: it may still arrive
        self._store = store
        self._lease = lease
        self._void_key = void_key
        self._applied = False
        self._withdrawal: asyncio.Task[None] | None = None

    async def send(self, compare: Compare) -> tuple[KeyValue | None, int]:
        """Put the key if `compare` holds. Returns the key's state after that, and the store's revision."""
        assert self._withdrawal is None, f"{self.put.key!r} was withdrawn"
        key = self.put.key
        doubtful = self.doubtful
        self.doubtful = True  # stays set if the caller is cancelled while it waits
        try:
            result = await self._store.txn((compare, key_absent(self._void_key)), (self.put, Get(key)), (Get(key),))
        except MaybeApplied:
            raise
        except NeveError:
            self.doubtful = doubtful  # this put was certainly not applied
            raise
        self.doubtful = doubtful
        self._applied = self._applied or result.succeeded
        return result.get_at(1 if result.succeeded else 0).first, result.revision

    def withdraw_behind(self, guard: Sequence[Compare]) -> asyncio.Task[None] | None:
        """Start deleting the key if `guard` holds, and voiding late puts, in the background. None: nothing to do."""
        if self._withdrawal is None and (self._applied or self.doubtful) and self._lease.alive():
            self._withdrawal = self._lease.run_behind(self._withdraw(tuple(guard)))
        return self._withdrawal

    async def withdraw(self, guard: Sequence[Compare], *, wait_s: float) -> None:
        """As `withdraw_behind`, but wait for up to `wait_s`. After that it continues in the background."""
        task = self.withdraw_behind(guard)
        if task is None:
            return
        _, unfinished = await asyncio.wait({task}, timeout=wait_s)
        if unfinished:
            log.warning("bid_withdrawal_goes_on key=%r waited_s=%.1f", self.put.key, wait_s)

    async def _withdraw(self, guard: tuple[Compare, ...]) -> None:
        key = self.put.key
        void = (Put(self._void_key, b"", self._lease.lease_id),) if self.doubtful else ()
        try:
            await while_alive(
                self._lease,
                until_settled(self._lease, lambda: self._store.txn(guard, (Delete(key), *void), void)),
            )
        except LeaseLost:
            log.info("bid_left_to_its_lease key=%r", key)  # the store deletes it with the lease
        except NeveError as error:
            # The store refused it, so repeating it is useless, and renewing the lease would keep the key.
            log.error("bid_not_withdrawn key=%r error=%s", key, error)
            self._lease.abandon(f"the key {key!r} cannot be withdrawn: {error}")
