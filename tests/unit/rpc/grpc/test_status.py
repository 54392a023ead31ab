"""gRPC's own failures, as our errors. These pin the texts of gRPC's core that rpc/grpc/status.py reads."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest

from neve.proto import diagnostics_pb2, errors, methods
from neve.rpc.grpc.client import GrpcChannel
from neve.rpc.grpc.status import ERROR_TRAILER, status_of, to_error

FACTS = {"address": "host:1", "method": "/s/m", "timeout_ms": 5}


def failure(code: grpc.StatusCode, details: str = "", trailer: bytes | None = None) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata() if trailer is None else grpc.aio.Metadata((ERROR_TRAILER, trailer))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, None)


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: x", errors.ConnectFailed),
        ("UNAVAILABLE", "DNS resolution failed for nowhere:1", errors.ConnectFailed),
        ("UNAVAILABLE", "Socket closed", errors.ConnectionLost),
        ("UNAVAILABLE", "a text of a later version", errors.ConnectionLost),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.DeadlineExceeded),
        ("UNIMPLEMENTED", "Method not found!", errors.Unimplemented),
        ("CANCELLED", "", errors.ConnectionLost),
        ("UNAUTHENTICATED", "said a proxy", errors.Unauthenticated),
        ("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", errors.Overloaded),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (20 vs. 10)", errors.TooLarge),
        ("RESOURCE_EXHAUSTED", "said a proxy", errors.UnknownError),
        ("INTERNAL", "Received RST_STREAM with error code 2", errors.UnknownError),
        ("UNKNOWN", "", errors.UnknownError),
    ],
)
def test_a_failure_without_trailer_is_read_pessimistically(
    code: str, details: str, expected: type[errors.NeveError]
) -> None:
    error = to_error(failure(grpc.StatusCode[code], details), **FACTS)  # type: ignore[arg-type]
    assert type(error) is expected


def test_the_trailer_counts_more_than_the_status() -> None:
    sent = errors.Gap(extent_id=3, offset=10, length=5)
    trailer = errors.to_message(sent).SerializeToString()
    error = to_error(failure(grpc.StatusCode.UNAVAILABLE, "Socket closed", trailer), **FACTS)  # type: ignore[arg-type]
    assert type(error) is errors.Gap
    assert error.facts() == sent.facts()


def test_a_trailer_that_is_no_error_is_unknown() -> None:
    error = to_error(failure(grpc.StatusCode.INTERNAL, "", b"\xff\xff\xff"), **FACTS)  # type: ignore[arg-type]
    assert type(error) is errors.UnknownError


@pytest.mark.parametrize("cls", errors.all_errors().values(), ids=lambda cls: cls.__name__)
def test_unavailable_is_said_only_of_what_was_not_executed(cls: type[errors.NeveError]) -> None:
    status = status_of(cls())
    assert status is not grpc.StatusCode.OK
    if status is grpc.StatusCode.UNAVAILABLE:
        assert cls.retriable
        assert not cls.outcome_unknown
    if cls.outcome_unknown:
        assert status in (
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )


async def test_a_peer_that_hangs_up_after_the_request_leaves_the_outcome_unknown() -> None:
    """Speaks just enough HTTP/2 to get a request, then closes the connection."""
    hung_up = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # an empty SETTINGS frame
        received = b""
        while b"x" * 500 not in received and (chunk := await reader.read(65536)):
            received += chunk
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    channel = GrpcChannel(address, cluster="c")
    try:
        with pytest.raises(errors.ConnectionLost) as caught:
            await channel.call(methods.DIAGNOSTICS_ECHO, diagnostics_pb2.EchoRequest(text="x" * 500), timeout_s=30)
        assert caught.value.outcome_unknown
        assert hung_up.is_set()
    finally:
        await channel.close()
        server.close()
        await server.wait_closed()


async def test_nobody_listening_is_connect_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    channel = GrpcChannel(f"127.0.0.1:{port}", cluster="c")
    try:
        with pytest.raises(errors.ConnectFailed) as caught:
            await channel.call(methods.DIAGNOSTICS_ECHO, diagnostics_pb2.EchoRequest(), timeout_s=30)
        assert caught.value.address == f"127.0.0.1:{port}"
        # gRPC's exception holds the call, and the call its connection: an error that is kept must not keep those.
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    finally:
        await channel.close()
