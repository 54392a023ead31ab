"""A simulated TCP connection: two pipes, two ends, and the ways in which it comes apart.

Invariants: an end that is over hears nothing more, and learns of it once;
            a cut is seen at once by the client only. The server may still receive what was on the way, later, and
            execute it: that is how a request sent again after ConnectionLost is executed twice;
            what stays stalled for `dead_peer_s` is given up by each end whose host runs, as beats do on the wire.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from neve.proto.errors import ConnectFailed, to_message
from tests.sim.network.frame import Frame, Kind
from tests.sim.network.link import Conditions, Pipe

_END = Frame(kind=Kind.END)


class End(Protocol):
    def on_frame(self, frame: Frame) -> None: ...

    def on_ended(self, reason: str) -> None:
        """Called once, unless this end closed the connection itself."""
        ...


class Listener(Protocol):
    def accept(self, connection: Connection, hello: Frame) -> End | None:
        """The server's end for a new connection; None when it was refused, which the client has been told."""
        ...


class Network(Conditions, Protocol):
    late_s_mean: float

    def listener(self, address: str) -> Listener | None: ...

    def forget(self, connection: Connection) -> None: ...


def host_of(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port:
        raise ValueError(f"{address!r} is not host:port")
    return host


class Connection:
    """Begins with the client's HELLO; `number` tells connections apart in the trace."""

    def __init__(
        self, network: Network, number: int, *, client_host: str, address: str, client: End, dead_peer_s: float
    ) -> None:
        self.client_host = client_host
        self.address = address
        self.peer = f"{client_host}#{number}"
        self._network = network
        self._number = number
        self._dead_peer_s = dead_peer_s
        self._client: End | None = client
        self._server: End | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        server_host = host_of(address)
        self._up = Pipe(network, f"#{number}", source=client_host, target=server_host, deliver=self._to_server)
        self._down = Pipe(network, f"#{number}", source=server_host, target=client_host, deliver=self._to_client)
        self.update()

    # --- the ends --------------------------------------------------------------------------------------------

    def send_to_server(self, frame: Frame) -> None:
        self._up.send(frame)
        self._after_sending(self._up)

    def send_to_client(self, frame: Frame) -> None:
        self._down.send(frame)
        self._after_sending(self._down)

    def close_client(self) -> None:
        """The client hangs up: what it had sent still arrives, then the end."""
        self._client = None
        self._down.shut()
        self._up.send(_END)
        self._forget_if_over()

    def close_server(self) -> None:
        self._server = None
        self._up.shut()
        self._down.send(_END)
        self._forget_if_over()

    # --- trouble ---------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The network, or the client's host, loses the connection."""
        self._network.note(f"cut #{self._number} {self.client_host} {self.address}")
        self._up.cut(late_s=self._draw_late_s())
        client, self._client = self._client, None
        self._down.shut()
        self._up.send(_END, extra_s=self._draw_late_s())  # until then its handlers go on
        self._forget_if_over()
        if client is not None:
            client.on_ended("the connection was cut")

    def void(self) -> None:
        """The client's process is gone, and was about to connect: nothing is sent, and what it waits for fails."""
        client, self._client = self._client, None
        self._up.shut()
        self._down.shut()
        self._forget_if_over()
        if client is not None:
            asyncio.get_running_loop().call_soon(client.on_ended, "this process is gone")

    def crash_server(self) -> None:
        """The server's process is gone; of what it had sent, a part arrives."""
        self._server = None
        self._up.shut()
        self._down.cut(late_s=0.0)
        self._down.send(_END)
        self._forget_if_over()

    @property
    def is_held(self) -> bool:
        """The client has not hung up, nor heard that it is over."""
        return self._client is not None

    def touches(self, host: str) -> bool:
        return host in (self._up.source, self._up.target)

    def update(self, *, healed: bool = False, resumed_host: str = "") -> None:
        """Conditions have changed: go on where possible, and watch what is stalled."""
        for pipe in (self._up, self._down):
            if resumed_host and resumed_host == pipe.source:
                pipe.depart()
            if healed or (resumed_host and resumed_host == pipe.target):
                pipe.catch_up()
            else:
                pipe.pump()
        stalled = any(
            pipe.lost or pipe.is_stalled() or self._network.is_paused(pipe.source) for pipe in (self._up, self._down)
        )
        if stalled and self._stall_timer is None and not self._is_over():
            self._stall_timer = asyncio.get_running_loop().call_later(self._dead_peer_s, self._give_up)
        elif not stalled and self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._forget_if_over()

    # --- inside ----------------------------------------------------------------------------------------------

    def _to_server(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            listener = self._network.listener(self.address)
            if listener is None:
                refused = to_message(ConnectFailed(address=self.address, detail="connection refused"))
                self.send_to_client(Frame(kind=Kind.REFUSED, message=refused.SerializeToString()))
            else:
                self._server = listener.accept(self, frame)
        elif frame.kind is Kind.END:
            server = self._server
            self.close_server()
            if server is not None:
                server.on_ended("closed by the peer")
        elif self._server is not None:
            self._server.on_frame(frame)

    def _to_client(self, frame: Frame) -> None:
        if frame.kind is Kind.END:
            client = self._client
            self.close_client()
            if client is not None:
                client.on_ended("closed by the peer")
        elif self._client is not None:
            self._client.on_frame(frame)

    def _give_up(self) -> None:
        """Nothing was heard for too long. A paused host cannot notice: it hears the rest when it resumes."""
        self._stall_timer = None
        reason = f"nothing heard for {self._dead_peer_s:g} s"
        client, server = self._client, self._server
        if client is not None and not self._network.is_paused(self.client_host):
            self._network.note(f"dead_peer #{self._number} at client")
            self.close_client()
            client.on_ended(reason)
        if server is not None and not self._network.is_paused(host_of(self.address)):
            self._network.note(f"dead_peer #{self._number} at server")
            self.close_server()
            server.on_ended(reason)
        if self._client is None and self._server is None:
            self._up.shut()
            self._down.shut()
        self.update()  # an end on a paused host is watched on

    def _after_sending(self, pipe: Pipe) -> None:
        if pipe.lost and self._stall_timer is None:
            self.update()

    def _draw_late_s(self) -> float:
        return self._network.rng.expovariate(1 / self._network.late_s_mean)

    def _is_over(self) -> bool:
        return self._client is None and self._server is None and self._up.is_empty() and self._down.is_empty()

    def _forget_if_over(self) -> None:
        if self._is_over():
            if self._stall_timer is not None:
                self._stall_timer.cancel()
                self._stall_timer = None
            self._network.forget(self)
