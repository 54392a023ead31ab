"""Replies whose attachment is in a file: sent by the kernel from there, or as bytes, and never wrongly.

Here the file's bytes and those of the view differ, which they never do elsewhere, so that a caller sees whose came.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neve.proto import errors
from neve.rpc.limits import KIB, MIB
from neve.rpc.service import Call, Reply, Service
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.file_sender import FILE_BYTES_MIN
from neve.rpc.wire.server import WireServer
from tests.proto import methods
from tests.proto import testing_pb2 as pb
from tests.unit.rpc.certs import Authority

FILE_BYTES = 32 * MIB  # more than a socket takes at once
START = 5  # of what is sent: at no page's beginning
BY_FILE, BY_VIEW = b"f", b"v"


class Part:
    """As `rpc.service.FileBytes` says."""

    def __init__(self, descriptor: int | None, size_bytes: int) -> None:
        self.offset = START
        self.view = memoryview(BY_VIEW * size_bytes)
        self.problems: list[str] = []
        self._descriptor = descriptor

    def descriptor(self) -> int | None:
        return self._descriptor

    def unreadable(self, detail: str) -> None:
        self.problems.append(detail)


class Servicer:
    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self.parts: list[Part] = []

    async def do(self, request: pb.DoRequest, call: Call) -> pb.DoReply:
        if request.reply_bytes:
            part = Part(self.descriptor, request.reply_bytes)
            self.parts.append(part)
            call.attach_file(part, own_checksums=True)
        if request.text == "and more":
            call.attach(b"more", own_checksums=True)
        return pb.DoReply(text=request.text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"#" * START + BY_FILE * FILE_BYTES)
    return path


@contextlib.asynccontextmanager
async def serving(
    path: Path, *, tls: TlsFiles | None = None, trusted: TlsFiles | None = None
) -> AsyncIterator[tuple[Servicer, WireServer, WireChannel]]:
    descriptor = os.open(path, os.O_RDONLY)
    servicer = Servicer(descriptor)
    server = WireServer([Service([methods.CONFORMANCE_DO], servicer)], cluster="c", tls=tls)
    channel = WireChannel(await server.start("127.0.0.1", 0), cluster="c", tls=trusted)
    try:
        yield servicer, server, channel
    finally:
        await channel.close()
        await server.stop(0.0)
        os.close(descriptor)


async def do(channel: WireChannel, reply_bytes: int = 0, **request: Any) -> Reply[pb.DoReply]:
    message = pb.DoRequest(reply_bytes=reply_bytes, **request)
    return await channel.call(methods.CONFORMANCE_DO, message, timeout_s=20.0, reply_bytes_max=reply_bytes + MIB)


@pytest.mark.parametrize("size_bytes", [FILE_BYTES_MIN, FILE_BYTES_MIN + 1, 2 * MIB + 8])
async def test_a_large_attachment_that_is_in_a_file_is_taken_from_there(path: Path, size_bytes: int) -> None:
    async with serving(path) as (_, _, channel):
        reply = await do(channel, size_bytes, text="behind it")
        assert bytes(reply.attachment) == BY_FILE * size_bytes
        assert reply.message.text == "behind it"


async def test_small_ones_and_those_whose_file_is_closed_are_sent_as_bytes(path: Path) -> None:
    async with serving(path) as (servicer, _, channel):
        assert bytes((await do(channel, FILE_BYTES_MIN - 1)).attachment) == BY_VIEW * (FILE_BYTES_MIN - 1)
        servicer.descriptor = None
        assert bytes((await do(channel, MIB)).attachment) == BY_VIEW * MIB


async def test_a_file_beside_other_bytes_is_sent_as_bytes(path: Path) -> None:
    async with serving(path) as (_, _, channel):
        assert bytes((await do(channel, MIB, text="and more")).attachment) == BY_VIEW * MIB + b"more"


async def test_what_a_socket_does_not_take_at_once_goes_on_as_bytes_where_the_file_stopped(path: Path) -> None:
    async with serving(path) as (_, _, channel):
        payload = bytes((await do(channel, FILE_BYTES)).attachment)
        from_file = payload.rstrip(BY_VIEW)
        assert len(payload) == FILE_BYTES
        assert 0 < len(from_file) < FILE_BYTES, "the rest has to go another way for this test to mean anything"
        assert from_file == BY_FILE * len(from_file)


async def test_replies_of_all_kinds_in_one_connection_come_whole(path: Path) -> None:
    sizes = [0, FILE_BYTES_MIN, 10, 3 * MIB, 0, FILE_BYTES_MIN - 1, 8 * MIB, 70 * KIB] * 4
    async with serving(path) as (_, _, channel):
        replies = await asyncio.gather(*(do(channel, size, text=str(at)) for at, size in enumerate(sizes)))
    for at, (reply, size) in enumerate(zip(replies, sizes, strict=True)):
        assert (reply.message.text, len(reply.attachment)) == (str(at), size)
        assert bytes(reply.attachment).strip(BY_VIEW).strip(BY_FILE) == b""


async def test_a_file_that_ends_too_early_ends_the_connection_and_never_makes_a_reply(path: Path) -> None:
    async with serving(path) as (servicer, _, channel):
        await do(channel)  # a connection that was of use is made again at once
        os.truncate(path, START + MIB)
        with pytest.raises(errors.ConnectionLost):
            await do(channel, 2 * MIB)
        assert servicer.parts[-1].problems == [f"the file ends at {START + MIB}"]
        assert bytes((await do(channel, MIB)).attachment) == BY_FILE * MIB  # by another connection


async def test_a_descriptor_that_cannot_be_sent_from_is_left_alone(path: Path) -> None:
    async with serving(path) as (servicer, _, channel):
        read_end, write_end = os.pipe()  # sendfile takes none
        servicer.descriptor = read_end
        try:
            assert bytes((await do(channel, MIB)).attachment) == BY_VIEW * MIB
        finally:
            os.close(read_end)
            os.close(write_end)


async def test_under_tls_it_is_sent_as_bytes(path: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "snow")
    cert, key = authority.issue("server")
    tls, trusted = TlsFiles(cert=cert, key=key), TlsFiles(ca=authority.ca)
    async with serving(path, tls=tls, trusted=trusted) as (_, _, channel):
        assert bytes((await do(channel, MIB)).attachment) == BY_VIEW * MIB


async def test_a_connection_that_has_sent_files_is_closed_like_any_other(path: Path) -> None:
    """The peer hears of the end only when no descriptor of the socket is left."""
    async with serving(path) as (_, server, channel):
        await do(channel)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await do(channel, MIB)
            (connection,) = server.connections
            connection.end(errors.ConnectionLost(address="", detail="enough"))
            await asyncio.wait_for(connection.closed, 20.0)
            await do(channel)  # by another connection, which has taken the place of this one
        assert len(os.listdir("/proc/self/fd")) == descriptors
