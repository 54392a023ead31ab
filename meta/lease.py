"""A lease that knows by itself when it may be over, also while the store does not answer.

Invariants: the deadline counts from the *sending* of the last keep-alive that succeeded (rule 2), and is early by what
            two clocks may differ in their rates: the store counts from a later moment and by a clock of its own, and
            never ends the lease before we think it over;
            past its deadline a lease is lost for ever, whatever a late answer says;
            `alive` and `ensure_alive` compare the clock, so a process that was stopped and goes on notices
            before it does anything, even if none of its timers has run yet.
Not here:   how a keep-alive travels: the store behind `LeaseKeeper`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from neve.meta.latch import Latch
from neve.proto.errors import LeaseLost, NeveError

log = logging.getLogger(__name__)

KEEP_ALIVES_PER_TTL = 3  # two may be lost in a row and the third is still in time
# How far apart two clocks may run: we may count 99 seconds while the store counts 100. Disciplined clocks differ by
# less than a thousandth; this has room for some that are not, and costs a hundredth of every lease.
RATE_ERROR_MAX = 0.01
RETRIES_PER_TTL = 10  # after a keep-alive that failed, try again sooner than that


class LeaseKeeper(Protocol):
    """What a lease needs of its store."""

    async def keep_alive(self, lease_id: int, *, timeout_s: float) -> float:
        """Renew once and return the time to live in seconds; 0 if the store does not know the lease."""

    async def revoke(self, lease_id: int) -> None: ...


class Lease:
    """`sent_s` is the clock when the grant was sent. Make it while a loop runs: it keeps itself alive."""

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
        """How long the lease is certain to live; 0 when it is lost."""
        if not self.lost.is_set() and self._clock() >= self._deadline_s:
            self._lose("its time to live has passed")
        return 0.0 if self.lost.is_set() else self._deadline_s - self._clock()

    def alive(self) -> bool:
        return self.remaining_s() > 0

    def ensure_alive(self) -> None:
        """Raise `LeaseLost` unless the lease is certain to live now. Call it before acting on the lease."""
        if self._clock() < self._deadline_s and not self.lost.reached:  # mostly: this is asked several times a call
            return
        if not self.alive():
            raise LeaseLost(lease_id=self.lease_id, detail=self.lost.reason)

    def next_nonce(self) -> str:
        """A text that no other call returns, here or in any other process: lease ids are unique."""
        self._nonces += 1
        return f"{self.lease_id:x}.{self._nonces}"

    async def revoke(self) -> None:
        """End the lease and delete its keys. It is lost here first, whatever the store answers."""
        self._lose("it was revoked")
        await self._keeper.revoke(self.lease_id)

    def abandon(self, reason: str) -> None:
        """Stop renewing and count it as lost; the store ends it when its time is over."""
        self._lose(reason)

    def run_behind(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`, which must end when the lease is lost, whether or not its caller waits for it."""
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
        if left_s > 0:  # renewed since, or the two clocks differ a little
            self._timer = self._loop.call_later(left_s, self._on_timer)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._lose("its keep-alive task was cancelled")
        elif (error := task.exception()) is not None:
            log.error("lease_keep_alive_failed lease_id=%x", self.lease_id, exc_info=error)
            self._lose(f"its keep-alive task failed: {error}")

    def _renewed(self, *, sent_s: float, ttl_s: float) -> None:
        if not self.alive():  # the answer came after the deadline: the timer decides, not the answer
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
                # Whatever it was, the deadline bounds how often this is tried.
                log.warning("lease_keep_alive_unanswered lease_id=%x error=%s", self.lease_id, error)
                wait_s = self.ttl_s / RETRIES_PER_TTL
                continue
            if ttl_s <= 0:
                self._lose("the store has ended it")
                return
            self._renewed(sent_s=sent_s, ttl_s=ttl_s)
            wait_s = max(0.0, period_s - (self._clock() - sent_s))


def _certain_s(ttl_s: float) -> float:
    """How long by our clock a lease lives for certain that lives so long by the store's."""
    return ttl_s * (1 - RATE_ERROR_MAX)


class HeldLeases:
    """The leases of one store: closing the store ends their tasks with it."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}

    def add(self, lease: Lease) -> Lease:
        self._leases[lease.lease_id] = lease
        lease.lost.add_callback(lambda _: self._forget(lease))
        return lease

    def ended(self, lease_id: int) -> None:
        """The store has said so, in answer to a write."""
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
