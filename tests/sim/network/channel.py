"""The caller's end of the simulated network: `SimChannel`, with the semantics of `rpc.wire.client`.

Invariants: requests leave in the order of the calls, also across waiting for a connection or for room;
            a call ends exactly once: reply, error, deadline, cancellation or the end of the connection;
            a call that was never sent ends as ConnectFailed (safe to repeat), one that was sent as ConnectionLost;
            while an address cannot be reached, calls fail at once until the next attempt is due, as on the wire.
Note:       A channel is a connection: two channels from one host to one address may reorder each other's calls, as two
            sockets do.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from neve.proto import common_pb2, errors, wire_pb2
from neve.proto.method import Method, Rep, Req
from neve.rpc.grpc_message import check_sizes
from neve.rpc.limits import Limits
from neve.rpc.service import REPLY_BYTES_DEFAULT, Buffer, Channel, Reply, bounded_timeout_s
from tests.sim.network.connection import Connection, End
from tests.sim.network.connection import Network as ConnectionNetwork
from tests.sim.network.frame import Frame, Kind, pack, unpack


class Network(ConnectionNetwork, Protocol):
    def connect(self, client: End, *, client_host: str, address: str, limits: Limits) -> Connection: ...


@dataclass(eq=False, slots=True, kw_only=True)
class _Pending:
    """A call that has not ended."""

    call_id: int
    method: Method[Any, Any]
    message: bytes
    attachment: bytes
    cost_bytes: int
    deadline_s: float
    future: asyncio.Future[Reply[Any]]
    session: _Session | None = None  # set when it was sent


class _Session:
    """One connection, from HELLO on; knows the calls that were sent on it."""

    def __init__(self, channel: SimChannel) -> None:
        self.channel = channel
        self.calls: dict[int, _Pending] = {}
        self.in_flight_bytes = 0
        self.welcomed = False
        self.connection: Connection | None = None
        # One bound for both steps of the wire's: reaching the host, and its answer to HELLO.
        timeout_s = channel.limits.connect_timeout_s + channel.limits.handshake_timeout_s
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._connect_timed_out, context=channel.context)

    def send_call(self, pending: _Pending) -> None:
        pending.session = self
        self.calls[pending.call_id] = pending
        self.in_flight_bytes += pending.cost_bytes
        self._send(
            Frame(
                kind=Kind.REQUEST,
                call_id=pending.call_id,
                method_id=pending.method.method_id,
                timeout_s=max(0.001, pending.deadline_s - asyncio.get_running_loop().time()),
                message=pending.message,
                attachment=pending.attachment,
            )
        )

    def forget(self, pending: _Pending) -> None:
        """The caller has given up: tell the server."""
        if self._take(pending.call_id) is not None:
            self._send(Frame(kind=Kind.CANCEL, call_id=pending.call_id))
            self.channel.pump()

    def close(self) -> None:
        self._timer.cancel()
        if self.connection is not None:
            self.connection.close_client()
        self._fail_calls("this channel was closed")

    # --- called by the connection ----------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.WELCOME:
            self._timer.cancel()
            self.welcomed = True
            self.channel.connected(self, unpack(wire_pb2.Welcome, frame.message))
        elif frame.kind is Kind.REFUSED:
            self._timer.cancel()
            assert self.connection is not None
            self.connection.close_client()
            self.channel.connect_failed(self, errors.from_message(unpack(common_pb2.Error, frame.message)))
        elif frame.kind is Kind.GOAWAY:
            self.channel.retire(self)
        else:
            pending = self._take(frame.call_id)
            if pending is not None and not pending.future.done():  # else: answered after its caller gave up
                self._settle(pending, frame)
            self.channel.pump()

    def on_ended(self, reason: str) -> None:
        self._timer.cancel()
        self._fail_calls(reason)
        if self.welcomed:
            self.channel.session_ended(self)
        else:
            error = errors.ConnectFailed(address=self.channel.address, detail=reason)
            self.channel.connect_failed(self, error)

    # --- inside ----------------------------------------------------------------------------------------------

    def _connect_timed_out(self) -> None:
        assert self.connection is not None
        self.connection.close_client()
        self.on_ended("timed out")

    def _settle(self, pending: _Pending, frame: Frame) -> None:
        if frame.kind is Kind.ERROR:
            pending.future.set_exception(errors.from_message(unpack(common_pb2.Error, frame.message)))
            return
        reply = unpack(pending.method.reply, frame.message)
        pending.future.set_result(Reply(reply, memoryview(frame.attachment)))

    def _take(self, call_id: int) -> _Pending | None:
        pending = self.calls.pop(call_id, None)
        if pending is not None:
            self.in_flight_bytes -= pending.cost_bytes
        return pending

    def _fail_calls(self, reason: str) -> None:
        calls, self.calls = self.calls, {}
        for pending in calls.values():
            if not pending.future.done():
                lost = errors.ConnectionLost(address=self.channel.address, detail=reason)
                pending.future.set_exception(lost)

    def _send(self, frame: Frame) -> None:
        assert self.connection is not None
        self.connection.send_to_server(frame)


class SimChannel(Channel):
    """Calls from one simulated host to one address."""

    calls_without_a_task = True

    def __init__(
        self, network: Network, *, client_host: str, address: str, cluster: str, limits: Limits, token: str
    ) -> None:
        self.address = address
        self.client_host = client_host
        self.limits = limits
        self._network = network
        self._hello = wire_pb2.Hello(cluster=cluster, token=token).SerializeToString()
        self._queue: dict[int, _Pending] = {}  # not sent yet, oldest first
        self._session: _Session | None = None
        self._connecting: _Session | None = None
        self._retired: dict[_Session, None] = {}  # the server drains: calls in flight may still be answered
        self._call_ids = 0
        self._failures = 0
        self._retry_s = 0.0
        self._last_error: errors.NeveError | None = None
        self._closed = False
        # Timers belong to whoever calls, also when a frame of somebody else has caused them.
        self.context = contextvars.copy_context()
        # What the server takes, too, once it is known.
        self._limits_both = limits

    async def call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
    ) -> Reply[Rep]:
        if self._closed:
            raise errors.ConnectFailed(address=self.address, detail="this channel was closed")
        loop = asyncio.get_running_loop()
        timeout_s = bounded_timeout_s(method, timeout_s)
        packed = pack(request, attachment, limits=self._limits_both, what=f"request of {method.path}")
        self._call_ids += 1
        pending = _Pending(
            call_id=self._call_ids,
            method=method,
            message=packed[0],
            attachment=packed[1],
            cost_bytes=len(packed[0]) + len(packed[1]) + reply_bytes_max,
            deadline_s=loop.time() + timeout_s,
            future=loop.create_future(),
        )
        timer = loop.call_at(pending.deadline_s, self._expired, pending, int(timeout_s * 1000))
        self._queue[pending.call_id] = pending
        self.pump()
        try:
            reply = await pending.future
        except asyncio.CancelledError:
            if pending.session is not None:
                pending.session.forget(pending)
            raise
        finally:
            timer.cancel()
            if self._queue.pop(pending.call_id, None) is not None:
                self.pump()  # it was given up while it waited for room: those behind may fit
        # The real wire may read the caller's buffers until the reply is there.
        assert b"".join(attachment) == pending.attachment, f"{method.path}: the attachment changed during the call"
        return reply

    async def close(self) -> None:
        self._closed = True
        self._fail_queued(errors.ConnectFailed(address=self.address, detail="this channel was closed"))
        for session in (self._session, self._connecting, *self._retired):
            if session is not None:
                session.close()
        self._session = self._connecting = None
        self._retired.clear()

    # --- called by the session -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what there is room for; make a connection if there is none."""
        while self._queue:
            call_id, pending = next(iter(self._queue.items()))
            if pending.future.done():
                del self._queue[call_id]
                continue
            session = self._session
            if session is None:
                self._connect_soon()
                return
            if len(session.calls) >= self.limits.connection_calls_max:
                return
            in_flight_bytes = session.in_flight_bytes
            if in_flight_bytes and in_flight_bytes + pending.cost_bytes > self.limits.connection_bytes_max:
                return
            del self._queue[call_id]
            try:
                check_sizes(
                    self._limits_both,  # the first call did not know them
                    f"request of {pending.method.path}",
                    message_bytes=len(pending.message),
                    attachment_bytes=len(pending.attachment),
                )
            except errors.TooLarge as error:
                pending.future.set_exception(error)
                continue
            session.send_call(pending)

    def connected(self, session: _Session, welcome: wire_pb2.Welcome) -> None:
        self._limits_both = dataclasses.replace(
            self.limits,
            message_bytes_max=min(self.limits.message_bytes_max, welcome.message_bytes_max),
            attachment_bytes_max=min(self.limits.attachment_bytes_max, welcome.attachment_bytes_max),
        )
        self._connecting = None
        self._failures = 0
        self._last_error = None
        self._session = session
        self.pump()

    def connect_failed(self, session: _Session, error: errors.NeveError) -> None:
        if self._connecting is not session:
            return
        self._connecting = None
        self._failures += 1
        limits = self.limits
        delay_s = min(limits.reconnect_delay_s_max, limits.reconnect_delay_s_min * 2 ** min(self._failures, 20))
        delay_s *= self._network.rng.uniform(0.5, 1.0)
        self._retry_s = asyncio.get_running_loop().time() + delay_s
        self._last_error = error
        self._fail_queued(error)

    def retire(self, session: _Session) -> None:
        if self._session is session:
            self._session = None
            self._retired[session] = None
            self.pump()

    def session_ended(self, session: _Session) -> None:
        self._retired.pop(session, None)
        if self._session is session:
            self._session = None
            self.pump()  # calls that were never sent deserve a new connection

    # --- inside ----------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._connecting is not None:
            return
        if self._last_error is not None and asyncio.get_running_loop().time() < self._retry_s:
            self._fail_queued(self._last_error)
            return
        session = self._connecting = _Session(self)
        session.connection = self._network.connect(
            session, client_host=self.client_host, address=self.address, limits=self.limits
        )
        session.connection.send_to_server(Frame(kind=Kind.HELLO, message=self._hello))

    def _expired(self, pending: _Pending, timeout_ms: int) -> None:
        if pending.future.done():
            return
        if pending.session is not None:
            pending.session.forget(pending)
        error = errors.DeadlineExceeded(method=pending.method.path, timeout_ms=timeout_ms)
        pending.future.set_exception(error)

    def _fail_queued(self, error: errors.NeveError) -> None:
        queue, self._queue = self._queue, {}
        for pending in queue.values():
            if not pending.future.done():
                # A copy for each: one exception raised in several tasks would mix up their tracebacks.
                pending.future.set_exception(errors.from_message(errors.to_message(error)))
