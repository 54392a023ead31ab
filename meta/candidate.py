"""A permanent candidate in an election: it campaigns, leads a term and campaigns again, on a new lease for each term.

Invariants: there is at most one term at a time, on a lease of its own; the candidate revokes the lease at the end of
            the term, so that the next leader does not wait for it;
            the candidate resigns at the end of every term, also after a failure (scenario T15), because no leader is
            better than one that serves nothing;
            after terms that never served, the pauses grow, so that a manager that cannot lead makes way for others.
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
    """Campaigns until it is cancelled.

    `lead` runs a term to its end and returns whether the term served requests. `resigned` is called after each term.
    """

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
        """Campaign and lead until cancelled. Observers of the election see `address`."""
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
            self._resigned()  # after resigning, because it may take a while


async def _revoke(lease: Lease) -> None:
    """Revoke the lease, so that no candidate waits for its end. If the store does not answer, the lease expires."""
    if not lease.alive():
        return
    with contextlib.suppress(NeveError, TimeoutError):
        async with asyncio.timeout(REVOKE_TIMEOUT_S):
            await lease.revoke()
