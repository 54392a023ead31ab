"""The server side of the wire: accepts connections (server_connection.py) and holds their shared state.

Invariants: an error on a connection or in a handler ends at most that connection or that call;
            the bytes of requests in flight and of reserved replies are bounded over all connections;
            a draining server finishes the calls that it has begun, up to a grace time, and begins no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from neve.proto import errors
from neve.rpc.auth import AllowAll, Authenticator
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import Service, merge_routes
from neve.rpc.tls import Reloading, TlsFiles, server_context
from neve.rpc.wire.budget import ByteBudget
from neve.rpc.wire.buffers import ChunkPool
from neve.rpc.wire.frame import Kind, encode
from neve.rpc.wire.network import SOCKETS, Incoming, Listener, Network
from neve.rpc.wire.server_busy_poll import BusyPoller, PollPermit
from neve.rpc.wire.server_connection import ServerConnection

log = logging.getLogger(__name__)

UNSENT_POLL_S = 0.005
ACCEPT_RETRY_S = 0.1  # after an error of accept, such as too many open files


class WireServer:
    """Serves `services` on one or more addresses.

    `stop` first lets calls in flight finish, up to a grace time, while new ones are refused as ShuttingDown.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        authenticator: Authenticator | None = None,
        tls: TlsFiles | None = None,
        network: Network = SOCKETS,
    ) -> None:
        self.routes = merge_routes(services)
        self.cluster = cluster
        self.limits = limits
        self.authenticator = authenticator or AllowAll()
        self.pool = ChunkPool()
        self.reply_budget = ByteBudget(limits.server_bytes_max)
        self.request_bytes = 0
        # In the order of arrival, like `connections`: the one that has waited longest gets room first.
        self.held: dict[ServerConnection, None] = {}  # connections that wait for room for a frame
        self._resuming = False  # `resume_held` is running
        self._room_again = False  # more room was freed meanwhile
        self.connections: dict[ServerConnection, None] = {}
        self.draining = False
        self.busy_poller: BusyPoller | None = None  # once it listens, unless polling is off
        self._tls = Reloading(tls, server_context) if tls is not None else None
        self._network = network
        self._listeners: list[Listener] = []
        self._acceptors: list[asyncio.Task[None]] = []
        self._admitting: set[asyncio.Task[None]] = set()
        # Of calls, also of connections that have ended: tasks, and the clean-up of handlers that run without one.
        self.tasks: set[asyncio.Future[None]] = set()
        self._idle = asyncio.Event()

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes a free one. Returns the address."""
        loop = asyncio.get_running_loop()
        if self.busy_poller is None and self.limits.awake_s and self._network.busy_polling:
            self.busy_poller = BusyPoller(loop, PollPermit(), poll_s=self.limits.awake_s)
        listener = self._network.listen(host, port)
        self._listeners.append(listener)
        self._acceptors.append(loop.create_task(self._accept(listener)))
        return listener.address

    async def stop(self, grace_s: float | None = None) -> None:
        """Drain and close; idempotent."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.cancel()
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._acceptors.clear()
        self._listeners.clear()
        if self.busy_poller is not None:
            self.busy_poller.close()
        for admission in self._admitting:
            admission.cancel()  # still in its handshake, so the server owes nothing to its peer
        for connection in list(self.connections):
            connection.send(encode(Kind.GOAWAY))
        await self._drain(self.limits.drain_timeout_s if grace_s is None else grace_s)
        connections = list(self.connections)
        for connection in connections:
            for call in list(connection.calls.values()):
                call.cancel()
        if self.tasks:
            _, stubborn = await asyncio.wait(self.tasks, timeout=self.limits.drain_timeout_s)
            if stubborn:
                log.error("handlers_ignore_cancellation count=%d: they are left behind", len(stubborn))
        for connection in connections:
            connection.end(errors.ShuttingDown(), last_words=True)
        closed = [connection.closed for connection in connections]
        await asyncio.gather(*closed, *self._admitting, return_exceptions=True)

    async def _drain(self, grace_s: float) -> None:
        """Wait until every call is answered and the kernel has taken the answers, or the grace time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        try:
            async with asyncio.timeout_at(deadline_s):
                while any(connection.calls for connection in self.connections):
                    self._idle.clear()
                    await self._idle.wait()
                # No event reports that the kernel has taken the last byte.
                while any(connection.unsent_bytes() for connection in self.connections):  # noqa: ASYNC110
                    await asyncio.sleep(UNSENT_POLL_S)
        except TimeoutError:
            calls = sum(len(connection.calls) for connection in self.connections)
            unsent_bytes = sum(connection.unsent_bytes() for connection in self.connections)
            log.warning("drain_timed_out calls=%d unsent_bytes=%d: they are dropped", calls, unsent_bytes)

    # --- connections -----------------------------------------------------------------------------------------

    def connection_ended(self, connection: ServerConnection) -> None:
        self.connections.pop(connection, None)
        self.call_finished()

    def call_finished(self) -> None:
        if self.draining and not any(connection.calls for connection in self.connections):
            self._idle.set()

    def resume_held(self) -> None:
        """Give room to waiting connections until one does not fit.

        An admitted request may be answered at once, which frees room and calls this method again. That inner call only
        sets a flag for the outer one; otherwise every waiting connection would add a level to the stack.
        """
        self._room_again = True
        if self._resuming:
            return
        self._resuming = True
        try:
            while self._room_again:
                self._room_again = False
                for connection in list(self.held):
                    if self.request_bytes >= self.limits.server_bytes_max:
                        break
                    connection.resume_if_admitted()
        finally:
            self._resuming = False

    # --- accepting -------------------------------------------------------------------------------------------

    async def _accept(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                incoming = await listener.accept()
            except OSError as error:  # no descriptor is left, or the peer has already disconnected
                log.warning("accept_failed error=%s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self.connections) + len(self._admitting) >= self.limits.connections_max:
                log.warning(
                    "connection_refused peer=%s reason=%d connections are the limit",
                    incoming.peer,
                    len(self.connections),
                )
                incoming.close()
                continue
            task = loop.create_task(self._admit(incoming))
            self._admitting.add(task)
            task.add_done_callback(self._admitting.discard)

    async def _admit(self, incoming: Incoming) -> None:
        # Made first, because with TLS the loop returns a protocol of its own around this one.
        connection = ServerConnection(self, peer=incoming.peer)
        try:
            context = self._tls.current() if self._tls is not None else None
            await incoming.attach(connection, tls=context, tls_timeout_s=self.limits.handshake_timeout_s)
        except (OSError, asyncio.CancelledError) as error:
            log.warning("connection_refused peer=%s reason=%s: %s", incoming.peer, type(error).__name__, error)
            connection.end(errors.ConnectionLost(address=incoming.peer, detail="the handshake failed"))
            incoming.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        if connection.ended is None:
            self.connections[connection] = None
            if self.draining:
                connection.end(errors.ShuttingDown(), last_words=True)
