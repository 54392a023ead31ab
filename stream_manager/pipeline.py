"""The way of every call through the leader: lead? → check → authorise → executed before? → run → audit → answer.

Invariants: a call is executed once, however often it is sent: a repetition joins the execution under way, or is
            answered from the record that its transaction wrote (26);
            an execution that has begun is finished also if its caller gives up: it is a task of the term, not of the
            connection; when the term ends it is cancelled and its caller hears `NotLeader`, never a success;
            executions are bounded by number, also those whose callers have given up;
            every mutation leaves one line in the log `neve.audit`, whatever became of it.
Neighbours: servicer.py brings the calls, the flows run inside; locks, decisions and commits are theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from neve.proto import common_pb2
from neve.proto.crc import crc32c
from neve.proto.errors import InvalidArgument, NeveError, NotLeader, Overloaded
from neve.rpc.service import Call
from neve.stream_manager.context import LeaderContext, Mutation
from neve.stream_manager.replay import ReplayCache

audit = logging.getLogger("neve.audit")

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

Flow = Callable[[Req, Mutation], Coroutine[Any, Any, Rep]]


class Authoriser(Protocol):
    """Who may do what. It raises `PermissionDenied`; it neither waits nor changes anything."""

    def authorise(self, principal: str, method: str, request: Message) -> None: ...


class AllowAll:
    def authorise(self, principal: str, method: str, request: Message) -> None:
        pass


class Pipeline:
    """Of one term."""

    def __init__(
        self,
        ctx: LeaderContext,
        replay: ReplayCache,
        *,
        authoriser: Authoriser,
        not_leader: Callable[[], NotLeader],
    ) -> None:
        self._ctx = ctx
        self._replay = replay
        self._authoriser = authoriser
        self._not_leader = not_leader  # made when needed: it names who leads by then
        self._running: dict[tuple[int, int], tuple[int, int, asyncio.Task[Any]]] = {}  # method, checksum
        self.in_flight = 0

    async def mutate(self, request: Req, call: Call, flow: Flow[Req, Rep]) -> Rep:
        """Execute a call that changes something, once. The request has a field `call`."""
        self._admit(request, call)
        call_id: common_pb2.CallId = request.call  # type: ignore[attr-defined]
        key = (call_id.client_id, call_id.call_id)
        checksum = request_checksum(request)
        method_id = call.method.method_id
        replayed = None
        if key != (0, 0):
            running = self._running.get(key)
            if running is not None:
                if running[:2] != (method_id, checksum):
                    raise InvalidArgument(what="call", detail=f"{key[0]:x}/{key[1]} is another request just now")
                self.in_flight += 1  # those who wait for it are bounded, too
                try:
                    return await self._result(running[2])  # type: ignore[no-any-return]
                finally:
                    self.in_flight -= 1
            replayed = self._replay.find(*key, method_id=method_id, request_crc32c=checksum)
        mutation = Mutation(
            client_id=key[0],
            call_id=key[1],
            method_id=method_id,
            request_crc32c=checksum,
            principal=call.principal,
            wall_ms=self._ctx.wall_ms(),
            replayed=replayed,
        )
        task = self._start(self._execute(request, call.method.name, call.peer, mutation, flow))
        if key != (0, 0):
            self._running[key] = (method_id, checksum, task)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await self._result(task)  # type: ignore[no-any-return]

    async def ask(self, request: Req, call: Call, flow: Callable[[Req, Call], Coroutine[Any, Any, Rep]]) -> Rep:
        """Run a call that changes nothing of its own but may wait; it ends with its caller and with the term."""
        self._admit(request, call)
        task = self._start(flow(request, call))
        try:
            return await self._result(task)  # type: ignore[no-any-return]
        finally:
            task.cancel()

    def _admit(self, request: Message, call: Call) -> None:
        """That we lead was checked when the caller looked for the term, in this very step of the loop."""
        self._authoriser.authorise(call.principal, call.method.name, request)
        limit = self._ctx.config.limits.requests_in_flight_max
        if self.in_flight >= limit:
            raise Overloaded(what="stream manager", detail=f"{limit} requests are in flight")

    def _start(self, work: Coroutine[Any, Any, Rep]) -> asyncio.Task[Rep]:
        task = self._ctx.tasks.start(work)
        self.in_flight += 1
        task.add_done_callback(self._on_ended)
        return task

    def _on_ended(self, task: asyncio.Task[Any]) -> None:
        self.in_flight -= 1

    async def _result(self, task: asyncio.Task[Any]) -> Any:
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise self._not_leader() from None
            raise
        except NotLeader as error:
            raise self._not_leader() if not error.leader else error from None
        self._ctx.ensure_leading()  # done in time, but if the term is over nothing is answered any more (25)
        return result

    async def _execute(self, request: Req, method: str, peer: str, mutation: Mutation, flow: Flow[Req, Rep]) -> Rep:
        try:
            reply = await flow(request, mutation)
        except NeveError as error:
            _audit(method, peer, mutation, f"{type(error).__name__}: {error}")
            raise
        except BaseException as error:
            _audit(method, peer, mutation, f"{type(error).__name__}: not known to be done")
            raise
        _audit(method, peer, mutation, "replayed" if mutation.replayed is not None else "done")
        return reply


def request_checksum(request: Message) -> int:
    """Of what is asked. The order of a map's entries is not fixed, so it is made so here."""
    return crc32c(request.SerializeToString(deterministic=True))


def _audit(method: str, peer: str, mutation: Mutation, outcome: str) -> None:
    if not audit.isEnabledFor(logging.INFO):
        return
    known = mutation.recorded or mutation.replayed
    audit.info(
        "mutation method=%s by=%s peer=%s call=%x/%d streams=%s extents=%s node=%d outcome=%s",
        method,
        mutation.principal or "-",
        peer,
        mutation.client_id,
        mutation.call_id,
        ",".join(map(str, known.stream_ids)) if known else "-",
        ",".join(map(str, known.extent_ids)) if known else "-",
        known.node_id if known else 0,
        outcome,
    )
