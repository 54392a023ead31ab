"""A candidate for ever: campaigns, leads, and campaigns again, on a new lease for every term.

Invariants: at most one term at a time, and each on its own lease, which is given back at its end: nobody waits for it;
            the leadership is resigned at the end of every term, also when leading failed (T15): better no leader than
            one that serves nothing;
            after terms that came to nothing the pauses grow, so that a manager that cannot lead lets others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from neve.meta.core_retry import Backoff, Delays
from neve.meta.election import Election, Leadership
from neve.meta.lease import Lease
from neve.meta.store import MetaStore
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
REVOKE_TIMEOUT_S = 1.0


class Candidate:
    """`lead` runs a term to its end and says whether it came to serving; `resigned` is called when it is over."""

    def __init__(
        self,
        store: MetaStore,
        prefix: bytes,
        *,
        lease_ttl_s: int,
        rng: random.Random,
        lead: Callable[[Leadership], Awaitable[bool]],
        resigned: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._election = Election(store, prefix)
        self._lease_ttl_s = lease_ttl_s
        self._rng = rng
        self._lead = lead
        self._resigned = resigned

    async def run(self, address: str) -> None:
        """Until it is cancelled. `address` is what observers of the election see."""
        backoff = Backoff(Delays(2 * PAUSE_S, PAUSE_S_MAX), self._spread)
        while True:
            served = False
            try:
                served = await self._one_term(address)
            except NeveError as error:
                log.warning("campaign_failed error=%s", error)
            except Exception:  # a bug must not leave the cluster without a candidate
                log.exception("term_failed")
            if served:
                backoff.reset()
                await asyncio.sleep(PAUSE_S * self._spread())
            else:
                await asyncio.sleep(backoff.next_s())

    def _spread(self) -> float:
        return self._rng.uniform(0.5, 1.0)

    async def _one_term(self, address: str) -> bool:
        lease = await self._store.grant_lease(self._lease_ttl_s)
        try:
            leadership = await self._election.campaign(address.encode(), lease)
            async with leadership:
                return await self._lead(leadership)
        finally:
            await _revoke(lease)
            self._resigned()  # after resigning: what it does may take a while


async def _revoke(lease: Lease) -> None:
    """So that nobody has to wait for its end; if the store does not answer it ends by itself."""
    if not lease.alive():
        return
    with contextlib.suppress(NeveError, TimeoutError):
        async with asyncio.timeout(REVOKE_TIMEOUT_S):
            await lease.revoke()
