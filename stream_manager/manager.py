"""A stream manager without its servers: campaigns, leads or follows, and starts again after every term.

Invariants: at most one term at a time; a leader that cannot load its state resigns (scenario T15);
            while it does not lead, it keeps a state by a watch; it always watches who leads.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from neve.meta.contender import Contender
from neve.meta.election import Leadership
from neve.meta.store import MetaStore
from neve.meta.waiting import while_alive
from neve.rpc.authorisation import Authoriser, PermitAll
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.follower import StateFollower
from neve.stream_manager.metadata.ids import IdSource
from neve.stream_manager.metadata.state import State
from neve.stream_manager.term.leader import Loaded, MakeClusterNodes, MakeNodeCalls, Term, adopt, load
from neve.stream_manager.term.pipeline import Observe

log = logging.getLogger(__name__)

ADOPT_SHARE = 0.4  # share of the lease's time in which the watch must catch up; otherwise the state is loaded


class Manager(Contender[Term]):
    follower: StateFollower

    def __init__(
        self,
        config: ManagerConfig,
        store: MetaStore,
        *,
        make_node_calls: MakeNodeCalls,
        make_cluster_nodes: MakeClusterNodes,
        rng: random.Random,
        wall_ms: Callable[[], int],
        authoriser: Authoriser | None = None,
        observe: Observe = lambda method, duration_s: None,
        on_loaded: Callable[[Loaded], None] = lambda _: None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.root = r.root_of(config.cluster)
        super().__init__(store, r.election_prefix(self.root), lease_ttl_s=config.lease_ttl_s, rng=rng)
        self.config = config
        self.store = store
        self.ids = IdSource(store, self.root)
        self.follower = StateFollower(store, self.root)
        self._terms_told = 0
        self._make_node_calls = make_node_calls
        self._make_cluster_nodes = make_cluster_nodes
        self._rng = rng
        self._wall_ms = wall_ms
        self._authoriser = authoriser or PermitAll()
        self._observe = observe
        self._on_loaded = on_loaded
        self._on_ended = on_ended

    # --- terms -----------------------------------------------------------------------------------------------

    def _after_term(self) -> None:
        if self.terms > self._terms_told:  # a lost campaign is not a term
            self._terms_told = self.terms
            self._on_ended()

    async def _adopt(self, leadership: Leadership) -> State | None:
        return await adopt(
            self.store, self.root, leadership, self.follower, timeout_s=leadership.lease.ttl_s * ADOPT_SHARE
        )

    async def _lead(self, leadership: Leadership) -> bool:
        term: Term | None = None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            adopted = await while_alive(leadership.lease, self._adopt(leadership))
            await self.follower.stop()
            self.ids.renew()
            try:
                loading = load(self.store, self.root, adopted=adopted)
                loaded = await while_alive(leadership.lease, loading)
            except Exception as error:
                log.error("load_failed create_revision=%d error=%r", leadership.create_revision, error)
                raise
            log.info(
                "term_begins create_revision=%d revision=%d streams=%d extents=%d adopted=%s load_s=%.3f",
                leadership.create_revision,
                loaded.state.revision,
                len(loaded.state.streams),
                len(loaded.state.extents),
                adopted is not None,
                loop.time() - begun_s,
            )
            self._on_loaded(loaded)
            term = Term(
                config=self.config,
                store=self.store,
                leadership=leadership,
                loaded=loaded,
                ids=self.ids,
                address=self.address,
                rng=self._rng,
                wall_ms=self._wall_ms,
                make_node_calls=self._make_node_calls,
                make_cluster_nodes=self._make_cluster_nodes,
                authoriser=self._authoriser,
                not_leader=self.not_leader,
                observe=self._observe,
            )
            del loaded
            self.terms += 1
            term.start()
            self.term = term
            await term.ended.wait()
            return True
        finally:
            self.term = None
            if term is not None:
                term.end("this manager stops leading")
                await term.stopped()
            self.follower.start()
