"""The client side of the wire: `WireChannel`, which maintains one connection to one address.

Invariants: requests are sent in the order of the calls, even if they wait for a connection or for room;
            a call ends exactly once: reply, error, deadline, cancellation or the end of the connection;
            a call that was never sent ends as ConnectFailed (safe to repeat), one that was sent as ConnectionLost;
            bytes of calls in flight, requests and expected replies, stay below `connection_bytes_max`.
Not here:   retries of calls: only the caller knows whether a call may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from google.protobuf.message import Message

from neve.proto import common_pb2, errors, wire_pb2
from neve.proto.coroutine_driver import OnDone
from neve.proto.crc import crc32c_of_all
from neve.proto.method import Method, Rep, Req
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import (
    REPLY_BYTES_DEFAULT,
    Begun,
    Buffer,
    Channel,
    Reply,
    attachment_bytes,
    bounded_timeout_s,
    byte_views,
)
from neve.rpc.tls import Reloading, TlsFiles, client_context
from neve.rpc.wire.buffers import ChunkPool
from neve.rpc.wire.client_busy_poll import LoneCall
from neve.rpc.wire.connection import Connection
from neve.rpc.wire.deadlines import Deadlines
from neve.rpc.wire.frame import PRELUDE_BYTES, PROTOCOL_VERSION, REPLY, Kind, Prelude, encode, encode_request, parse
from neve.rpc.wire.network import SOCKETS, Network
from neve.rpc.wire.pending import Pending
from neve.rpc.wire.receiver import violation_of_kind
from neve.rpc.wire.sockets import split_address

log = logging.getLogger(__name__)

_new_reply = tuple.__new__  # a third of the cost of Reply(…)

_POOL = ChunkPool()  # of all client connections in this process


class ClientConnection(Connection):
    """One TCP connection and the calls that were sent on it."""

    def __init__(self, channel: WireChannel, *, hello: bytes) -> None:
        super().__init__(channel.limits, _POOL, peer=channel.address)
        self.channel = channel
        self.calls: dict[int, Pending] = {}
        self.inflight_bytes = 0
        self.answered = False  # a call on it has been answered
        self.going_away = False
        self.welcome: asyncio.Future[wire_pb2.Welcome] = self.loop.create_future()
        self._hello = hello
        self._lone = LoneCall(self.loop, polls=channel.network.busy_polling)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(self._hello)

    def send_call(self, pending: Pending, timeout_ms: int) -> None:
        """Send the call with this time left until its deadline."""
        pending.connection = self
        idle = not self.calls  # a sequential caller sends no second frame in this turn
        self.calls[pending.call_id] = pending
        self.inflight_bytes += pending.cost_bytes
        size_bytes, crc = pending.attachment_bytes, pending.attachment_crc
        if crc is None:
            crc = crc32c_of_all(pending.attachment) if size_bytes else 0
        method_id, message = pending.method.method_id, pending.message
        head = encode_request(pending.call_id, method_id, timeout_ms if timeout_ms > 0 else 1, message, size_bytes, crc)
        self.send(head, pending.attachment, size_bytes, at_once=idle)
        if idle:
            self._lone.on_sent()

    def forget(self, pending: Pending) -> None:
        """The caller has given the call up: notify the server."""
        if self.calls.pop(pending.call_id, None) is not None:
            self.inflight_bytes -= pending.cost_bytes
            self._lone.on_ended()
            self.send(encode(Kind.CANCEL, call_id=pending.call_id))
            self.channel.pump()

    def on_frame(self, prelude: Prelude, message: bytes, attachment: memoryview) -> None:
        kind, call_id = prelude.kind, prelude.call_id
        if kind == REPLY or (kind == Kind.ERROR and call_id):
            self.answered = True
            pending = self.calls.pop(call_id, None)
            if pending is None:
                return  # an answer to a call that its caller has given up
            self.inflight_bytes -= pending.cost_bytes
            self._lone.on_ended()
            self._settle(pending, kind, message, attachment)
            if self.channel.queue:
                self.channel.pump()
        elif kind == Kind.BEAT:
            pass
        elif kind == Kind.WELCOME:
            if self.welcome.cancelled():
                return  # the handshake has just timed out, and its task is about to end this connection
            if self.welcome.done():
                raise violation_of_kind(prelude, "twice")
            self.welcome.set_result(parse(wire_pb2.Welcome, message))
        elif kind == Kind.ERROR:
            self.end(errors.from_message(parse(common_pb2.Error, message)))
        elif kind == Kind.GOAWAY:
            self.going_away = True
            self.channel.retire(self)
        else:
            raise violation_of_kind(prelude, "from a server")

    def on_head(self, prelude: Prelude, message: bytes) -> None:
        pending = self.calls.get(prelude.call_id)
        if pending is None or pending.on_head is None or prelude.kind != REPLY:
            return
        try:
            parsed = parse(pending.method.reply, message)
        except errors.ProtocolViolation:
            return  # `on_frame` reports it when the frame is whole
        pending.tell_head(parsed)

    def on_ended(self, reason: errors.NeveError) -> None:
        if not self.welcome.done():
            self.welcome.set_exception(reason)
            self.welcome.exception()  # marks it as retrieved, because no task may await it
        self._lone.on_ended()
        calls, self.calls = self.calls, {}
        self.channel.connection_ended(self)  # first, because a callback below may begin another call at once
        for pending in calls.values():
            pending.end(None, errors.ConnectionLost(address=self.peer, detail=str(reason)))

    def on_writable(self) -> None:
        self.channel.pump()

    def _settle(self, pending: Pending, kind: int, message: bytes, attachment: memoryview) -> None:
        try:
            if kind == REPLY:
                reply = _new_reply(Reply, (parse(pending.method.reply, message), attachment))
            else:
                pending.end(None, errors.from_message(parse(common_pb2.Error, message)))
                return
        except errors.ProtocolViolation as violation:
            pending.end(None, violation)  # only this call: the frame around the answer was sound
            return
        pending.end(reply, None)


class WireChannel(Channel):
    """Calls to one address over one connection, which is made on first use and again after it was lost.

    While the address cannot be reached, calls fail at once with ConnectFailed. New attempts are at most a few seconds
    apart (exponential, with jitter), so that neither the callers nor the server are flooded.
    """

    def __init__(
        self,
        address: str,
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        token: str = "",
        tls: TlsFiles | None = None,
        agent: str = "",
        rng: random.Random | None = None,
        network: Network = SOCKETS,
    ) -> None:
        split_address(address)  # refuses a bad address now instead of at the first call
        self.address = address
        self.limits = limits
        self.network = network
        self._hello = encode(
            Kind.HELLO,
            message=wire_pb2.Hello(
                protocol_min=PROTOCOL_VERSION,
                protocol_max=PROTOCOL_VERSION,
                cluster=cluster,
                token=token,
                agent=agent,
            ).SerializeToString(),
        )
        self._cluster = cluster
        self._tls = tls
        self._tls_context = Reloading(tls, client_context) if tls is not None else None
        self._rng = rng or random.Random()
        self._connection: ClientConnection | None = None
        self._retired: dict[ClientConnection, None] = {}  # drained by the server: calls in flight may still be answered
        self._connecting: asyncio.Task[None] | None = None
        self.deadlines: Deadlines[Pending] | None = None
        self.queue: OrderedDict[int, Pending] = OrderedDict()  # not sent yet, oldest first
        self._call_ids = 0
        self._failures = 0
        self._retry_s = 0.0
        self._last_error: errors.NeveError | None = None
        self._closed = False
        # The server's limits, known after the first handshake.
        self._message_bytes_max = limits.message_bytes_max
        self._attachment_bytes_max = limits.attachment_bytes_max
        self._inflight_bytes_max = limits.connection_bytes_max
        self._calls_max = limits.connection_calls_max

    async def call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
    ) -> Reply[Rep]:
        future: asyncio.Future[Reply[Rep]] = asyncio.get_running_loop().create_future()
        begun = self.begin(
            *(method, request, partial(_settle, future)),
            timeout_s=timeout_s,
            attachment=attachment,
            reply_bytes_max=reply_bytes_max,
        )
        try:
            return await future
        except asyncio.CancelledError:
            begun.cancel()
            raise
        finally:
            # The error refers to this stack frame by its traceback, and the frame to the error by the future. Such a
            # cycle would keep the attachment of each failed call until the next garbage collection.
            del future

    def begin(
        self,
        method: Method[Req, Rep],
        request: Req | bytes,
        on_done: OnDone[Reply[Rep]],
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        attachment_crc32c: int | None = None,
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
        on_head: Callable[[Rep], None] | None = None,
    ) -> Begun:
        pending = Pending(self, method, on_done, on_head)
        try:
            if self._closed:
                raise errors.ConnectFailed(address=self.address, detail="this channel was closed")
            timeout_s = bounded_timeout_s(method, timeout_s)
            message = request if isinstance(request, bytes) else cast(Message, request).SerializeToString()
            pending.message = message
            size_bytes = 0
            if attachment:
                buffers = pending.attachment = byte_views(attachment)
                size_bytes = pending.attachment_bytes = attachment_bytes(buffers)
            message_bytes = len(message)
            if message_bytes > self._message_bytes_max or size_bytes > self._attachment_bytes_max:
                raise self._too_large(pending)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the call is said to its caller
            pending.end(None, error.with_traceback(None))  # avoids a reference cycle: see `call`
            return pending
        pending.attachment_crc = attachment_crc32c
        cost_bytes = pending.cost_bytes = PRELUDE_BYTES + message_bytes + size_bytes + reply_bytes_max
        timeout_ms = pending.timeout_ms = int(timeout_s * 1000)
        deadlines = self.deadlines
        if deadlines is None:
            deadlines = self.deadlines = Deadlines(asyncio.get_running_loop(), self._expired)
        deadline_s = pending.deadline_s = deadlines.now_s() + timeout_s
        pending.bucket = deadlines.add(pending, deadline_s)
        call_id = self._call_ids = pending.call_id = self._call_ids + 1
        connection = self._connection
        if connection is None or self.queue or not self._has_room(connection, cost_bytes):
            self.queue[call_id] = pending
            self.pump()
        else:
            connection.send_call(pending, timeout_ms)
        return pending

    def give_up(self, pending: Pending, error: BaseException) -> None:
        """End a call that its caller has given up, here and, if it was sent, at the server."""
        if pending.on_done is None:
            return
        if pending.connection is not None:
            pending.connection.forget(pending)
        elif self.queue.pop(pending.call_id, None) is not None:
            self.pump()  # the call waited for room: the next ones may fit
        pending.end(None, error)

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._fail_queued(errors.ConnectFailed(address=self.address, detail="this channel was closed"))
        connections = [*self._retired, *([self._connection] if self._connection else [])]
        for connection in connections:
            connection.end(errors.ConnectionLost(address=self.address, detail="this channel was closed"))
        await asyncio.gather(*(connection.closed for connection in connections))
        if self.deadlines is not None:
            self.deadlines.close()
            self.deadlines = None

    # --- the queue and its connection ------------------------------------------------------------------------

    def pump(self) -> None:
        """Send queued calls while there is room; make a connection if there is none."""
        queue = self.queue
        while queue:
            call_id, pending = next(iter(queue.items()))
            if self._connection is None:
                self._connect_soon()
                return
            if not self._has_room(self._connection, pending.cost_bytes):
                return
            del queue[call_id]
            # By the server's limits, which may have become known since.
            if len(pending.message) > self._message_bytes_max or pending.attachment_bytes > self._attachment_bytes_max:
                pending.end(None, self._too_large(pending))
            else:
                left_s = pending.deadline_s - self._connection.loop.time()
                self._connection.send_call(pending, int(left_s * 1000))

    def _has_room(self, connection: ClientConnection, cost_bytes: int) -> bool:
        if connection.write_paused or len(connection.calls) >= self._calls_max:
            return False
        inflight_bytes = connection.inflight_bytes
        return not inflight_bytes or inflight_bytes + cost_bytes <= self._inflight_bytes_max

    def retire(self, connection: ClientConnection) -> None:
        """The server wants no further calls on this connection. Calls in flight continue."""
        if self._connection is connection:
            self._connection = None
            self._retired[connection] = None
            self.pump()

    def connection_ended(self, connection: ClientConnection) -> None:
        self._retired.pop(connection, None)
        if self._connection is connection:
            self._connection = None
            if connection.answered:
                self._failures = 0
                self._last_error = None
            else:  # do not flood a server that repeatedly accepts and closes connections
                self._note_failure(_connect_failed(self.address, connection.ended))
            self.pump()  # calls that were never sent use a new connection

    # --- connecting ------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._connecting is not None:
            return
        loop = asyncio.get_running_loop()
        if self._last_error is not None and loop.time() < self._retry_s:
            self._fail_queued(self._last_error)
            return
        self._connecting = loop.create_task(self._connect())

    async def _connect(self) -> None:
        error: errors.NeveError
        try:
            connection = await self._handshake()
            if connection.going_away:
                connection.end(errors.ConnectionLost(address=self.address, detail="the server is going away"))
            if connection.ended is not None:
                raise connection.ended
        except errors.NeveError as failure:
            error = _connect_failed(self.address, failure)
        except TimeoutError:
            error = errors.ConnectFailed(address=self.address, detail="timed out")
        except OSError as failure:  # includes errors of TLS
            error = errors.ConnectFailed(address=self.address, detail=f"{type(failure).__name__}: {failure}")
        else:
            self._connecting = None
            self._connection = connection
            self.pump()
            return
        self._connecting = None
        self._note_failure(error)
        self._fail_queued(error)

    def _note_failure(self, error: errors.NeveError) -> None:
        """Delay the next attempt to connect to this address."""
        self._failures += 1
        if self._failures == 1:
            log.info("connect_failed address=%s error=%s", self.address, error)
        limits = self.limits
        delay_s = min(limits.reconnect_delay_s_max, limits.reconnect_delay_s_min * 2 ** min(self._failures, 20))
        self._retry_s = asyncio.get_running_loop().time() + delay_s * self._rng.uniform(0.5, 1.0)
        self._last_error = error

    async def _handshake(self) -> ClientConnection:
        host, port = split_address(self.address)
        context = self._tls_context.current() if self._tls_context is not None else None
        tls_name = (self._tls.server_name or host) if self._tls is not None else None
        async with asyncio.timeout(self.limits.connect_timeout_s):
            connection = await self.network.connect(
                lambda: ClientConnection(self, hello=self._hello), host, port, tls=context, tls_name=tls_name
            )
        try:
            async with asyncio.timeout(self.limits.handshake_timeout_s):
                welcome = await connection.welcome
        except TimeoutError:
            reason = errors.ConnectFailed(
                address=self.address, detail="the server did not answer the handshake in time"
            )
            connection.end(reason)
            raise reason from None
        except asyncio.CancelledError:
            connection.end(errors.ConnectionLost(address=self.address, detail="cancelled"))
            raise
        if welcome.protocol != PROTOCOL_VERSION or (self._cluster and welcome.cluster != self._cluster):
            reason = errors.ConnectFailed(address=self.address, detail=f"unexpected welcome: {welcome}")
            connection.end(reason)
            raise reason
        self._message_bytes_max = min(self.limits.message_bytes_max, welcome.message_bytes_max)
        self._attachment_bytes_max = min(self.limits.attachment_bytes_max, welcome.attachment_bytes_max)
        self._inflight_bytes_max = min(self.limits.connection_bytes_max, welcome.connection_bytes_max)
        self._calls_max = min(self.limits.connection_calls_max, welcome.connection_calls_max)
        connection.open_limits(self.limits.message_bytes_max, self.limits.attachment_bytes_max)
        return connection

    # --- ending calls ----------------------------------------------------------------------------------------

    def _too_large(self, pending: Pending) -> errors.TooLarge:
        if len(pending.message) > self._message_bytes_max:
            what, size_bytes, limit_bytes = "request", len(pending.message), self._message_bytes_max
        else:
            what, size_bytes, limit_bytes = "attachment", pending.attachment_bytes, self._attachment_bytes_max
        return errors.TooLarge(what=f"{what} of {pending.method.path}", size_bytes=size_bytes, limit_bytes=limit_bytes)

    def _expired(self, pending: Pending) -> None:
        error = errors.DeadlineExceeded(method=pending.method.path, timeout_ms=pending.timeout_ms)
        self.give_up(pending, error)

    def _fail_queued(self, error: errors.NeveError) -> None:
        queue, self.queue = self.queue, OrderedDict()
        for pending in queue.values():
            # A copy for each call: one exception raised in several tasks would mix up their tracebacks.
            pending.end(None, type(error)(**error.facts()))  # type: ignore[arg-type]


def _settle(future: asyncio.Future[Reply[Rep]], reply: Reply[Rep] | None, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled
    if reply is not None:
        future.set_result(reply)
    else:
        assert error is not None
        future.set_exception(error)


def _connect_failed(address: str, reason: errors.NeveError | None) -> errors.NeveError:
    """The error for calls without a connection. A connection that was lost before any call counts as never made."""
    if reason is None or isinstance(reason, (errors.ConnectionLost, errors.ShuttingDown)):
        return errors.ConnectFailed(address=address, detail=str(reason.detail or reason) if reason else "")
    return reason
