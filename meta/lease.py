"""A lease that determines its end by its own clock, even while the store does not answer.

Invariants: the deadline counts from the *sending* of the last keep-alive that succeeded (protocol rule 2), and is early
            by the possible difference between the rates of two clocks. The store counts from a later moment and by its
            own clock, so it never ends the lease before this deadline;
            past its deadline a lease is lost for ever, even if a late answer renews it;
            `alive` and `ensure_alive` compare the clock, so a process that was stopped and resumed notices the end
            before it does anything, even if none of its timers has run yet.
Not here:   sending a keep-alive, which is the store's part (`LeaseKeeper`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from neve.meta.latch import Latch
from neve.proto.errors import LeaseLost, NeveError

log = logging.getLogger(__name__)

KEEP_ALIVES_PER_TTL = 3  # if two in a row are lost, the third is still in time
# The difference that is tolerated between the rates of two clocks: this process may count 99 seconds while the store
# counts 100. Disciplined clocks differ by less than a thousandth. The margin costs a hundredth of every lease.
RATE_ERROR_MAX = 0.01
RETRIES_PER_TTL = 10  # after a failed keep-alive, the next one is sent sooner


class LeaseKeeper(Protocol):
    """The part of a store that a lease needs."""

    async def keep_alive(self, lease_id: int, *, timeout_s: float) -> float:
        """Renew once and return the time to live in seconds; 0 if the store does not know the lease."""

    async def revoke(self, lease_id: int) -> None: ...


class Lease:
    """A lease that renews itself until it is lost. It needs a running loop. `sent_s` is when the grant was sent."""

    def __init__(
        self, keeper: LeaseKeeper, *, lease_id: int, ttl_s: float, sent_s: float, clock: Callable[[], float]
    ) -> None:
        self.lease_id = lease_id
        self.ttl_s = ttl_s
        self.lost = Latch()
        self._keeper = keeper
        self._clock = clock
        self._deadline_s = sent_s + _certain_s(ttl_s)
        self._nonces = 0
        self._behind: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._deadline_s - clock(), self._on_timer)
        self._task = self._loop.create_task(self._keep_alive(), name=f"lease-{lease_id:x}")
        self._task.add_done_callback(self._on_task_done)

    def remaining_s(self) -> float:
        """The time for which the lease is certain to live; 0 if it is lost."""
        if not self.lost.is_set() and self._clock() >= self._deadline_s:
            self._lose("its time to live has passed")
        return 0.0 if self.lost.is_set() else self._deadline_s - self._clock()

    def alive(self) -> bool:
        return self.remaining_s() > 0

    def ensure_alive(self) -> None:
        """Raise `LeaseLost` unless the lease is certain to live now. Call it before an action that needs the lease."""
        if self._clock() < self._deadline_s and not self.lost.reached:  # the usual case; runs several times a call
            return
        if not self.alive():
            raise LeaseLost(lease_id=self.lease_id, detail=self.lost.reason)

    def next_nonce(self) -> str:
        """A text that no other call returns, in this or any other process, because lease ids are unique."""
        self._nonces += 1
        return f"{self.lease_id:x}.{self._nonces}"

    async def revoke(self) -> None:
        """End the lease and delete its keys. This process counts it as lost first, whatever the store answers."""
        self._lose("it was revoked")
        await self._keeper.revoke(self.lease_id)

    def abandon(self, reason: str) -> None:
        """Stop renewing the lease and count it as lost. The store ends it when it expires."""
        self._lose(reason)

    def run_behind(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in the background. It must end when the lease is lost, whether or not its caller awaits it."""
        task = self._loop.create_task(work, name=f"behind-lease-{self.lease_id:x}")
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    async def stopped(self) -> None:
        """Wait until all tasks of a lost lease have ended, so that none outlives its loop."""
        await asyncio.gather(self._task, *self._behind, return_exceptions=True)

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self._timer.cancel()
        self._task.cancel()
        log.info("lease_lost lease_id=%x reason=%s", self.lease_id, reason)
        self.lost.set(reason)

    def _on_timer(self) -> None:
        left_s = self.remaining_s()
        if left_s > 0:  # it was renewed meanwhile, or the two clocks differ a little
            self._timer = self._loop.call_later(left_s, self._on_timer)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._lose("its keep-alive task was cancelled")
        elif (error := task.exception()) is not None:
            log.error("lease_keep_alive_failed lease_id=%x", self.lease_id, exc_info=error)
            self._lose(f"its keep-alive task failed: {error}")

    def _renewed(self, *, sent_s: float, ttl_s: float) -> None:
        if not self.alive():  # the answer arrived after the deadline, which counts
            return
        self._deadline_s = max(self._deadline_s, sent_s + _certain_s(ttl_s))
        self._timer.cancel()
        self._timer = self._loop.call_later(self.remaining_s(), self._on_timer)

    async def _keep_alive(self) -> None:
        period_s = self.ttl_s / KEEP_ALIVES_PER_TTL
        wait_s = period_s
        while True:
            await asyncio.sleep(wait_s)
            if not self.alive():
                return
            sent_s = self._clock()
            try:
                ttl_s = await self._keeper.keep_alive(self.lease_id, timeout_s=period_s)
            except NeveError as error:
                # The deadline bounds the number of attempts, whatever the error was.
                log.warning("lease_keep_alive_unanswered lease_id=%x error=%s", self.lease_id, error)
                wait_s = self.ttl_s / RETRIES_PER_TTL
                continue
            if ttl_s <= 0:
                self._lose("the store has ended it")
                return
            self._renewed(sent_s=sent_s, ttl_s=ttl_s)
            wait_s = max(0.0, period_s - (self._clock() - sent_s))


def _certain_s(ttl_s: float) -> float:
    """The time for which a lease with this time to live by the store's clock is certain to live by our clock."""
    return ttl_s * (1 - RATE_ERROR_MAX)


class HeldLeases:
    """The leases of one store. Closing the store ends their tasks."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def add(self, lease: Lease) -> Lease:
        self._leases[lease.lease_id] = lease
        lease.lost.add_callback(lambda _: self._forget(lease))
        return lease

    def ended(self, lease_id: int) -> None:
        """The store has answered a write by saying that this lease has ended."""
        if (lease := self._leases.get(lease_id)) is not None:
            lease.abandon("the store has ended it")

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.lease_id, None)

    async def abandon_all(self, reason: str) -> None:
        leases = list(self._leases.values())
        for lease in leases:
            lease.abandon(reason)
        for lease in leases:
            await lease.stopped()
