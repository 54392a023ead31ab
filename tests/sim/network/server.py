"""The servicer's end of the simulated network: runs real handlers, with the semantics of `rpc.wire.server`.

Invariants: handlers of a connection start in the order in which their requests arrived;
            a crashed server sends nothing more, whatever its cancelled handlers still do;
            a draining server finishes what it has begun, up to a grace time, and begins nothing.
Not here:   what a crash leaves on disk; that is the disk's matter.

A crash cancels handlers, and Python runs their `finally` clauses: what those write to a simulated disk must be refused
by the disk, which has crashed too.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from neve.proto import errors, wire_pb2
from neve.rpc.auth import Authenticator
from neve.rpc.limits import Limits
from neve.rpc.service import Call, Route, Service, merge_routes
from tests.sim.network.connection import Connection, host_of
from tests.sim.network.frame import Frame, Kind, pack, unpack

log = logging.getLogger(__name__)


class Network(Protocol):
    def unlisten(self, address: str) -> None: ...

    def pause(self, host: str) -> None: ...

    def resume(self, host: str) -> None: ...


class SimServer:
    """Serves `services` at one simulated address until it is stopped or crashes."""

    def __init__(
        self,
        network: Network,
        address: str,
        services: Sequence[Service],
        *,
        cluster: str,
        limits: Limits,
        authenticator: Authenticator,
    ) -> None:
        self.address = address
        self.limits = limits
        self.routes = merge_routes(services)
        self.draining = False
        self._network = network
        self._cluster = cluster
        self._authenticator = authenticator
        self._sessions: dict[_Session, None] = {}
        # Handlers belong to whoever serves, not to the caller whose frame started them.
        self.context = contextvars.copy_context()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those in flight finish within `grace_s`, then cancel them."""
        if not self.draining:
            self.draining = True
            self._network.unlisten(self.address)
        for session in self._sessions:
            session.connection.send_to_client(Frame(kind=Kind.GOAWAY))
        tasks = [task for session in self._sessions for task in session.calls.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in (task for task in tasks if task in late):  # in order: a set has none
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for session in [*self._sessions]:
            session.connection.close_server()
            session.on_ended("the server has stopped")

    def crash(self) -> None:
        """The process dies: handlers are cancelled, connections end, and what was not sent never will be."""
        if not self.draining:
            self.draining = True
            self._network.unlisten(self.address)
        for session in [*self._sessions]:
            session.connection.crash_server()
            session.on_ended("the server has crashed")

    def pause(self) -> None:
        """Pause the server's host: see `SimNetwork.pause`."""
        self._network.pause(host_of(self.address))

    def resume(self) -> None:
        self._network.resume(host_of(self.address))

    # --- called by connections -------------------------------------------------------------------------------

    def accept(self, connection: Connection, hello: Frame) -> _Session | None:
        try:
            greeting = unpack(wire_pb2.Hello, hello.message)
            if greeting.cluster and greeting.cluster != self._cluster:
                raise errors.WrongCluster(expected=self._cluster, got=greeting.cluster)
            principal = self._authenticator.authenticate(greeting.token)
        except errors.NeveError as refusal:
            message = errors.to_message(refusal).SerializeToString()
            connection.send_to_client(Frame(kind=Kind.REFUSED, message=message))
            return None
        session = _Session(self, connection, principal)
        self._sessions[session] = None
        welcome = wire_pb2.Welcome(
            cluster=self._cluster,
            message_bytes_max=self.limits.message_bytes_max,
            attachment_bytes_max=self.limits.attachment_bytes_max,
        )
        connection.send_to_client(Frame(kind=Kind.WELCOME, message=welcome.SerializeToString()))
        return session

    def session_ended(self, session: _Session) -> None:
        self._sessions.pop(session, None)


class _Session:
    """An accepted connection and the calls that it has open."""

    def __init__(self, server: SimServer, connection: Connection, principal: str) -> None:
        self.connection = connection
        self.calls: dict[int, asyncio.Task[None]] = {}
        self._server = server
        self._principal = principal
        self._ended = False

    def on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.CANCEL:
            if frame.call_id in self.calls:
                self.calls[frame.call_id].cancel()
            return
        assert frame.kind is Kind.REQUEST, frame
        route = self._server.routes.get(frame.method_id)
        if self._server.draining:
            self._send_error(frame, errors.ShuttingDown())
        elif route is None:
            self._send_error(frame, errors.Unimplemented(method=f"{frame.method_id:#06x}"))
        else:
            context = self._server.context.copy()
            task = asyncio.get_running_loop().create_task(self._run(route, frame), context=context)
            self.calls[frame.call_id] = task
            # Not by a `finally` in the task: one that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self.calls.pop(frame.call_id))

    def on_ended(self, reason: str) -> None:
        self._ended = True
        self._server.session_ended(self)
        for task in self.calls.values():
            task.cancel()

    async def _run(self, route: Route, frame: Frame) -> None:
        path = route.method.path
        call = Call(
            route.method,
            attachment=memoryview(frame.attachment),
            deadline_s=asyncio.get_running_loop().time() + frame.timeout_s,
            principal=self._principal,
            peer=self.connection.peer,
        )
        scope = asyncio.timeout_at(call.deadline_s)
        try:
            request = unpack(route.method.request, frame.message)
            async with scope:
                reply = await route.handler(request, call)
            self._send_reply(route, frame, reply, call)
        except errors.NeveError as error:
            self._send_error(frame, error)
        except asyncio.CancelledError:
            self._send_error(frame, errors.Cancelled(detail="the server cancelled the call"))
        except Exception as error:  # a bug in one handler must not end the server
            if isinstance(error, TimeoutError) and scope.expired():
                error = errors.DeadlineExceeded(method=path, timeout_ms=int(frame.timeout_s * 1000))
            else:
                log.exception("handler_failed method=%s peer=%s", path, self.connection.peer)
            self._send_error(frame, error)

    def _send_reply(self, route: Route, request: Frame, reply: Any, call: Call) -> None:
        if not isinstance(reply, route.method.reply):
            raise errors.Internal(detail=f"{route.method.path} answered with a {type(reply).__name__}")
        what = f"reply of {route.method.path}"
        try:
            message, attachment = pack(reply, call.reply_attachment, limits=self._server.limits, what=what)
        except errors.InvalidArgument as error:  # here it is the servicer's mistake, not the caller's
            raise errors.Internal(detail=str(error)) from error
        self._send(_answer(Kind.REPLY, request, message, attachment))

    def _send_error(self, request: Frame, error: BaseException) -> None:
        self._send(_answer(Kind.ERROR, request, errors.to_message(error).SerializeToString()))

    def _send(self, frame: Frame) -> None:
        if not self._ended:
            self.connection.send_to_client(frame)


def _answer(kind: Kind, request: Frame, message: bytes, attachment: bytes = b"") -> Frame:
    """The wire's answers do not say which method they are of; here whoever looks on shall know."""
    return Frame(
        kind=kind, call_id=request.call_id, method_id=request.method_id, message=message, attachment=attachment
    )
