"""One term of a partition manager's leadership: its servers, its calls and its background work.

Invariants: a term begins with a map at least as new as its election, and ends as soon as the lease may be over: from
            then on it answers, commits and orders nothing;
            a call has one execution at a time: a repetition joins the one under way, and a later repetition finds the
            call in the map (scenario T50); an execution continues if its caller gives up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from google.protobuf.message import Message

from neve.client.streams.client import Client
from neve.meta import keys
from neve.meta.election import Leadership
from neve.meta.store import MetaStore
from neve.meta.term_tasks import TermTasks
from neve.partition_manager.config import PartitionManagerConfig
from neve.partition_manager.core_regions import Cause
from neve.partition_manager.region_store import RegionStore
from neve.partition_manager.server_table import ServerTable
from neve.proto import common_pb2
from neve.proto.errors import InvalidArgument, NeveError, NotLeader, Overloaded
from neve.proto.method import Method
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call

log = logging.getLogger(__name__)
audit = logging.getLogger("neve.audit")

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

Flow = Callable[["Term", Req, Cause], Coroutine[Any, Any, Rep]]


class Term:
    """One term. `ended` is set when it is over."""

    def __init__(
        self,
        *,
        config: PartitionManagerConfig,
        store: MetaStore,
        regions: RegionStore,
        leadership: Leadership,
        streams: Client,
        channels: ChannelPool,
        rng: random.Random,
        not_leader: Callable[[], NotLeader],
    ) -> None:
        self.config = config
        self.store = store
        self.root = keys.root_of(config.cluster)
        self.regions = regions
        self.leadership = leadership
        self.streams = streams
        self.channels = channels
        self.rng = rng
        self.servers = ServerTable()
        self.tasks = TermTasks()
        self.ended = asyncio.Event()
        self.begun_s = self.clock()
        self.bootstrapping = asyncio.Lock()
        self._not_leader = not_leader
        self._running: dict[tuple[int, int], tuple[int, asyncio.Task[Any]]] = {}
        self._reshaping: dict[int, None] = {}
        self._in_flight = 0
        self._client_id = rng.getrandbits(64) | 1
        self._calls = 0
        regions.lead(leadership, on_deposed=self.end)
        leadership.lost.add_callback(self.end)

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def own_cause(self, method: Method[Any, Any]) -> Cause:
        """The cause of this manager's own changes. The map records it like a caller's call."""
        self._calls += 1
        call = common_pb2.CallId(client_id=self._client_id, call_id=self._calls)
        return Cause(call, method.method_id)

    def ensure_leading(self) -> None:
        """Raise `NotLeader` if the term is over.

        It reads the lease's clock, so a process that was paused notices here, before any timer has run.
        """
        if self.ended.is_set():
            raise self._not_leader()
        try:
            self.leadership.ensure()
        except NeveError as error:
            self.end(str(error))
            raise self._not_leader() from None

    def end(self, reason: str) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        log.warning("term_ended create_revision=%d reason=%s", self.leadership.create_revision, reason)
        self.tasks.cancel()
        self.regions.retire(self.leadership)

    async def stopped(self) -> None:
        await self.tasks.stopped()

    # --- calls -----------------------------------------------------------------------------------------------

    async def mutate(self, request: Req, call: Call, flow: Flow[Req, Rep]) -> Rep:
        """Execute a mutating call. The request has a field `call`."""
        self.ensure_leading()
        call_id: common_pb2.CallId = request.call  # type: ignore[attr-defined]
        key = (call_id.client_id, call_id.call_id)
        method_id = call.method.method_id
        running = self._running.get(key) if call_id.client_id else None
        if running is not None and running[0] != method_id:
            raise InvalidArgument(what="call", detail=f"{key[0]:x}/{key[1]} is being used by another request")
        if running is None:
            limit = self.config.limits.requests_in_flight_max
            if self._in_flight >= limit:
                raise Overloaded(what="partition manager", detail=f"{limit} requests are in flight")
            # A call without an id is not recognised when it is repeated. The key only keeps it apart from others
            # here.
            cause = Cause(call_id, method_id) if call_id.client_id else self.own_cause(call.method)
            task = self.tasks.start(self._execute(request, call, flow, cause))
            self._in_flight += 1
            task.add_done_callback(self._on_done)
            if call_id.client_id:
                self._running[key] = (method_id, task)
                task.add_done_callback(lambda _: self._running.pop(key, None))
        else:
            task = running[1]
        try:
            result: Rep = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise self._not_leader() from None
            raise
        except NotLeader as error:
            raise self._not_leader() if not error.leader else error from None
        self.ensure_leading()  # it is done, but if the term is over nothing is answered any more
        return result

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._in_flight -= 1

    async def _execute(self, request: Req, call: Call, flow: Flow[Req, Rep], cause: Cause) -> Rep:
        outcome = "not known to be done"
        try:
            reply = await flow(self, request, cause)
            outcome = "done"
            return reply
        except NeveError as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            audit.info(
                "mutation method=%s by=%s peer=%s call=%x/%d outcome=%s",
                *(call.method.name, call.principal or "-", call.peer, cause.call.client_id, cause.call.call_id),
                outcome,
            )

    def reshape(self, *partition_ids: int) -> Reshaping:
        """A context in which no other flow of this term splits, merges or moves these partitions."""
        return Reshaping(self._reshaping, partition_ids)


class Reshaping:
    def __init__(self, table: dict[int, None], partition_ids: tuple[int, ...]) -> None:
        self._table = table
        self._ids = partition_ids

    def __enter__(self) -> None:
        for partition_id in self._ids:
            if partition_id in self._table:
                detail = f"partition {partition_id} is being split or merged"
                raise Overloaded(what="partition", detail=detail)
        self._table.update(dict.fromkeys(self._ids))

    def __exit__(self, *_: object) -> None:
        for partition_id in self._ids:
            self._table.pop(partition_id, None)
