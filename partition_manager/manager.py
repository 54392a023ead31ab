"""A partition manager without its front doors: follows the region map, campaigns, and leads when it wins.

Invariants: at most one term at a time; the map is followed always, leading or not: any manager answers who serves what;
            a term begins only when the map that is followed is as new as the election.
Neighbours: meta.candidate campaigns; term.py is what exists while it leads; servicer.py answers with it.
"""

from __future__ import annotations

import asyncio
import logging
import random

from neve.client.client import Client
from neve.meta import keys
from neve.meta.candidate import Candidate
from neve.meta.election import Leadership
from neve.meta.follower import Follower
from neve.meta.regions import RegionsState
from neve.meta.roster import Roster
from neve.meta.store import MetaStore
from neve.meta.waiting import while_alive
from neve.partition_manager.balancer import Balancer
from neve.partition_manager.config import PartitionManagerConfig
from neve.partition_manager.region_store import RegionStore
from neve.partition_manager.term import Term
from neve.proto.errors import NotLeader
from neve.rpc.pool import ChannelPool

log = logging.getLogger(__name__)


class Manager:
    """`start` returns at once; it leads when it wins. `store`, `streams` and `channels` are closed by who made them."""

    def __init__(
        self,
        config: PartitionManagerConfig,
        store: MetaStore,
        *,
        streams: Client,
        channels: ChannelPool,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.address = ""
        self.term: Term | None = None
        self.terms = 0
        self._store = store
        self._streams = streams
        self._channels = channels
        self._rng = rng
        root = keys.root_of(config.cluster)
        self._balancer: Balancer | None = None
        self.follower: Follower[RegionsState] = Follower(
            store,
            lambda: RegionsState(root),
            ranges=keys.region_ranges(root),
            watched=keys.region_span(root),
            on_change=self._on_change,
        )
        self.regions = RegionStore(store, root, self.follower, known_s=config.timeouts.known_s)
        prefix = root + keys.PARTITION_MANAGERS
        self.roster = Roster(store, prefix)
        self._candidate = Candidate(store, prefix, lease_ttl_s=config.lease_ttl_s, rng=rng, lead=self._lead)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, address: str) -> None:
        """`address` is where servers and clients reach this manager."""
        self.address = address
        self.follower.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.roster.run(), name="roster"),
            loop.create_task(self._candidate.run(address), name="campaign"),
        ]

    async def stop(self) -> None:
        """Resign, if it leads, so that another one need not wait for the lease to end."""
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.follower.stop()

    def leading(self) -> Term:
        """The current term; `NotLeader` with the leader's address if there is none."""
        term = self.term
        if term is None:
            raise self.not_leader()
        term.ensure_leading()
        return term

    def not_leader(self) -> NotLeader:
        return self.roster.not_leader(own_address=self.address)

    def _on_change(self, state: RegionsState) -> None:
        if self._balancer is not None:
            self._balancer.changed()

    async def _lead(self, leadership: Leadership) -> bool:
        snapshot = await while_alive(leadership.lease, self.regions.fresh())
        log.info(
            "term_begins create_revision=%d map_version=%d",
            *(leadership.create_revision, snapshot.map.version if snapshot.map is not None else 0),
        )
        term = Term(
            config=self.config,
            store=self._store,
            regions=self.regions,
            leadership=leadership,
            streams=self._streams,
            channels=self._channels,
            rng=self._rng,
            not_leader=self.not_leader,
        )
        try:
            self.terms += 1
            self._balancer = Balancer(term)
            self._balancer.start()
            self.term = term
            await term.ended.wait()
            return True
        finally:
            self.term = self._balancer = None
            term.end("this manager stops leading")
            await term.stopped()
