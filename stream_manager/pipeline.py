"""The way of every call through the leader: lead? → check → authorise → executed before? → run → audit → answer.

Invariants: a call is executed once, however often it is sent: a repetition joins the execution under way, or is
            answered from the record that its transaction wrote (26);
            an execution that has begun is finished also if its caller gives up: it is a task of the term, not of the
            connection; when the term ends it is cancelled and its caller hears `NotLeader`, never a success;
            executions are bounded by number, also those whose callers have given up;
            every mutation leaves one line in the audit log, whatever became of it.
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
from neve.stream_manager.audit import AuditLog, Entry
from neve.stream_manager.context import LeaderContext, Mutation
from neve.stream_manager.replay import ReplayCache

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

log = logging.getLogger(__name__)

Flow = Callable[[Req, Mutation], Coroutine[Any, Any, Rep]]


class Authoriser(Protocol):
    """Who may do what. It raises `PermissionDenied`; it neither waits nor changes anything."""

    def authorise(self, principal: str, method: str, request: Message) -> None: ...


class AllowAll:
    def authorise(self, principal: str, method: str, request: Message) -> None:
        pass


class _Execution:
    """One call that is being executed, and those who wait for its answer."""

    __slots__ = ("checksum", "done", "error", "method_id", "reply", "waiting")

    def __init__(self, method_id: int, checksum: int) -> None:
        self.method_id = method_id
        self.checksum = checksum
        self.done = False
        self.reply: Any = None
        self.error: BaseException | None = None
        self.waiting: list[asyncio.Future[Any]] = []

    def answer(self, reply: Any, error: BaseException | None) -> None:
        self.done, self.reply, self.error = True, reply, error
        for waiter in self.waiting:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(reply)
            else:
                waiter.set_exception(error)
                waiter.exception()  # its caller may give up in this very moment: that is no unhandled error


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
        self._running: dict[tuple[int, int], _Execution] = {}
        self._loop = asyncio.get_running_loop()
        self.audit = AuditLog()
        self.in_flight = 0

    async def mutate(self, request: Req, call: Call, flow: Flow[Req, Rep], *, eager: bool = False) -> Rep:
        """Execute a call that changes something, once. The request has a field `call`.

        `eager`, for hot flows: the flow's first step is taken at once, without a task of its own. Up to its first wait
        it must not use asyncio.timeout or current_task then.
        """
        self._admit(request, call)
        call_id: common_pb2.CallId = request.call  # type: ignore[attr-defined]
        key = (call_id.client_id, call_id.call_id)
        checksum = request_checksum(request)
        method_id = call.method.method_id
        execution = self._running.get(key) if key != (0, 0) else None
        if execution is not None:
            if (execution.method_id, execution.checksum) != (method_id, checksum):
                raise InvalidArgument(what="call", detail=f"{key[0]:x}/{key[1]} is another request just now")
            self.in_flight += 1  # those who wait for it are bounded, too
            try:
                return await self._result(execution)  # type: ignore[no-any-return]
            finally:
                self.in_flight -= 1
        replayed = None
        if key != (0, 0):
            replayed = self._replay.find(*key, method_id=method_id, request_crc32c=checksum)
        mutation = Mutation(key, method_id, checksum, call.principal, self._ctx.wall_ms(), replayed)
        execution = _Execution(method_id, checksum)
        if key != (0, 0):
            self._running[key] = execution
        self.in_flight += 1
        # It goes on as a task of the term, with or without its caller.
        work = self._execute(request, call.method.name, call.peer, mutation, flow, execution)
        if eager:
            self._ctx.tasks.begin(work)
        else:
            task = self._ctx.tasks.start(work)
            task.add_done_callback(lambda _: self._end_unbegun(key, execution))
        return await self._result(execution)  # type: ignore[no-any-return]

    async def ask(self, request: Req, call: Call, flow: Callable[[Req, Call], Coroutine[Any, Any, Rep]]) -> Rep:
        """Run a call that changes nothing of its own but may wait; it ends with its caller and with the term."""
        self._admit(request, call)
        task = self._ctx.tasks.start(flow(request, call))
        self.in_flight += 1
        try:
            result = await task
        except asyncio.CancelledError:
            if task.cancelled() and self._ctx.tasks.ended:
                raise self._not_leader() from None
            raise
        except NotLeader as error:
            raise self._not_leader() if not error.leader else error from None
        finally:
            self.in_flight -= 1
            task.cancel()
        self._ctx.ensure_leading()
        return result

    def _admit(self, request: Message, call: Call) -> None:
        """That we lead was checked when the caller looked for the term, in this very step of the loop."""
        self._authoriser.authorise(call.principal, call.method.name, request)
        limit = self._ctx.config.limits.requests_in_flight_max
        if self.in_flight >= limit:
            raise Overloaded(what="stream manager", detail=f"{limit} requests are in flight")

    async def _result(self, execution: _Execution) -> Any:
        try:
            if not execution.done:
                waiter: asyncio.Future[Any] = self._loop.create_future()
                execution.waiting.append(waiter)
                result = await waiter
            elif execution.error is not None:
                raise execution.error
            else:
                result = execution.reply
        except NotLeader as error:
            raise self._not_leader() if not error.leader else error from None
        self._ctx.ensure_leading()  # done in time, but if the term is over nothing is answered any more (25)
        return result

    def _end_unbegun(self, key: tuple[int, int], execution: _Execution) -> None:
        """A task that is cancelled before its first step never runs what it was made for."""
        if not execution.done:
            self.in_flight -= 1
            self._running.pop(key, None)
            execution.answer(None, NotLeader(detail="the term is over"))

    async def _execute(
        self,
        request: Req,
        method: str,
        peer: str,
        mutation: Mutation,
        flow: Flow[Req, Rep],
        execution: _Execution,
    ) -> None:
        reply: Rep | None = None
        error: BaseException | None = None
        outcome = "replayed" if mutation.replayed is not None else "done"
        try:
            reply = await flow(request, mutation)
        except NeveError as refusal:
            error, outcome = refusal, f"{type(refusal).__name__}: {refusal}"
        except Exception as failure:  # a bug: whoever waits gets it, and its transport logs it
            error, outcome = failure, f"{type(failure).__name__}: not known to be done"
            if execution.waiting and all(waiter.done() for waiter in execution.waiting):
                log.exception("mutation_failed method=%s", method)
        except BaseException as end:
            error, outcome = NotLeader(detail="the term is over"), f"{type(end).__name__}: not known to be done"
            raise
        finally:
            self.in_flight -= 1
            self._running.pop((mutation.client_id, mutation.call_id), None)
            self.audit.note(
                Entry(
                    method,
                    mutation.principal,
                    peer,
                    mutation.client_id,
                    mutation.call_id,
                    mutation.recorded or mutation.replayed,
                    outcome,
                )
            )
            execution.answer(reply, error)


def request_checksum(request: Message) -> int:
    """Of what is asked. The order of a map's entries is not fixed, so it is made so here."""
    return crc32c(request.SerializeToString(deterministic=True))
