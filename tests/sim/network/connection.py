"""A simulated TCP connection: two pipes, two ends, how it is made, and the ways in which it comes apart.

Invariants: a cut is seen at once by the client only. The server may still receive what was on the way, later, and
            execute it: that is how a request sent again after ConnectionLost is executed twice;
            a host that never answers costs the caller the time that it is prepared to wait.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from tests.sim.network.frames import Calls, FrameDecoder, Methods
from tests.sim.network.pipe import Conditions, Mark, Pipe
from tests.sim.network.transport import Host, SimTransport


class Listener(Protocol):
    def arrived(self, connection: Connection) -> None: ...


class Network(Conditions, Host, Protocol):
    late_s_mean: float
    methods: Methods

    def listener(self, address: str) -> Listener | None: ...

    def runs_since_s(self, host: str) -> float: ...

    def forget(self, connection: Connection) -> None: ...


def host_of(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port:
        raise ValueError(f"{address!r} is not host:port")
    return host


class Connection:
    """Begins when the client calls; `number` tells connections apart in the trace."""

    def __init__(self, network: Network, number: int, *, client_host: str, address: str) -> None:
        self.client_host = client_host
        self.address = address
        self.peer = f"{client_host}#{number}"
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._network = network
        self._number = number
        server_host, name = host_of(address), f"#{number}"
        self.calls = Calls(f"{client_host} to {address}", wrong=network.wrong, runs_since_s=self._server_runs_since_s)
        self.client = SimTransport(network, client_host, on_over=self._on_over)
        self.server = SimTransport(network, server_host, on_over=self._on_over)
        self._up = Pipe(
            *(network, name),
            source=client_host,
            target=server_host,
            receive=self.server.arrived,
            decoder=FrameDecoder(network.methods, self.calls),
        )
        self._down = Pipe(
            *(network, name),
            source=server_host,
            target=client_host,
            receive=self.client.arrived,
            decoder=FrameDecoder(network.methods, self.calls),
        )
        self.client.out = self.server.into = self._up
        self.server.out = self.client.into = self._down
        self._up.on_room, self._down.on_room = self.client.on_room, self.server.on_room
        self.server.on_mark, self.client.on_mark = self._on_call, self._on_answer
        self.client.reached = True
        self._up.send(Mark.CONNECT)

    # --- how it is made --------------------------------------------------------------------------------------

    def _on_call(self, mark: Mark) -> None:
        assert mark is Mark.CONNECT, mark
        self.server.reached = True
        listener = self._network.listener(self.address)
        if listener is None:
            self._down.send(Mark.REFUSED)
            self.server.finish(None)
        else:
            self._down.send(Mark.ACCEPTED)
            listener.arrived(self)

    def _on_answer(self, mark: Mark) -> None:
        if self.accepted.done():
            return
        if mark is Mark.ACCEPTED:
            self.accepted.set_result(None)
        else:
            self.accepted.set_exception(ConnectionRefusedError(f"{self.address} refused the connection"))
            self.client.finish(None)

    # --- how it ends -----------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The network, or the client's host, loses the connection."""
        self._network.note(f"cut #{self._number} {self.client_host} {self.address}")
        if not self.client.over:
            self._up.cut(late_s=self._draw_late_s())
            self._break(self.client, extra_s=self._draw_late_s())  # until then its handlers go on

    def crash_server(self) -> None:
        """The server's process is gone; of what it had sent, a part arrives."""
        if not self.server.over:
            self._down.cut(late_s=0.0)
            self._break(self.server)

    @property
    def is_held(self) -> bool:
        """The client has not hung up, nor heard that it is over."""
        return not self.client.over

    def touches(self, host: str) -> bool:
        return host in (self.client_host, self.server.host)

    def heal(self) -> None:
        """A partition between the two hosts is over."""
        self._up.catch_up()
        self._down.catch_up()

    def resume(self, host: str, *, late: bool) -> None:
        """A host that was paused runs again. `late`: what was sent to it arrives from now on."""
        for end in (self.client, self.server):
            if end.host == host and not end.over:
                end.out.depart()
                if late:
                    end.into.catch_up()
                end.resume_host()

    # --- inside ----------------------------------------------------------------------------------------------

    def _break(self, end: SimTransport, *, extra_s: float = 0.0) -> None:
        error = ConnectionResetError("the connection was cut")
        if end is self.client and not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # it may be that nobody waits for it any more
        end.finish(error, extra_s=extra_s)

    def _draw_late_s(self) -> float:
        return self._network.rng.expovariate(1 / self._network.late_s_mean)

    def _server_runs_since_s(self) -> float:
        """Since when the server has been able to answer."""
        if self.server.write_paused or self._network.is_paused(self.server.host):
            return math.inf
        return max(self._network.runs_since_s(self.server.host), self.server.writable_since_s)

    def _on_over(self) -> None:
        """An end is over. What is on the way to the other one keeps the connection until that is over, too."""
        self.calls.end()
        never_reached = self.client.over and not self.server.reached and (self._up.lost or self._up.is_empty())
        if self.client.over and (self.server.over or never_reached):
            self._up.shut()
            self._down.shut()
            self._network.forget(self)
