"""What a hostile, broken or slow peer can do to the wire: end its own connection, and nothing else.

Each test keeps a second, honest connection to the same server and sees that it goes on working.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from neve.proto import errors
from neve.proto.blocks import encode_block, verify
from neve.proto.crc import crc32c
from neve.rpc.auth import AllowAll
from neve.rpc.limits import Limits
from neve.rpc.wire import frame
from neve.rpc.wire.frame import HANDSHAKE_BYTES_MAX, PRELUDE_BYTES, Kind, encode
from tests.proto import methods
from tests.proto import testing_pb2 as pb
from tests.unit.rpc.wire.wire_peers import (
    OWN_CHECKSUMS,
    calling,
    damaging_proxy,
    hello_frame,
    raw_client,
    read_frame,
    request_frame,
    serving,
)

LIMITS = Limits(message_bytes_max=100_000, attachment_bytes_max=1_000_000)
QUICK = Limits(handshake_timeout_s=0.2, frame_timeout_s=0.3, keepalive_s=0.1, dead_peer_s=5.0)


async def closed_by_server(reader: asyncio.StreamReader) -> list[int]:
    """Wait for the end of the stream; the kinds of the frames before it."""
    kinds = []
    try:
        async with asyncio.timeout(30):
            while True:
                prelude, _ = await read_frame(reader)
                kinds.append(prelude.kind)
    except (asyncio.IncompleteReadError, ConnectionError):
        return kinds


@pytest.mark.parametrize("mode", ["flip", "cut"])
async def test_a_request_damaged_at_every_byte_never_crashes_the_server_nor_is_executed(mode: str) -> None:
    request = request_frame(pb.DoRequest(text="a request", echo_attachment=True), attachment=b"attached bytes")
    async with serving(LIMITS) as (server, address, servicer), calling(address, LIMITS) as honest:
        for position in range(len(request)):
            if mode == "flip":
                damaged = bytearray(request)
                damaged[position] ^= 1 << (position % 8)
            else:
                damaged = bytearray(request[:position])
            async with raw_client(address) as (reader, writer):
                writer.write(hello_frame() + damaged)
                if mode == "cut":
                    writer.write_eof()
                kinds = await closed_by_server(reader)
            assert Kind.REPLY not in kinds, position
        assert servicer.started == 0
        reply = await honest.call(methods.CONFORMANCE_DO, pb.DoRequest(text="fine"), timeout_s=10)
        assert reply.message.text == "fine"
        # Nothing is left of the broken ones.
        assert len(server.connections) == 1
        assert server.request_bytes == 0


async def test_a_reply_damaged_at_every_byte_never_yields_a_wrong_answer() -> None:
    attachment = b"attached bytes"
    async with serving(LIMITS) as (_, address, _):
        async with raw_client(address) as (reader, writer):  # how many bytes does the server send?
            writer.write(
                hello_frame() + request_frame(pb.DoRequest(text="x", echo_attachment=True), attachment=attachment)
            )
            sent = 0
            for _ in range(2):
                prelude, body = await read_frame(reader)
                sent += 36 + len(body)
        assert prelude.kind == Kind.REPLY
        right = refused = 0
        for position in range(sent):
            limits = Limits(handshake_timeout_s=5.0)
            async with (
                damaging_proxy(address, flip_at=position, bit=position % 8) as proxied,
                calling(proxied, limits) as channel,
            ):
                request = pb.DoRequest(text="x", echo_attachment=True)
                try:
                    reply = await channel.call(methods.CONFORMANCE_DO, request, timeout_s=30, attachment=[attachment])
                except errors.TransportError:
                    refused += 1
                else:
                    right += 1
                    assert reply.message.text == "x"
                    assert bytes(reply.attachment) == attachment
        assert refused == sent  # every byte is covered by a checksum
        assert right == 0


async def test_blocks_damaged_on_the_way_are_refused_by_the_transport_or_by_their_own_checksums() -> None:
    """A reply whose attachment is not covered by its frame: every flipped bit is found all the same."""
    attachment = encode_block(b"attached bytes") + encode_block(b"")
    request = pb.DoRequest(text=OWN_CHECKSUMS, echo_attachment=True)
    async with serving(LIMITS) as (_, address, _):
        async with raw_client(address) as (reader, writer):
            writer.write(hello_frame() + request_frame(request, attachment=attachment))
            sent = 0
            for _ in range(2):
                prelude, body = await read_frame(reader)
                sent += PRELUDE_BYTES + len(body)
        assert (prelude.kind, prelude.flags, prelude.attachment_crc) == (Kind.REPLY, frame.OWN_CHECKSUMS, 0)
        left_to_the_caller = 0
        for position in range(sent):
            async with (
                damaging_proxy(address, flip_at=position, bit=position % 8) as proxied,
                calling(proxied, Limits(handshake_timeout_s=5.0)) as channel,
            ):
                try:
                    reply = await channel.call(methods.CONFORMANCE_DO, request, timeout_s=30, attachment=[attachment])
                except errors.TransportError:
                    continue
                left_to_the_caller += 1
                assert reply.message.text == OWN_CHECKSUMS
                assert verify(reply.attachment) is not None
        assert left_to_the_caller == len(attachment)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n",
        b"\x16\x03\x01" + bytes(100),  # the start of a TLS handshake
        bytes(1000),
        request_frame(pb.DoRequest(text="before hello")),
        encode(Kind.BEAT),
        hello_frame(agent="x" * (HANDSHAKE_BYTES_MAX + 1)),
        encode(Kind.HELLO, message=b"\xff\xff\xff"),
    ],
    ids=["http", "tls", "zeros", "no-hello", "beat-first", "huge-hello", "unparsable-hello"],
)
async def test_garbage_closes_that_connection_and_names_the_reason(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="neve.rpc.wire")
    async with serving(LIMITS) as (server, address, servicer), calling(address, LIMITS) as honest:
        await honest.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=10)
        async with raw_client(address) as (reader, writer):
            writer.write(garbage)
            kinds = await closed_by_server(reader)
        assert Kind.WELCOME not in kinds
        assert [record.getMessage() for record in caplog.records if "connection_violated" in record.getMessage()]
        assert servicer.started == 1
        assert (await honest.call(methods.CONFORMANCE_DO, pb.DoRequest(text="on"), timeout_s=10)).message.text == "on"
        assert len(server.connections) == 1


async def test_a_silent_peer_is_dropped_after_the_handshake_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(QUICK) as (server, address, _), raw_client(address) as (reader, _):
        assert await closed_by_server(reader) == []
        assert server.connections == {}
    assert any("no HELLO within" in record.getMessage() for record in caplog.records)


async def test_a_peer_that_sends_a_frame_too_slowly_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(QUICK) as (server, address, servicer), raw_client(address) as (reader, writer):
        writer.write(hello_frame())
        slow = request_frame(pb.DoRequest(text="slow"))

        async def drip() -> None:
            for byte in slow[:-1]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.ensure_future(drip())
        kinds = await closed_by_server(reader)
        dripping.cancel()
        assert Kind.REPLY not in kinds
        assert servicer.started == 0
        assert server.request_bytes == 0
    assert any("a frame took longer" in record.getMessage() for record in caplog.records)


async def test_an_unauthenticated_peer_gets_nothing_but_the_reason() -> None:
    class Nobody(AllowAll):
        def authenticate(self, token: str) -> str:
            raise errors.Unauthenticated(detail="the token is not known here")

    async with serving(LIMITS, authenticator=Nobody()) as (server, address, servicer):
        async with raw_client(address) as (reader, writer):
            writer.write(hello_frame(token="guess") + request_frame(pb.DoRequest(text="anyway")))
            kinds = await closed_by_server(reader)
        assert kinds == [Kind.ERROR]
        assert servicer.started == 0
        async with calling(address, LIMITS, token="guess") as channel:
            with pytest.raises(errors.Unauthenticated, match="not known"):
                await channel.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=10)
        assert server.connections == {}


async def test_an_unparsable_request_in_a_sound_frame_fails_that_call_alone() -> None:
    async with serving(LIMITS) as (_, address, _), raw_client(address) as (reader, writer):
        bad = encode(
            Kind.REQUEST, call_id=1, method_id=methods.CONFORMANCE_DO.method_id, timeout_ms=1000, message=b"\xff\xff"
        )
        writer.write(hello_frame() + bad + request_frame(pb.DoRequest(text="good"), call_id=2))
        kinds = [(await read_frame(reader))[0] for _ in range(3)]
        assert [(prelude.kind, prelude.call_id) for prelude in kinds] == [
            (Kind.WELCOME, 0),
            (Kind.ERROR, 1),
            (Kind.REPLY, 2),
        ]


async def test_a_call_id_used_twice_at_once_is_a_violation() -> None:
    async with serving(LIMITS) as (_, address, _), raw_client(address) as (reader, writer):
        slow = request_frame(pb.DoRequest(delay_ms=60_000), call_id=5)
        writer.write(hello_frame() + slow + slow)
        kinds = await closed_by_server(reader)
        assert kinds == [Kind.WELCOME, Kind.ERROR]


async def test_connections_over_the_limit_are_refused_and_the_others_live() -> None:
    limits = Limits(connections_max=2)
    async with (
        serving(limits) as (server, address, _),
        calling(address, limits) as first,
        calling(address, limits) as second,
        calling(address, limits) as third,
    ):
        for channel in (first, second):
            await channel.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=10)
        with pytest.raises(errors.ConnectFailed):
            await third.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=10)
        assert len(server.connections) == 2
        data = bytes(range(256)) * 100
        reply = await first.call(methods.CONFORMANCE_DO, pb.DoRequest(), timeout_s=10, attachment=[data])
        assert reply.message.attachment_crc32c == crc32c(data)
