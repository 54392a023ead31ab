"""Peers for tests of the wire: a servicer that does what it is told, raw sockets, and a proxy that damages bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from neve.proto import wire_pb2
from neve.proto.crc import crc32c
from neve.rpc.limits import Limits
from neve.rpc.service import Call, Service
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.frame import PRELUDE_BYTES, PROTOCOL_VERSION, Kind, Prelude, decode_prelude, encode
from neve.rpc.wire.server import WireServer
from tests.proto import methods
from tests.proto import testing_pb2 as pb

CLUSTER = "test"

OWN_CHECKSUMS = "own checksums"  # as a request's text: the attachment that comes back is said to have some


class Servicer:
    """Counts what runs at the same time, so that bounds can be seen."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0
        self.running_max = 0
        self.release = asyncio.Event()

    async def do(self, request: pb.DoRequest, call: Call) -> pb.DoReply:
        self.started += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        sequence = self.started
        try:
            if request.reply_bytes:
                await call.reserve_reply(request.reply_bytes)
                call.attach(bytes(request.reply_bytes))
            if request.delay_ms:
                await asyncio.sleep(request.delay_ms / 1000)
            if request.echo_attachment:
                call.attach(call.attachment, own_checksums=request.text == OWN_CHECKSUMS)
            return pb.DoReply(text=request.text, sequence=sequence, attachment_crc32c=crc32c(call.attachment))
        finally:
            self.running -= 1

    async def hang(self, request: pb.HangRequest, call: Call) -> pb.HangReply:
        self.started += 1
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return pb.HangReply()


@contextlib.asynccontextmanager
async def serving(limits: Limits, **options: Any) -> AsyncIterator[tuple[WireServer, str, Servicer]]:
    servicer = Servicer()
    service = Service([methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG], servicer)
    server = WireServer([service], cluster=CLUSTER, limits=limits, **options)
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address, servicer
    finally:
        await server.stop(0.0)


@contextlib.asynccontextmanager
async def calling(address: str, limits: Limits, **options: Any) -> AsyncIterator[WireChannel]:
    channel = WireChannel(address, cluster=CLUSTER, limits=limits, **options)
    try:
        yield channel
    finally:
        await channel.close()


def hello_frame(*, cluster: str = CLUSTER, token: str = "", agent: str = "") -> bytes:
    hello = wire_pb2.Hello(
        protocol_min=PROTOCOL_VERSION, protocol_max=PROTOCOL_VERSION, cluster=cluster, token=token, agent=agent
    )
    return encode(Kind.HELLO, message=hello.SerializeToString())


def welcome_frame() -> bytes:
    welcome = wire_pb2.Welcome(
        protocol=PROTOCOL_VERSION,
        cluster=CLUSTER,
        message_bytes_max=1 << 20,
        attachment_bytes_max=1 << 30,
        connection_bytes_max=1 << 30,
        connection_calls_max=1000,
    )
    return encode(Kind.WELCOME, message=welcome.SerializeToString())


def request_frame(request: pb.DoRequest, *, call_id: int = 1, attachment: bytes = b"") -> bytes:
    head = encode(
        Kind.REQUEST,
        call_id=call_id,
        method_id=methods.CONFORMANCE_DO.method_id,
        timeout_ms=200_000,
        message=request.SerializeToString(),
        attachment=[attachment],
        attachment_bytes=len(attachment),
    )
    return head + attachment


async def read_frame(reader: asyncio.StreamReader) -> tuple[Prelude, bytes]:
    """The next frame; IncompleteReadError at the end of the stream."""
    head = await reader.readexactly(PRELUDE_BYTES)
    prelude = decode_prelude(head, 1 << 24, 1 << 30)
    return prelude, await reader.readexactly(prelude.body_bytes)


@contextlib.asynccontextmanager
async def raw_client(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any],
) -> AsyncIterator[str]:
    """A server that behaves as `handle` does; its connections end with the test."""
    writers: list[asyncio.StreamWriter] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await handle(reader, writer)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def damaging_proxy(address: str, *, flip_at: int, bit: int) -> AsyncIterator[str]:
    """Passes bytes both ways, and flips one bit of what the server sends."""
    host, _, port = address.rpartition(":")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, int(port))

        async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, damage: int) -> None:
            position = 0
            while data := bytearray(await source.read(65536)):
                if 0 <= damage - position < len(data):
                    data[damage - position] ^= 1 << bit
                position += len(data)
                sink.write(data)
            sink.close()

        tasks = [
            asyncio.ensure_future(forward(reader, server_writer, -1)),
            asyncio.ensure_future(forward(server_reader, writer, flip_at)),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            server_writer.transport.abort()

    async with raw_server(handle) as proxied:
        yield proxied
