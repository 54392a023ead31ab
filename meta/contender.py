"""The part that all elected managers share: it follows the metadata, campaigns, leads terms and watches the election.

Invariants: there is at most one term at a time, and the election is watched whether this process leads or not;
            `leading` never returns a term that is over: it raises `NotLeader` with the leader's address.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from neve.meta.candidate import Candidate
from neve.meta.election import Leadership
from neve.meta.follower import Follower
from neve.meta.roster import Roster
from neve.meta.store import MetaStore
from neve.proto.errors import NotLeader


class LedTerm(Protocol):
    def ensure_leading(self) -> None:
        """Raise `NotLeader` if the term is over."""


T = TypeVar("T", bound=LedTerm)


class Contender(ABC, Generic[T]):
    """`start` returns at once; a term begins when the campaign is won. The caller closes `store`."""

    follower: Follower[Any]  # set by the subclass before `start`

    def __init__(self, store: MetaStore, election_prefix: bytes, *, lease_ttl_s: int, rng: random.Random) -> None:
        self.address = ""
        self.term: T | None = None
        self.terms = 0
        self.roster = Roster(store, election_prefix)
        self._candidate = Candidate(
            store,
            election_prefix,
            lease_ttl_s=lease_ttl_s,
            rng=rng,
            lead=self._lead,
            resigned=self._after_term,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, address: str) -> None:
        """Begin to follow and to campaign. Other processes reach this one at `address`."""
        self.address = address
        self.follower.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.roster.run(), name="roster"),
            loop.create_task(self._candidate.run(address), name="campaign"),
        ]

    async def stop(self) -> None:
        """Stop campaigning. A leader resigns, so that the next one does not wait for the lease to end."""
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.follower.stop()

    def leading(self) -> T:
        """The current term. Raises `NotLeader` with the leader's address if there is none."""
        term = self.term
        if term is None:
            raise self.not_leader()
        term.ensure_leading()
        return term

    def not_leader(self) -> NotLeader:
        return self.roster.not_leader(own_address=self.address)

    @abstractmethod
    async def _lead(self, leadership: Leadership) -> bool:
        """Run one term to its end and return whether it served requests."""

    def _after_term(self) -> None:
        """Called at the end of each campaign, whether it was won or not."""
