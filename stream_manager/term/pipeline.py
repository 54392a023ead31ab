"""The steps of every call to the leader: check leadership, authorise, look for a record, execute, audit, reply.

Invariants: a call is executed once, however often it is sent: a repetition joins the execution under way, or is
            answered from the record that its transaction wrote (protocol rule 26);
            an execution that has begun is finished even if its caller gives up, because it belongs to the term, not to
            the connection; when the term ends it is cancelled, and its caller gets `NotLeader`, never a success;
            the number of executions is bounded, including those whose callers have given up;
            every mutation writes one line to the audit log, whatever its outcome.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from neve.proto import common_pb2
from neve.proto.crc import crc32c_bytes
from neve.proto.errors import InvalidArgument, NeveError, NotLeader, Overloaded
from neve.rpc.authorisation import Authoriser
from neve.rpc.service import Answer, Call, Encoded
from neve.stream_manager.metadata.replay import ReplayCache
from neve.stream_manager.term.audit import AuditLog
from neve.stream_manager.term.context import LeaderContext, Mutation

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

log = logging.getLogger(__name__)

Flow = Callable[[Req, Mutation], Coroutine[Any, Any, Rep | Encoded[Rep]]]
OnDone = Callable[[Any, BaseException | None], None]  # the reply, or the error
Observe = Callable[[str, float], None]  # a method's name and the duration of a call in seconds


class Execution(Answer[Any]):
    """One execution of a call, and the callers that wait for its reply."""

    __slots__ = (
        "_on_done",
        "_others",
        "_pipeline",
        "begun_s",
        "checksum",
        "done",
        "error",
        "joined",
        "method_id",
        "reply",
    )

    def __init__(self, pipeline: Pipeline, method_id: int, checksum: int, begun_s: float) -> None:
        self._pipeline = pipeline
        self._on_done: OnDone | None = None  # of the first caller: usually there is no other
        self._others: list[OnDone] | None = None
        self.method_id = method_id
        self.checksum = checksum
        self.begun_s = begun_s
        self.joined = 0  # number of callers besides the first
        self.done = False
        self.reply: Any = None
        self.error: BaseException | None = None

    def then(self, on_done: OnDone) -> None:
        if self.done:
            on_done(self.reply, self.error)
        elif self._on_done is None:
            self._on_done = on_done
        elif self._others is None:
            self._others = [on_done]
        else:
            self._others.append(on_done)

    def answer(self, reply: Any, error: BaseException | None) -> None:
        self.done, self.reply, self.error = True, reply, error
        on_done, others = self._on_done, self._others
        # Drop the references: the callbacks refer to the call, which refers to this, and that cycle would need the
        # collector.
        self._on_done = self._others = None
        if on_done is not None:
            on_done(reply, error)
        if others is not None:
            for on_done in others:
                on_done(reply, error)

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(functools.partial(_wake, waiter))
            yield from waiter
        if self.error is not None:
            raise self.error
        # The reply was made in time, but a loop turn has passed since (protocol rule 25).
        self._pipeline.ensure_leading()
        return self.reply.message() if type(self.reply) is Encoded else self.reply


def _wake(waiter: asyncio.Future[None], reply: Any, error: BaseException | None) -> None:
    if not waiter.done():
        waiter.set_result(None)
    elif error is not None and not isinstance(error, NeveError):  # a bug, which no caller would report
        log.error("mutation_failed", exc_info=error)


class Pipeline:
    """The calls of one term."""

    def __init__(
        self,
        ctx: LeaderContext,
        replay: ReplayCache,
        *,
        authoriser: Authoriser,
        not_leader: Callable[[], NotLeader],
        observe: Observe = lambda method, duration_s: None,
    ) -> None:
        self._ctx = ctx
        self._replay = replay
        self._authoriser = authoriser
        self._not_leader = not_leader  # made when needed: it names the leader at that time
        self._observe = observe
        self._in_flight_max = ctx.config.limits.requests_in_flight_max
        self._running: dict[tuple[int, int], Execution] = {}
        self.audit = AuditLog()
        self.in_flight = 0

    async def mutate(self, request: Req, call: Call, flow: Flow[Req, Rep]) -> Rep:
        """Execute a mutating call once, and wait for its reply. The request has a field `call`."""
        return cast(Rep, await self.begin(request, call, flow))

    def begin(self, request: Req, call: Call, flow: Flow[Req, Any], *, eager: bool = False) -> Execution:
        """Begin a mutating call without waiting for it.

        `eager`, for hot flows: the flow runs without a task, so it must not use asyncio.timeout or current_task.
        """
        ctx, method = self._ctx, call.method
        begun_s = ctx.clock()
        self._admit(request, call)
        call_id: common_pb2.CallId = request.call  # type: ignore[attr-defined]
        key = (call_id.client_id, call_id.call_id)
        checksum = request_checksum(request)
        method_id = method.method_id
        replayed = None
        named = key != (0, 0)
        if named:
            running = self._running.get(key)
            if running is not None:
                return self._join(running, key, method_id, checksum)
            replayed = self._replay.find(key, method_id=method_id, request_crc32c=checksum)
        execution = Execution(self, method_id, checksum, begun_s)
        if named:
            self._running[key] = execution
        self.in_flight += 1
        mutation = Mutation(key, method_id, checksum, call.principal, ctx.wall_ms(), replayed)
        # The term owns the work, which continues without its caller.
        work = self._execute(request, method.name, call.peer, mutation, flow, execution)
        if eager:
            ctx.tasks.begin(work)
        else:
            task = ctx.tasks.start(work)
            task.add_done_callback(lambda _: self._end_unbegun(key, execution))
        return execution

    def _join(self, execution: Execution, key: tuple[int, int], method_id: int, checksum: int) -> Execution:
        if (execution.method_id, execution.checksum) != (method_id, checksum):
            raise InvalidArgument(what="call", detail=f"{key[0]:x}/{key[1]} is being used by another request")
        execution.joined += 1  # callers that join count against the bound, too
        self.in_flight += 1
        return execution

    async def ask(self, request: Req, call: Call, flow: Callable[[Req, Call], Coroutine[Any, Any, Rep]]) -> Rep:
        """Run a call that mutates nothing itself but may wait. It ends with its caller, and with the term."""
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
        """Authorise the call and check the bound. The caller has checked leadership in the same step of the loop."""
        self._authoriser.authorise(call.principal, call.method.name, request)
        if self.in_flight >= self._in_flight_max:
            raise Overloaded(what="stream manager", detail=f"{self._in_flight_max} requests are in flight")

    def ensure_leading(self) -> None:
        """Raise `NotLeader`, naming the leader, if the term is over.

        Then nothing is answered any more (protocol rule 25).
        """
        self._ctx.ensure_leading()

    def _end(self, key: tuple[int, int], execution: Execution, reply: Any, error: BaseException | None) -> None:
        """Finish an execution with its reply or error. Leadership is checked in the same step."""
        self.in_flight -= 1 + execution.joined
        self._running.pop(key, None)
        if error is None:
            try:
                self._ctx.ensure_leading()
            except NeveError as refusal:
                reply, error = None, refusal
        elif isinstance(error, NotLeader) and not error.leader:
            error = self._not_leader()
        execution.answer(reply, error)

    def _end_unbegun(self, key: tuple[int, int], execution: Execution) -> None:
        """Finish an execution whose task was cancelled before its first step."""
        if not execution.done:
            self._end(key, execution, None, NotLeader(detail="the term is over"))

    async def _execute(
        self,
        request: Req,
        method: str,
        peer: str,
        mutation: Mutation,
        flow: Flow[Req, Any],
        execution: Execution,
    ) -> None:
        reply: Any = None
        error: BaseException | None = None
        outcome = "replayed" if mutation.replayed is not None else "done"
        try:
            reply = await flow(request, mutation)
        except NeveError as refusal:
            error, outcome = refusal, f"{type(refusal).__name__}: {refusal}"
        except Exception as failure:  # noqa: BLE001 - a bug: the caller gets it, and its transport logs it
            error, outcome = failure, f"{type(failure).__name__}: not known to be done"
        except BaseException as end:
            error, outcome = NotLeader(detail="the term is over"), f"{type(end).__name__}: not known to be done"
            raise
        finally:
            self._observe(method, self._ctx.clock() - execution.begun_s)
            client_id, call_id = key = mutation.key
            known = mutation.recorded or mutation.replayed
            self.audit.note((method, mutation.principal, peer, client_id, call_id, known, outcome))
            self._end(key, execution, reply, error)


def request_checksum(request: Message) -> int:
    """A checksum of the request's content. A map's entries have no fixed order, so they are sorted."""
    checksum: int = crc32c_bytes(request.SerializeToString(deterministic=True))
    return checksum
