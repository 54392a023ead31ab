"""A partition manager without its servers: follows the region map, campaigns, and leads when it is elected.

Invariants: at most one term at a time; the map is always followed: any manager answers which server has which region;
            a term begins only when the followed map is as new as the election.
"""

from __future__ import annotations

import logging
import random

from neve.client.streams.client import Client
from neve.meta import keys
from neve.meta.contender import Contender
from neve.meta.election import Leadership
from neve.meta.follower import Follower
from neve.meta.regions import RegionsState
from neve.meta.store import MetaStore
from neve.meta.waiting import while_alive
from neve.partition_manager.balancer import Balancer
from neve.partition_manager.config import PartitionManagerConfig
from neve.partition_manager.region_store import RegionStore
from neve.partition_manager.term import Term
from neve.rpc.pool import ChannelPool

log = logging.getLogger(__name__)


class Manager(Contender[Term]):
    """The manager. The caller closes `streams` and `channels`."""

    def __init__(
        self,
        config: PartitionManagerConfig,
        store: MetaStore,
        *,
        streams: Client,
        channels: ChannelPool,
        rng: random.Random,
    ) -> None:
        root = keys.root_of(config.cluster)
        super().__init__(store, root + keys.PARTITION_MANAGERS, lease_ttl_s=config.lease_ttl_s, rng=rng)
        self.config = config
        self._store = store
        self._streams = streams
        self._channels = channels
        self._rng = rng
        self._balancer: Balancer | None = None
        self.follower: Follower[RegionsState] = Follower(
            store,
            lambda: RegionsState(root),
            ranges=keys.region_ranges(root),
            watched=keys.region_span(root),
            on_change=self._on_change,
        )
        self.regions = RegionStore(store, root, self.follower)

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
