"""What the conformance tests share: one servicer, and the transports behind one face.

A test gets a `Transport`, opens it with `async with`, serves and calls; whatever it made is closed at the end. The wire
over the simulator's network runs on the deterministic loop (see `transport` in conftest.py), the wire over sockets and
gRPC on uvloop and loopback.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from neve.proto.crc import crc32c
from neve.proto.errors import NeveError, TransportError, from_message
from neve.rpc.auth import Authenticator
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import Call, Channel, Reply, Service
from neve.rpc.tls import TlsFiles
from tests.proto import methods, testing_pb2
from tests.sim import loop as sim_loop
from tests.sim.network.network import SimNetwork

CLUSTER = "conformance"

# Ends a test that hangs. No test waits for it to pass.
PATIENCE_S = 30.0

FOREVER_S = 10_000.0


class Servicer:
    """Does what it is told, and remembers what happened."""

    def __init__(self) -> None:
        self.sequence = 0
        self.hanging = 0
        self.hangs_cancelled = 0
        self.changed = asyncio.Event()
        self.release = asyncio.Event()  # what a request with the text "hold" waits for
        self.error: NeveError | None = None  # raised as it is, where a message could not carry it

    def service(self) -> Service:
        """Without a servicer for `Nobody`."""
        return Service((methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG), self)

    async def do(self, request: testing_pb2.DoRequest, call: Call) -> testing_pb2.DoReply:
        self.sequence += 1
        sequence = self.sequence
        self.changed.set()
        assert not request.payload, "a servicer never sees the payload"
        if request.delay_ms:
            await asyncio.sleep(request.delay_ms / 1000)
        if request.text == "hold":
            await self.release.wait()
        if request.crash:
            raise RuntimeError("told to crash")
        if self.error is not None:
            raise self.error
        if request.HasField("fail_with"):
            raise from_message(request.fail_with)
        if request.echo_attachment:
            call.attach(call.attachment)
        if request.reply_bytes:
            call.attach(pattern(request.reply_bytes), own_checksums=request.text == "own checksums")
        return testing_pb2.DoReply(
            text=request.text,
            sequence=sequence,
            attachment_crc32c=crc32c(call.attachment),
            remaining_ms=int((call.deadline_s - asyncio.get_running_loop().time()) * 1000),
            principal=call.principal,
        )

    async def hang(self, request: testing_pb2.HangRequest, call: Call) -> testing_pb2.HangReply:
        self.hanging += 1
        self.changed.set()
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            self.hangs_cancelled += 1
            self.changed.set()
            raise
        raise AssertionError("slept to the end")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that this servicer remembers has become true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def pattern(size_bytes: int) -> bytes:
    """Bytes in which no part can be taken for another."""
    return b"".join(index.to_bytes(4, "little") for index in range(size_bytes // 4 + 1))[:size_bytes]


@dataclass(frozen=True, slots=True)
class Server:
    address: str
    stop: Callable[[float], Awaitable[None]]


class Transport(ABC):
    """Servers and channels of one transport, closed when the test ends."""

    keeps_order = True  # do handlers start in the order of the calls?

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._channels: list[Channel] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            await channel.close()
        for server in self._servers:
            await server.stop(0.0)

    async def serve(
        self,
        servicer: Servicer,
        *,
        address: str = "",
        limits: Limits = DEFAULT_LIMITS,
        authenticator: Authenticator | None = None,
        tls: TlsFiles | None = None,
    ) -> Server:
        server = await self._serve(
            [servicer.service()],
            address,
            {"cluster": CLUSTER, "limits": limits, "authenticator": authenticator, "tls": tls},
        )
        self._servers.append(server)
        return server

    def channel(
        self,
        server: Server,
        *,
        cluster: str = CLUSTER,
        limits: Limits = DEFAULT_LIMITS,
        token: str = "",
        tls: TlsFiles | None = None,
    ) -> Channel:
        channel = self._channel(server.address, {"cluster": cluster, "limits": limits, "token": token, "tls": tls})
        self._channels.append(channel)
        return channel

    @abstractmethod
    async def _serve(self, services: list[Service], address: str, options: dict[str, Any]) -> Server: ...

    @abstractmethod
    def _channel(self, address: str, options: dict[str, Any]) -> Channel: ...


class WireTransport(Transport):
    async def _serve(self, services: list[Service], address: str, options: dict[str, Any]) -> Server:
        from neve.rpc.wire.server import WireServer

        server = WireServer(services, **options)
        return Server(await server.start(*_split(address)), server.stop)

    def _channel(self, address: str, options: dict[str, Any]) -> Channel:
        from neve.rpc.wire.client import WireChannel

        return WireChannel(address, **options)


class GrpcTransport(Transport):
    keeps_order = False

    async def _serve(self, services: list[Service], address: str, options: dict[str, Any]) -> Server:
        from neve.rpc.grpc.server import GrpcServer

        server = GrpcServer(services, **options)
        return Server(await server.start(*_split(address)), server.stop)

    def _channel(self, address: str, options: dict[str, Any]) -> Channel:
        from neve.rpc.grpc.client import GrpcChannel

        return GrpcChannel(address, **options)


class MemoryTransport(Transport):
    """The wire over simulated byte streams."""

    options: ClassVar[dict[str, Any]] = {}

    async def __aenter__(self) -> Self:
        self.network = SimNetwork(sim_loop.current().rng, **self.options)
        return self

    async def _serve(self, services: list[Service], address: str, options: dict[str, Any]) -> Server:
        assert options.pop("tls") is None
        server = self.network.serve(address or "server:7000", services, **options)
        return Server(server.address, server.stop)

    def _channel(self, address: str, options: dict[str, Any]) -> Channel:
        assert options.pop("tls") is None
        return self.network.channel("client", address, **options)


class RaggedTransport(MemoryTransport):
    """Reads end in the middle of frames, and little is on the way before writers have to wait."""

    options: ClassVar[dict[str, Any]] = {"ragged": True, "window_bytes": 3000, "write_buffer_bytes_max": 1000}


def _split(address: str) -> tuple[str, int]:
    host, _, port = (address or "127.0.0.1:0").rpartition(":")
    return host, int(port)


async def do(
    channel: Channel, *, attachment: Any = (), timeout_s: float = PATIENCE_S, reply_bytes_max: int = 4096, **fields: Any
) -> Reply[testing_pb2.DoReply]:
    request = testing_pb2.DoRequest(**fields)
    return await channel.call(
        methods.CONFORMANCE_DO,
        request,
        timeout_s=timeout_s,
        attachment=attachment,
        reply_bytes_max=reply_bytes_max,
    )


async def hang(channel: Channel, *, timeout_s: float = PATIENCE_S) -> Reply[testing_pb2.HangReply]:
    return await channel.call(methods.CONFORMANCE_HANG, testing_pb2.HangRequest(), timeout_s=timeout_s)


async def do_until_answered(channel: Channel) -> Reply[testing_pb2.DoReply]:
    """Repeat while the server cannot be reached: for tests in which it comes back."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await do(channel, text="again")
            except TransportError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)
