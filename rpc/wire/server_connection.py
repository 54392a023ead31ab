"""One accepted connection: its handshake, its calls, and the bounds on both.

Invariants: nothing but HELLO is accepted from a peer that has not been welcomed, and no more than a few KiB of it;
            handlers start in the order in which their requests arrived;
            every request gets at most one answer, and its bytes count against the bounds until then;
            at a bound we stop reading the socket: the wait reaches the sender through TCP.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import Message

from neve.proto import errors, wire_pb2
from neve.proto.coroutine_driver import CoroutineDriver
from neve.rpc.service import EMPTY, Answer, Encoded, Route, attachment_bytes
from neve.rpc.wire.budget import ByteBudget
from neve.rpc.wire.connection import Connection
from neve.rpc.wire.deadlines import Deadlines
from neve.rpc.wire.frame import (
    PRELUDE_BYTES,
    PROTOCOL_VERSION,
    REPLY,
    REQUEST,
    Kind,
    Prelude,
    encode,
    encode_reply,
    parse,
)
from neve.rpc.wire.receiver import violation_of_kind
from neve.rpc.wire.server_busy_poll import REQUEST_BYTES_MAX
from neve.rpc.wire.server_call import WireCall

if TYPE_CHECKING:
    from neve.rpc.wire.server import WireServer

log = logging.getLogger(__name__)

Handling = Coroutine[Any, Any, Message]

SETTLE_S = 0.005  # how often to look whether the kernel has taken a large reply


class ServerConnection(Connection):
    def __init__(self, server: WireServer, *, peer: str) -> None:
        super().__init__(server.limits, server.pool, peer=peer)
        self.server = server
        self.principal = ""
        self.welcomed = False
        self.calls: dict[int, WireCall] = {}
        self.request_bytes = 0  # of frames admitted and not answered
        self.reply_budget = ByteBudget(server.limits.connection_bytes_max)
        self._deadlines: Deadlines[WireCall] = Deadlines(self.loop, self._expired)
        self._unstarted = 0  # tasks that have not taken their first step: an eager handler may not overtake them
        # Twice what the client is told: a call that it cancels leaves its count before it leaves ours, and a server
        # that stopped reading at the client's bound might not read the very cancellation that would free a place.
        self._calls_max = 2 * server.limits.connection_calls_max
        self._reading = True
        self._unsettled_bytes = 0  # reserved for replies that the transport has and the kernel may not have taken
        self._settling = False
        self._handshake_timer = self.loop.call_later(server.limits.handshake_timeout_s, self._handshake_late)

    # --- frames ----------------------------------------------------------------------------------------------

    def admit(self, prelude: Prelude) -> bool:
        body_bytes, _, _, _, kind, *_ = prelude
        if kind != REQUEST:
            return True  # small, and of those that make room: a CANCEL, or that keep the peace: HELLO, BEAT
        limits, server, size_bytes = self.limits, self.server, PRELUDE_BYTES + body_bytes
        own_bytes, all_bytes = self.request_bytes + size_bytes, server.request_bytes + size_bytes
        if own_bytes > limits.connection_bytes_max and own_bytes != size_bytes:
            return False
        if all_bytes > limits.server_bytes_max and all_bytes != size_bytes:
            server.held[self] = None
            return False
        self.request_bytes = own_bytes
        server.request_bytes = all_bytes
        return True

    def on_frame(self, prelude: Prelude, message: bytes, attachment: memoryview) -> None:
        if not self.welcomed:
            if prelude.kind != Kind.HELLO:
                raise violation_of_kind(prelude, "before HELLO")
            self._on_hello(message)
        elif prelude.kind == REQUEST:
            self._on_request(prelude, message, attachment)
        elif prelude.kind == Kind.CANCEL:
            call = self.calls.get(prelude.call_id)
            if call is not None:
                call.cancel()
        elif prelude.kind != Kind.BEAT:
            raise violation_of_kind(prelude, "from a client")

    def _on_hello(self, message: bytes) -> None:
        server = self.server
        hello = parse(wire_pb2.Hello, message)
        try:
            if not hello.protocol_min <= PROTOCOL_VERSION <= hello.protocol_max:
                raise errors.UnsupportedVersion(
                    what="wire protocol",
                    version=PROTOCOL_VERSION,
                    supported_min=hello.protocol_min,
                    supported_max=hello.protocol_max,
                )
            if hello.cluster and hello.cluster != server.cluster:
                raise errors.WrongCluster(expected=server.cluster, got=hello.cluster)
            self.principal = server.authenticator.authenticate(hello.token)
        except errors.NeveError as refusal:
            log.warning("connection_refused peer=%s agent=%.100r reason=%s", self.peer, hello.agent, refusal)
            self.end(refusal, last_words=True)
            return
        self.welcomed = True
        self._handshake_timer.cancel()
        self.open_limits(self.limits.message_bytes_max, self.limits.attachment_bytes_max)
        welcome = wire_pb2.Welcome(
            protocol=PROTOCOL_VERSION,
            cluster=server.cluster,
            message_bytes_max=self.limits.message_bytes_max,
            attachment_bytes_max=self.limits.attachment_bytes_max,
            connection_bytes_max=self.limits.connection_bytes_max,
            connection_calls_max=self.limits.connection_calls_max,
        )
        self.send(encode(Kind.WELCOME, message=welcome.SerializeToString()))
        if server.draining:
            self.send(encode(Kind.GOAWAY))

    def _on_request(self, prelude: Prelude, message: bytes, attachment: memoryview) -> None:
        _, _, call_id, method_id, *_ = prelude
        route = self.server.routes.get(method_id)
        problem: errors.NeveError | None = None
        request: Any = None
        if call_id == 0 or call_id in self.calls:
            raise errors.ProtocolViolation(detail=f"call id {call_id} is 0 or in use")
        if self.server.draining:
            problem = errors.ShuttingDown()
        elif route is None:
            problem = errors.Unimplemented(method=f"{method_id:#06x}")
        else:
            try:
                request = parse(route.method.request, message)
            except errors.ProtocolViolation as violation:
                problem = violation  # of this request alone: the frame around it was sound
        if problem is not None or route is None:
            assert problem is not None
            self._release_request(PRELUDE_BYTES + prelude.body_bytes)
            self._send_error(call_id, problem)
            return
        call = WireCall(self, route, prelude, attachment)
        self.calls[call_id] = call
        if (route.eager or route.answers) and not self._unstarted:
            self._handle_at_once(route, request, call)
            return
        coroutine = route.answer(request, call) if route.answers else cast("Handling", route.handler(request, call))
        call.deadline_bucket = self._deadlines.add(call, call.deadline_s)
        self._unstarted += 1
        call.task = self.loop.create_task(self._run(coroutine, call))
        self.server.tasks.add(call.task)
        if len(self.calls) >= self._calls_max:
            self._update_reading()

    # --- calls -----------------------------------------------------------------------------------------------

    def _handle_at_once(self, route: Route, request: Any, call: WireCall) -> None:
        """Call the handler without a task: answer now, or when its `Answer` or its coroutine has the reply."""
        try:
            begun = route.handler(request, call)
        except BaseException as error:  # noqa: BLE001 - `end_call` sorts them
            self.end_call(call, error)
            return
        # The types themselves first: whether something is an Answer, which has an abstract base, takes several calls.
        if type(begun) is route.method.reply:
            self._reply_at_once(call, cast("Message", begun))
        elif type(begun) is CoroutineType:
            self._drive(begun, call)
        elif isinstance(begun, Answer):
            self._answer_later(call, begun)
        else:
            self.end_call(call, cast("Any", begun))  # encoded, or no reply of this method

    def _reply_at_once(self, call: WireCall, reply: Message) -> None:
        """End a call that holds nothing but its request: with a small reply, in fewer steps than `end_call`."""
        message = reply.SerializeToString()
        if call.reply_attachment or len(message) > self.limits.message_bytes_max:
            self.end_call(call, reply)
            return
        alone = not self._queue
        del self.calls[call.call_id]
        call.ended = True
        self.send(encode_reply(call.call_id, message))
        self._release_request(call.request_bytes)
        poller = self.server.busy_poller
        if poller is not None and call.request_bytes <= REQUEST_BYTES_MAX + PRELUDE_BYTES:
            poller.on_reply(alone=alone)

    def _answer_later(self, call: WireCall, answer: Answer[Any]) -> None:
        call.answer = answer
        call.deadline_bucket = self._deadlines.add(call, call.deadline_s)
        answer.then(functools.partial(self._answered, call))
        if len(self.calls) >= self._calls_max:
            self._update_reading()

    def _answered(self, call: WireCall, reply: Message | Encoded[Any] | None, error: BaseException | None) -> None:
        if not call.ended:
            self.end_call(call, error or reply)
        elif error is not None and not isinstance(error, errors.NeveError):  # a bug that nobody hears of otherwise
            log.error("handler_failed method=%s peer=%s", call.method.path, self.peer, exc_info=error)

    def _drive(self, coroutine: Handling, call: WireCall) -> None:
        """Run a handler without a task: up to its first wait now, the rest when what it waits for is there."""
        driver = CoroutineDriver(coroutine)
        if driver.ended:
            self.end_call(call, driver.result if driver.error is None else driver.error)
            return
        call.driver = driver
        call.deadline_bucket = self._deadlines.add(call, call.deadline_s)
        driver.then(functools.partial(self._driver_done, call))
        if call.abandoned:  # in its first step
            driver.cancel()
        if len(self.calls) >= self._calls_max:
            self._update_reading()

    def _driver_done(self, call: WireCall, reply: Message | None, error: BaseException | None) -> None:
        call.driver = None
        if call.cleanup is not None:
            call.cleanup.set_result(None)
            self.server.tasks.discard(call.cleanup)
        self.end_call(call, reply if error is None else error)

    async def _run(self, coroutine: Handling, call: WireCall) -> None:
        call.started = True
        self._unstarted -= 1
        outcome: Message | BaseException
        if call.abandoned:
            coroutine.close()
            outcome = asyncio.CancelledError()
        else:
            try:
                outcome = await coroutine
            except BaseException as error:  # noqa: BLE001 - `end_call` sorts them
                outcome = error
        if call.task is not None:
            self.server.tasks.discard(call.task)
        self.end_call(call, outcome)

    def end_call(self, call: WireCall, outcome: Message | Encoded[Any] | BaseException | None) -> None:
        """Answer, and give back all that the call has held."""
        error: BaseException | None = None
        try:
            if isinstance(outcome, BaseException):
                error = outcome
            else:
                try:
                    self._send_reply(call, outcome)
                except Exception as problem:  # noqa: BLE001 - whatever a handler attached or answered is that call's matter
                    error = problem
            if error is not None:
                error = self._send_failure(call, error)
        finally:
            self._finish(call)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error  # the process is told to end

    def _send_failure(self, call: WireCall, error: BaseException) -> BaseException:
        """Say why there is no reply; returns what was said."""
        if isinstance(error, asyncio.CancelledError):
            if call.expired:
                error = errors.DeadlineExceeded(method=call.method.path, timeout_ms=call.timeout_ms)
            else:
                error = errors.Cancelled(detail="the server cancelled the call")
        elif not isinstance(error, errors.NeveError):  # a bug: it must not end the server
            log.error("handler_failed method=%s peer=%s", call.method.path, self.peer, exc_info=error)
        self._send_error(call.call_id, error)
        return error

    def _send_reply(self, call: WireCall, reply: Message | Encoded[Any] | None) -> None:
        if type(reply) is Encoded and reply.cls is call.method.reply:
            message = reply.data
        elif isinstance(reply, call.method.reply):
            message = reply.SerializeToString()
        else:
            raise errors.Internal(detail=f"{call.method.path} answered with a {type(reply).__name__}")
        buffers = call.reply_attachment
        # While requests are being read, what they are answered gathers; an answer to the only call need not wait.
        at_once = not self._receiving and len(self.calls) == 1
        if not buffers and len(message) <= self.limits.message_bytes_max:
            self.send(encode_reply(call.call_id, message), at_once=at_once)
            return
        size_bytes = attachment_bytes(buffers)
        if size_bytes > self.limits.attachment_bytes_max or len(message) > self.limits.message_bytes_max:
            limit_bytes = self.limits.attachment_bytes_max if size_bytes else self.limits.message_bytes_max
            what = f"reply of {call.method.path}"
            raise errors.TooLarge(what=what, size_bytes=size_bytes or len(message), limit_bytes=limit_bytes)
        head = encode(
            REPLY,
            call_id=call.call_id,
            message=message,
            attachment=buffers,
            attachment_bytes=size_bytes,
            own_checksums=call.own_checksums,
        )
        if call.reply_file is not None and len(buffers) == 1 and self.send_file(head, call.reply_file):
            return
        self.send(head, buffers, size_bytes, at_once=at_once)

    def _send_error(self, call_id: int, error: BaseException) -> None:
        self.send(encode(Kind.ERROR, call_id=call_id, message=errors.to_message(error).SerializeToString()))

    def _finish(self, call: WireCall) -> None:
        del self.calls[call.call_id]
        call.ended = True
        if call.deadline_bucket:
            self._deadlines.remove(call, call.deadline_bucket)
            call.task = None
        call.attachment = EMPTY  # lets the receive buffer be used again, whoever still holds the call
        if call.reserved_bytes:
            self._unsettled_bytes += call.reserved_bytes
            if self.ended is None:
                self._settle_soon()
            else:
                self._settle()  # nothing is sent any more
        self._release_request(call.request_bytes)
        if self.server.draining:
            self.server.call_finished()

    def _expired(self, call: WireCall) -> None:
        call.expired = True
        call.cancel()

    # --- bounds ----------------------------------------------------------------------------------------------

    def _release_request(self, size_bytes: int) -> None:
        self.request_bytes -= size_bytes
        self.server.request_bytes -= size_bytes
        assert self.request_bytes >= 0, self.request_bytes
        if self.server.held:
            self.server.resume_held()
        if not self._reading:
            self._update_reading()

    def resume_if_admitted(self) -> None:
        """The server has room again."""
        self._update_reading()

    def _update_reading(self) -> None:
        """Read exactly while nothing forbids it."""
        if self.ended is not None or self.transport is None:
            return
        wanted = not self.write_paused and len(self.calls) < self._calls_max
        if wanted and self.receiver.held:
            self.server.held.pop(self, None)
            try:
                wanted = self.receiver.resume()
            except errors.ProtocolViolation as violation:
                self.violated(violation)
                return
        if wanted and not self._reading:
            self._reading = True
            self.transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            self.transport.pause_reading()

    def on_held(self) -> None:
        self._update_reading()

    def reading_paused(self) -> bool:
        return not self._reading

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_reading()  # a peer that does not read its replies gets no further ones

    def on_writable(self) -> None:
        self._settle()
        self._update_reading()

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self.loop.call_soon(self._settle_timer)

    def _settle_timer(self) -> None:
        self._settling = False
        if self.ended is not None or self.unsent_bytes() == 0:
            self._settle()
        elif not self.write_paused:  # when paused, `on_writable` will settle
            self._settling = True
            self.loop.call_later(SETTLE_S, self._settle_timer)

    def _settle(self) -> None:
        """The kernel has taken every reply: what was reserved for them is free again."""
        size_bytes, self._unsettled_bytes = self._unsettled_bytes, 0
        if size_bytes:
            self.reply_budget.release(size_bytes)
            self.server.reply_budget.release(size_bytes)

    # --- the end ---------------------------------------------------------------------------------------------

    def _handshake_late(self) -> None:
        log.warning(
            "connection_refused peer=%s reason=no HELLO within %g s", self.peer, self.limits.handshake_timeout_s
        )
        self.end(errors.ConnectionLost(address=self.peer, detail="no HELLO in time"))

    def on_ended(self, reason: errors.NeveError) -> None:
        self._handshake_timer.cancel()
        self._deadlines.close()
        self._settle()
        self.server.connection_ended(self)
        for call in list(self.calls.values()):
            call.cancel()
        # What requests that never became calls had taken.
        unclaimed = self.request_bytes - sum(call.request_bytes for call in self.calls.values())
        self.server.held.pop(self, None)
        if unclaimed:
            self._release_request(unclaimed)
