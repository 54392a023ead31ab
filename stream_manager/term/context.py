"""What one term of leadership has in common: its state, its way to commit, its locks, its nodes, its tasks.

Invariants: a context belongs to one term, the time from winning an election to losing it. When the term ends, every
            task of it is cancelled and every commit fails with `NotLeader`: nothing of it acts on the next term;
            time is the loop's and chance is `rng`'s, so that the simulator can repeat a run.

A mutation by a background part:

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
from neve.stream_manager.term.revoked_confirmations import Condemned

if TYPE_CHECKING:
    from neve.stream_manager.config import ManagerConfig
    from neve.stream_manager.metadata.ids import IdSource
    from neve.stream_manager.metadata.quota import QuotaTable
    from neve.stream_manager.nodes.part import ClusterNodes
    from neve.stream_manager.placement.cache import Ensembles
    from neve.stream_manager.term.node_calls import NodeCalls
    from neve.stream_manager.term.owner_checks import OwnerChecks


# --- placement, as the flows ask for it -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Where to make the replicas of a new extent."""

    replicas: int
    extent_bytes_max: int
    policy: str = ""  # empty: the cluster's default
    strict: bool = False
    avoid: frozenset[int] = frozenset()  # a hint: they just failed somebody
    excluded: frozenset[int] = frozenset()  # never


@dataclass(frozen=True, slots=True)
class NodeChoice:
    node_id: int
    disk_uuid: str = ""  # empty: the node chooses


# --- a call that changes metadata -----------------------------------------------------------------------------


class Mutation:
    """One execution of a call: who asks, and how the call is remembered. `replayed`: it was committed before."""

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
        self.recorded: Replay | None = None  # what `record` made: it counts once the changes are committed

    def stream_call(self, stream_ids: tuple[int, ...], extent_ids: tuple[int, ...] = ()) -> StreamCall | None:
        """The same as a part of the one stream that is written: what to put into its record and into the changes.
        None: nothing is kept."""
        self.recorded = Replay(self.method_id, self.request_crc32c, self.wall_ms, stream_ids, extent_ids)
        if not (self.client_id or self.call_id) or self.replayed is not None:
            return None
        return StreamCall(self.client_id, self.call_id, self.recorded)

    def record(
        self, changes: Changes, *, stream_ids: Sequence[int] = (), extent_ids: Sequence[int] = (), node_id: int = 0
    ) -> None:
        """Remember the call in the same transaction as its changes, with what its answer can be made from (26)."""
        self.recorded = Replay(
            self.method_id, self.request_crc32c, self.wall_ms, tuple(stream_ids), tuple(extent_ids), node_id
        )
        if (self.client_id or self.call_id) and self.replayed is None:
            changes.put_replay(StreamCall(self.client_id, self.call_id, self.recorded))


# --- one term -------------------------------------------------------------------------------------------------


class Commit(Protocol):
    def __call__(self, changes: Changes) -> Awaitable[int]:
        """Write in one transaction, apply to the state, return the revision.

        `VersionConflict`: a record is not what it was; `NotOwner`: the lock is not held with that token; `NotLeader`:
        the term is over; `MetaUnavailable`: certainly not written. Do not wrap it in a timeout: a commit whose outcome
        is unknown is repeated until it is known, and what it touches must stay locked for so long (19).
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
        self.leader = leader  # the stamp of every order to a node
        self.ensure_leading = ensure_leading  # raises NotLeader once the term is over; never waits
        self.tasks = tasks
        self.rng = rng
        self.clock = asyncio.get_running_loop().time  # monotonic seconds
        self.wall_ms = wall_ms  # since the epoch: only for what people read and for ages over restarts
        self.seals_in_flight = 0  # first rounds of Seal orders, see confirm.py
        # Extents that a transaction is about to link, or, while its outcome is unknown, may be linking.
        self.linking: dict[int, None] = {}
        # Whether an extent may still be linked though metadata does not know it: its replicas are no orphans then (24).
        self.is_prepared: Callable[[int], bool] = lambda extent_id: extent_id in self.linking
        # Open extents whose writer reported that an append met other bytes (protocol rule 7): when to try to seal them.
        self.conflicts: dict[int, Retry] = {}
        self.condemned = Condemned()  # replicas that lost their bit: answers that are older do not set it
        self.part: ClusterNodes  # set right after both are made
        self.ensembles: Ensembles  # so is this

    def changes(self) -> Changes:
        return Changes(self.root, self.state)

    async def commit_link(self, changes: Changes, extent_id: int) -> None:
        """Commit what links a new extent. The collector keeps away from it until the outcome is known: a young extent
        has no key whose absence its transaction could compare (24)."""
        self.linking[extent_id] = None
        try:
            await self.commit(changes)
        finally:
            del self.linking[extent_id]

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str = "") -> asyncio.Task[Any]:
        """A background task that ends with the term; if it fails, that is logged."""
        return self.tasks.spawn(work, name=name)

    def unreferenced(self, extent_ids: Iterable[int], *, apart_from: int) -> list[Extent]:
        """Those of these extents that only this one stream refers to (23)."""
        return [
            self.state.extents[extent_id]
            for extent_id in extent_ids
            if self.state.streams_of(extent_id) == (apart_from,) and extent_id in self.state.extents
        ]
