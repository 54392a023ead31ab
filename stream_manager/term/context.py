"""What all parts of one term of leadership share: state, commits, locks, calls to nodes, tasks.

Invariants: a context belongs to one term. When the term ends, all its tasks are cancelled and every commit fails with
            `NotLeader`, so nothing of it acts on the next term;
            time is the loop's and random numbers come from `rng`, so that the simulator can repeat a run.

A mutation by a background task:

    async with ctx.locks.hold(extents=[extent_id]):
        old = ctx.state.extents.get(extent_id)
        ...decide...
        changes = ctx.changes()
        changes.put_extent(old, new)
        await ctx.commit(changes)          # applied to ctx.state when it returns
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from neve.meta.core_retry import Retry
from neve.meta.term_tasks import TermTasks
from neve.proto import common_pb2
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.records import Extent, Replay, StreamCall
from neve.stream_manager.metadata.state import State
from neve.stream_manager.term.locks import LockTable
from neve.stream_manager.term.revoked_confirmations import RevokedConfirmations

if TYPE_CHECKING:
    from neve.stream_manager.config import ManagerConfig
    from neve.stream_manager.metadata.ids import IdSource
    from neve.stream_manager.metadata.quota import QuotaTable
    from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
    from neve.stream_manager.placement.cache import Ensembles
    from neve.stream_manager.term.node_calls import NodeCalls
    from neve.stream_manager.term.owner_checks import OwnerChecks


# --- requests for placement -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """A request for nodes for the replicas of a new extent."""

    replicas: int
    extent_bytes_max: int
    policy: str = ""  # empty: the cluster's default
    strict: bool = False
    avoid: frozenset[int] = frozenset()  # a hint: they failed a writer recently
    excluded: frozenset[int] = frozenset()  # never to be chosen


@dataclass(frozen=True, slots=True)
class NodeChoice:
    node_id: int
    disk_uuid: str = ""  # empty: the node chooses


# --- a call that changes metadata -----------------------------------------------------------------------------


class Mutation:
    """One execution of a call: its caller, and how the call is recorded.

    `replayed`: the record of its earlier commit.
    """

    __slots__ = (
        "call_id",
        "client_id",
        "key",
        "method_id",
        "principal",
        "recorded",
        "replayed",
        "request_crc32c",
        "wall_ms",
    )

    def __init__(
        self,
        call: tuple[int, int],
        method_id: int,
        request_crc32c: int,
        principal: str,
        wall_ms: int,
        replayed: Replay | None = None,
    ) -> None:
        self.key = call
        self.client_id, self.call_id = call
        self.method_id = method_id
        self.request_crc32c = request_crc32c
        self.principal = principal
        self.wall_ms = wall_ms
        self.replayed = replayed
        self.recorded: Replay | None = None  # the record that was made last; valid once the changes are committed

    def stream_call(self, stream_ids: tuple[int, ...], extent_ids: tuple[int, ...] = ()) -> StreamCall | None:
        """Like `record`, but for the record of the one stream that is written.

        Returns what to put into the stream and into the changes; None if there is nothing to record.
        """
        self.recorded = Replay(self.method_id, self.request_crc32c, self.wall_ms, stream_ids, extent_ids)
        if not (self.client_id or self.call_id) or self.replayed is not None:
            return None
        return StreamCall(self.client_id, self.call_id, self.recorded)

    def record(
        self, changes: Changes, *, stream_ids: Sequence[int] = (), extent_ids: Sequence[int] = (), node_id: int = 0
    ) -> None:
        """Record the call in the same transaction as its changes, with what its reply can be rebuilt from.

        That transaction is the one of protocol rule 26.
        """
        self.recorded = Replay(
            self.method_id, self.request_crc32c, self.wall_ms, tuple(stream_ids), tuple(extent_ids), node_id
        )
        if (self.client_id or self.call_id) and self.replayed is None:
            changes.put_replay(StreamCall(self.client_id, self.call_id, self.recorded))


# --- one term -------------------------------------------------------------------------------------------------


class Commit(Protocol):
    def __call__(self, changes: Changes) -> Awaitable[int]:
        """Commit changes in one transaction, apply them to the state and return the revision.

        Raises `VersionConflict` if a record has changed, `NotOwner` if the lock is not held with that token,
        `NotLeader` if the term is over, and `MetaUnavailable` if nothing was written.

        Do not wrap it in a timeout: a commit with an unknown outcome is repeated until the outcome is known, and
        until then what it writes must stay locked (protocol rule 19).
        """


class LeaderContext:
    def __init__(
        self,
        *,
        config: ManagerConfig,
        state: State,
        commit: Commit,
        locks: LockTable,
        nodes: NodeCalls,
        ids: IdSource,
        owners: OwnerChecks,
        quotas: QuotaTable,
        leader: common_pb2.Leader,
        ensure_leading: Callable[[], None],
        tasks: TermTasks,
        rng: random.Random,
        wall_ms: Callable[[], int],
    ) -> None:
        self.config = config
        self.state = state
        self.root = state.root
        self.commit = commit
        self.locks = locks
        self.nodes = nodes
        self.ids = ids
        self.owners = owners
        self.quotas = quotas
        self.leader = leader  # stamped on every order to a node
        self.ensure_leading = ensure_leading  # raises NotLeader if the term is over; never waits
        self.tasks = tasks
        self.rng = rng
        self.clock = asyncio.get_running_loop().time  # monotonic seconds
        self.wall_ms = wall_ms  # since the epoch: only for people, and for ages across restarts
        self.seals_in_flight = 0  # first rounds of seal orders, see confirm.py
        # Extents that a transaction is about to link or, while its outcome is unknown, may be linking.
        self.linking: dict[int, None] = {}
        # Whether an extent may still be linked although metadata does not have it. Its replicas are not orphans then
        # (protocol rule 24).
        self.is_prepared: Callable[[int], bool] = lambda extent_id: extent_id in self.linking
        # Open extents whose writer reported different bytes on a replica (protocol rule 7), and when to try to seal
        # them.
        self.conflicts: dict[int, Retry] = {}
        self.revoked = RevokedConfirmations()  # confirmations that replies to earlier orders must not restore
        self.cluster_nodes: ClusterNodes  # set right after the context is made
        self.ensembles: Ensembles  # set right after the context is made

    def changes(self) -> Changes:
        return Changes(self.root, self.state)

    async def commit_link(self, changes: Changes, extent_id: int) -> None:
        """Commit changes that link a new extent.

        The collector does not delete the extent until the outcome is known: a young extent has no key whose absence
        the collector's transaction could compare (protocol rule 24).
        """
        self.linking[extent_id] = None
        try:
            await self.commit(changes)
        finally:
            del self.linking[extent_id]

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        """Start a background task that ends with the term. Its failure is logged."""
        return self.tasks.spawn(work, name=name)

    def unreferenced(self, extent_ids: Iterable[int], *, apart_from: int) -> list[Extent]:
        """The given extents that no other stream than `apart_from` lists (protocol rule 23)."""
        return [
            self.state.extents[extent_id]
            for extent_id in extent_ids
            if self.state.streams_of(extent_id) == (apart_from,) and extent_id in self.state.extents
        ]
