"""One term of leadership: everything that exists from winning an election to losing it.

Invariants: the state is loaded at one linearizable revision, read after the election was won (protocol rule 25), or is
            the state that this manager has followed, caught up with such a revision;
            from the moment when the term ends, for any reason, it answers, commits and orders nothing;
            the next term takes over only what is in etcd.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from neve.meta.election import Leadership
from neve.meta.follower import PAGE_KEYS
from neve.meta.store import MetaStore
from neve.meta.term_tasks import TermTasks
from neve.meta.txn import Delete, KeyRange, Put
from neve.proto import common_pb2
from neve.proto.errors import NeveError, NotLeader
from neve.rpc.authorisation import Authoriser
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.batcher import BATCHES_IN_FLIGHT_MAX, Batcher, lane_key
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.follower import StateFollower, kind_ranges
from neve.stream_manager.metadata.ids import IdSource
from neve.stream_manager.metadata.quota import QuotaTable
from neve.stream_manager.metadata.records import NodeEntry
from neve.stream_manager.metadata.replay import ReplayCache
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from neve.stream_manager.placement.cache import Ensembles
from neve.stream_manager.streams.allocate import Allocator
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.locks import LockTable
from neve.stream_manager.term.node_calls import NodeCalls
from neve.stream_manager.term.owner_checks import OwnerChecks
from neve.stream_manager.term.pipeline import Observe, Pipeline

log = logging.getLogger(__name__)

BEGUN = b"begun"  # a key beside the lanes: the term that adopted a followed state last
REPLAY_KEPT_S = 900.0  # far longer than a client repeats a call
REPLAY_RECORDS_MAX = 500_000
SWEEP_INTERVAL_S = 20.0
SWEEP_DELETES_MAX = 100

# Makes a term's calls to nodes, from its leader stamp and from the function that finds a node's entry.
MakeNodeCalls = Callable[[common_pb2.Leader, Callable[[int], NodeEntry | None]], NodeCalls]
MakeClusterNodes = Callable[[LeaderContext], ClusterNodes]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What etcd held at one revision."""

    state: State
    replay: ReplayCache
    lane_revisions: tuple[int, ...]


async def load(store: MetaStore, root: bytes, *, adopted: State | None = None) -> Loaded:
    """Load everything at one revision.

    `adopted`: a followed state of a revision after the election was won; then the rest is read at its revision.
    """
    replay = ReplayCache(root, kept_s=REPLAY_KEPT_S, records_max=REPLAY_RECORDS_MAX)
    lanes = dict.fromkeys((lane_key(root, lane) for lane in range(BATCHES_IN_FLIGHT_MAX)), 0)
    # The first page is a linearizable read, after the election was won. Its revision is that of all pages.
    first = await store.range(KeyRange.prefix(root + r.COMMITS), revision=adopted.revision if adopted else 0)
    revision = first.revision
    lanes.update((kv.key, kv.mod_revision) for kv in first.kvs if kv.key in lanes)
    state = adopted or State(root)
    for keys in kind_ranges(root) if adopted is None else ():
        async for page in store.range_pages(keys, page_keys=PAGE_KEYS, revision=revision):
            state.load(page.kvs, revision)
    async for page in store.range_pages(KeyRange.prefix(root + r.REPLAY), page_keys=PAGE_KEYS, revision=revision):
        for kv in page.kvs:
            replay.load(kv)
    return Loaded(state, replay, tuple(lanes.values()))


async def adopt(
    store: MetaStore, root: bytes, leadership: Leadership, follower: StateFollower, *, timeout_s: float
) -> State | None:
    """The followed state, caught up with everything written before the election was won; None: load it instead.

    Only the leader can write the key that is put here, so its revision is higher than every write of earlier leaders,
    which can write no more (protocol rule 25). Once the watch has delivered it, the state is complete. Its counts are
    then compared with etcd's, because a watch that lost a record would break every guarantee.
    """
    loop = asyncio.get_running_loop()
    if follower.state is None:
        return None
    try:
        mark = await store.txn(leadership.guard(), [Put(root + r.COMMITS + BEGUN, b"%d" % leadership.create_revision)])
        if not mark.succeeded:
            return None  # `load` will fail with the reason
        await follower.at(mark.revision, deadline_s=loop.time() + timeout_s)
        state = follower.take()
        if state is None or state.revision < mark.revision:
            return None
        own_keys = sum(not extent.young for extent in state.extents.values())
        for kind, known in ((r.STREAMS, len(state.streams)), (r.EXTENTS, own_keys), (r.NODES, len(state.nodes))):
            page = await store.range(KeyRange.prefix(root + kind), limit=1, revision=state.revision)
            if page.count != known:
                log.error("followed_state_is_wrong kind=%s known=%d stored=%d", kind.decode(), known, page.count)
                return None
    except NeveError as error:
        log.info("followed_state_not_adopted error=%s", error)
        return None
    return state


class Term:
    """One term. `ended` is set when it is over; `reason` says why."""

    def __init__(
        self,
        *,
        config: ManagerConfig,
        store: MetaStore,
        leadership: Leadership,
        loaded: Loaded,
        ids: IdSource,
        address: str,
        rng: random.Random,
        wall_ms: Callable[[], int],
        make_node_calls: MakeNodeCalls,
        make_cluster_nodes: MakeClusterNodes,
        authoriser: Authoriser,
        not_leader: Callable[[], NotLeader],
        observe: Observe,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._not_leader = not_leader
        self.ended = asyncio.Event()
        self.over = False  # the same as a flag, for the check on every call
        self.reason = ""
        self.state = loaded.state
        self.replay = loaded.replay
        self.replay.load_streams(self.state.streams.values(), wall_ms())
        self.leader = common_pb2.Leader(create_revision=leadership.create_revision, address=address)
        root = self.state.root
        tasks = TermTasks()
        self.owners = OwnerChecks(store, leadership, root=root, on_deposed=self.end)
        self.batcher = Batcher(
            store,
            leadership,
            root=root,
            lane_revisions=loaded.lane_revisions,
            apply=self._apply,
            on_deposed=self.end,
        )
        self.ctx = LeaderContext(
            config=config,
            state=self.state,
            commit=self.batcher.commit,
            locks=LockTable(),
            nodes=make_node_calls(self.leader, self.state.nodes.get),
            ids=ids,
            owners=self.owners,
            quotas=QuotaTable(self.state),
            leader=self.leader,
            ensure_leading=self.ensure_leading,
            tasks=tasks,
            rng=rng,
            wall_ms=wall_ms,
        )
        self.ctx.ensembles = Ensembles(
            self.state,
            lambda request: self.cluster_nodes.registry.choose(request),
            self.ctx.clock,
            default=config.defaults.placement,
        )
        self.allocator = Allocator(self.ctx)
        self.pipeline = Pipeline(self.ctx, self.replay, authoriser=authoriser, not_leader=not_leader, observe=observe)
        self.cluster_nodes = self.ctx.cluster_nodes = make_cluster_nodes(self.ctx)
        leadership.lost.add_callback(self.end)

    def start(self) -> None:
        self.cluster_nodes.start()
        self.ctx.spawn(self._sweep_replay(), name="replay-sweep")

    def ensure_leading(self) -> None:
        """Raise `NotLeader` if the term is over.

        It reads the lease's clock, so a process that was paused notices here, before any timer has run.
        """
        if self.over:
            raise self._not_leader()
        try:
            self._leadership.ensure()
        except NeveError as error:
            self.end(str(error))
            raise self._not_leader() from None

    def end(self, reason: str) -> None:
        """End the term now: callers get `NotLeader`, tasks are cancelled, and nothing more is sent."""
        if self.ended.is_set():
            return
        self.reason = reason
        self.over = True
        self.ended.set()
        log.warning("term_ended create_revision=%d reason=%s", self.leader.create_revision, reason)
        self.ctx.tasks.cancel()
        self.batcher.end(reason)
        self.owners.end()

    async def stopped(self) -> None:
        await self.ctx.tasks.stopped()
        self.pipeline.audit.flush()
        await self.batcher.stopped()
        await self.owners.stopped()
        # The listeners and the state refer to each other: without this, a million records wait for the collector.
        self.state.stop_listening()

    def _apply(self, changes: Changes, revision: int) -> None:
        self.state.apply(changes, revision)
        for call in changes.calls:
            self.replay.add(call.client_id, call.call_id, call.replay)
        if changes.stream_call is not None:
            self.replay.add_in_stream(changes.stream_call)

    async def _sweep_replay(self) -> None:
        """Delete old replay records.

        Records with consecutive call ids are deleted as one range, so that one operation deletes many.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.replay.forget_old(self.ctx.wall_ms())
            expired = list(self.replay.expired(self.ctx.wall_ms()))
            for start in range(0, len(expired), SWEEP_DELETES_MAX):
                batch = expired[start : start + SWEEP_DELETES_MAX]
                try:
                    result = await self._store.txn(
                        self._leadership.guard(), [Delete(call_range.keys) for call_range in batch]
                    )
                except NeveError as error:  # whether deleted or not, the next round deletes them again
                    log.warning("replay_sweep_failed error=%s", error)
                    break
                if not result.succeeded:
                    self.end("the election key is no longer this manager's")
                    return
                for call_range in batch:
                    self.replay.drop(call_range)
