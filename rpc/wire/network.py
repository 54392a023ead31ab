"""What carries the bytes of wire connections: the seam below `WireChannel` and `WireServer`.

`SOCKETS` is the operating system's network, TCP with or without TLS. The simulator has one of its own, so that its
stories run the same client and server code as real processes. A network only makes connections: asyncio's transports
carry their bytes, so a call passes no layer of this module.

Invariants: a connection that cannot be made or accepted raises OSError, of which ssl.SSLError is a kind;
            the protocol's `connection_made` has run when `connect` or `attach` returns.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from neve.rpc.wire.sockets import join_address, tune

P = TypeVar("P", bound=asyncio.BufferedProtocol)


class Incoming(Protocol):
    """A connection that a listener has accepted and that has no protocol yet."""

    @property
    def peer(self) -> str:
        """The caller's address, for logs."""

    async def attach(
        self, protocol: asyncio.BufferedProtocol, *, tls: ssl.SSLContext | None, tls_timeout_s: float
    ) -> None: ...

    def close(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> str: ...

    async def accept(self) -> Incoming: ...

    def close(self) -> None: ...


class Network(Protocol):
    @property
    def busy_polling(self) -> bool:
        """Whether a loop gains time if it polls this network instead of sleeping."""

    async def connect(
        self, make_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None, tls_name: str | None
    ) -> P:
        """Connect, and return the protocol. `tls_name`: whom the server's certificate must name."""

    def listen(self, host: str, port: int) -> Listener:
        """Listen on an address; port 0 takes a free one."""


class _SocketIncoming:
    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock

    async def attach(
        self, protocol: asyncio.BufferedProtocol, *, tls: ssl.SSLContext | None, tls_timeout_s: float
    ) -> None:
        tune(self._sock)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol, self._sock, ssl=tls, ssl_handshake_timeout=tls_timeout_s if tls is not None else None
        )

    def close(self) -> None:
        self._sock.close()


class _SocketListener:
    def __init__(self, sock: socket.socket) -> None:
        bound = sock.getsockname()
        self.address = join_address(bound[0], bound[1])
        self._sock = sock

    async def accept(self) -> Incoming:
        sock, peer = await asyncio.get_running_loop().sock_accept(self._sock)
        return _SocketIncoming(sock, join_address(peer[0], peer[1]))

    def close(self) -> None:
        self._sock.close()


class _Sockets:
    busy_polling = True

    async def connect(
        self, make_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None, tls_name: str | None
    ) -> P:
        transport, protocol = await asyncio.get_running_loop().create_connection(
            make_protocol, host, port, ssl=tls, server_hostname=tls_name
        )
        sock = cast(socket.socket | None, transport.get_extra_info("socket"))
        assert sock is not None
        tune(sock)
        return protocol

    def listen(self, host: str, port: int) -> Listener:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=1024)
        sock.setblocking(False)
        return _SocketListener(sock)


SOCKETS: Network = _Sockets()
