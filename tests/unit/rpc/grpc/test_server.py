"""What only gRPC has: foreign clients, health, reflection, and statuses beside our errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from neve.proto import errors
from neve.rpc.auth import TokenFile
from neve.rpc.grpc.client import GrpcChannel
from neve.rpc.grpc.server import GrpcServer
from neve.rpc.grpc.status import ERROR_TRAILER
from neve.rpc.limits import MIB, Limits
from neve.rpc.service import Call, Service
from tests.proto import methods, testing_pb2
from tests.unit.rpc.conformance import CLUSTER, PATIENCE_S, Servicer, do, do_until_answered, pattern

CONFORMANCE = "neve.testing.Conformance"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def serving(*services: Service, **options: Any) -> AsyncIterator[tuple[GrpcServer, str]]:
    server = GrpcServer(services or [Servicer().service()], cluster=CLUSTER, **options)
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def foreign(address: str) -> AsyncIterator[Any]:
    """A gRPC client that knows nothing of us. Any: the stubs lack the defaults that gRPC has."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel


@asynccontextmanager
async def ours(address: str, **options: Any) -> AsyncIterator[GrpcChannel]:
    channel = GrpcChannel(address, cluster=CLUSTER, **options)
    try:
        yield channel
    finally:
        await channel.close()


async def unary(channel: Any, path: str, request: Any, reply: Any, **options: Any) -> Any:
    call = channel.unary_unary(
        path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
    )
    return await call(request, timeout=PATIENCE_S, **options)


async def check_health(channel: Any, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    path = "/grpc.health.v1.Health/Check"
    status: int = (await unary(channel, path, request, health_pb2.HealthCheckResponse)).status
    return status


async def test_a_foreign_client_sends_and_gets_the_payload_as_a_field() -> None:
    async with serving() as (_, address), foreign(address) as channel:
        request = testing_pb2.DoRequest(text="hi", echo_attachment=True, payload=pattern(5000))
        reply = await unary(channel, f"/{CONFORMANCE}/Do", request, testing_pb2.DoReply)
        assert (reply.text, reply.payload) == ("hi", pattern(5000))


async def test_a_foreign_client_gets_a_status_it_understands_and_the_error_in_a_trailer() -> None:
    sent = errors.NotFound(kind="stream", name="s1", detail="x" * 1900)
    async with serving() as (_, address), foreign(address) as channel:
        request = testing_pb2.DoRequest(fail_with=errors.to_message(sent))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, f"/{CONFORMANCE}/Do", request, testing_pb2.DoReply)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (caught.value.details() or "").startswith("no such stream: s1")
        trailer: Any = caught.value.trailing_metadata()
        assert dict(trailer)[ERROR_TRAILER] == errors.to_message(sent).SerializeToString()


async def test_a_caller_without_deadline_is_given_one() -> None:
    seen: list[float] = []

    class Recorder(Servicer):
        async def do(self, request: testing_pb2.DoRequest, call: Call) -> testing_pb2.DoReply:
            seen.append(call.deadline_s - asyncio.get_running_loop().time())
            return await super().do(request, call)

    async with serving(Recorder().service()) as (_, address), foreign(address) as channel:
        await channel.unary_unary(f"/{CONFORMANCE}/Do")(b"")
        assert 0 < seen[0] < 60.1


async def test_bytes_that_are_no_message_are_refused_and_harm_nobody() -> None:
    async with serving() as (_, address), foreign(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{CONFORMANCE}/Do")(b"\xff\xff\xff", timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with ours(address) as known:
            assert (await do(known, text="alive")).message.text == "alive"


async def test_more_calls_than_the_bound_are_overloaded_which_is_safe_to_repeat() -> None:
    servicer = Servicer()
    async with serving(servicer.service(), calls_max=2) as (_, address), ours(address) as channel:
        held = [asyncio.create_task(do(channel, text="hold")) for _ in range(2)]
        await servicer.until(lambda: servicer.sequence == 2)
        with pytest.raises(errors.Overloaded) as caught:
            await do(channel)
        assert caught.value.retriable
        assert not caught.value.outcome_unknown
        assert servicer.sequence == 2
        servicer.release.set()
        await asyncio.gather(*held)
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_more_bytes_than_the_bound_are_overloaded() -> None:
    servicer = Servicer()
    limits = Limits(server_bytes_max=2 * MIB)
    async with serving(servicer.service(), limits=limits) as (_, address), ours(address) as channel:
        held = asyncio.create_task(do(channel, text="hold", attachment=[bytes(3 * MIB)]))  # alone, it may
        await servicer.until(lambda: servicer.sequence == 1)
        with pytest.raises(errors.Overloaded):
            await do(channel)
        servicer.release.set()
        await held
        assert (await do(channel, text="alive")).message.text == "alive"


async def test_more_connections_than_the_bound_are_refused_until_one_ends() -> None:
    async with serving(limits=Limits(connections_max=1)) as (_, address):
        async with ours(address) as first:
            await do(first)
            async with ours(address) as second:
                with pytest.raises(errors.TransportError) as caught:
                    await do(second)
                assert caught.value.retriable
            assert (await do(first, text="alive")).message.text == "alive"
        async with ours(address) as third:
            assert (await do_until_answered(third)).message.text == "again"


async def test_large_replies_wait_for_room() -> None:
    class Reserving(Servicer):
        reserved = 0
        peak = 0

        async def do(self, request: testing_pb2.DoRequest, call: Call) -> testing_pb2.DoReply:
            await call.reserve_reply(MIB)
            self.reserved += 1
            self.peak = max(self.peak, self.reserved)
            await asyncio.sleep(0.001)
            self.reserved -= 1
            return testing_pb2.DoReply()

    servicer = Reserving()
    limits = Limits(server_bytes_max=3 * MIB)
    async with serving(servicer.service(), limits=limits) as (_, address), ours(address) as channel:
        await asyncio.gather(*(do(channel) for _ in range(20)))
        assert 1 <= servicer.peak <= 3


async def test_a_reply_with_an_attachment_but_no_payload_field_is_internal() -> None:
    class Mistaken(Servicer):
        async def hang(self, request: testing_pb2.HangRequest, call: Call) -> testing_pb2.HangReply:
            call.attach(b"nowhere to go")
            return testing_pb2.HangReply()

    async with serving(Mistaken().service()) as (_, address), ours(address) as channel:
        with pytest.raises(errors.Internal, match="no payload"):
            await channel.call(methods.CONFORMANCE_HANG, testing_pb2.HangRequest(), timeout_s=PATIENCE_S)


async def test_a_request_without_payload_field_takes_no_attachment() -> None:
    async with serving() as (_, address), ours(address) as channel:
        with pytest.raises(errors.InvalidArgument, match="payload"):
            await channel.call(
                methods.CONFORMANCE_HANG, testing_pb2.HangRequest(), timeout_s=PATIENCE_S, attachment=[b"x"]
            )


async def test_a_handler_that_times_out_inside_is_a_bug_not_a_deadline() -> None:
    class Impatient(Servicer):
        async def do(self, request: testing_pb2.DoRequest, call: Call) -> testing_pb2.DoReply:
            raise TimeoutError("of something else")

    async with serving(Impatient().service()) as (_, address), ours(address) as channel:
        with pytest.raises(errors.Internal, match="of something else"):
            await do(channel)


async def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = GrpcServer([Servicer().service()], cluster=CLUSTER)
        with pytest.raises(OSError, match="cannot listen"):
            await server.start("127.0.0.1", taken.getsockname()[1])


async def test_two_servers_never_share_a_port() -> None:
    async with serving() as (_, address):
        second = GrpcServer([Servicer().service()], cluster=CLUSTER)
        with pytest.raises(OSError, match="cannot listen"):
            await second.start("127.0.0.1", int(address.rpartition(":")[2]))


# --- health and reflection -----------------------------------------------------------------------------------


async def test_health_follows_set_serving_for_the_whole_and_for_each_service() -> None:
    async with serving() as (server, address), foreign(address) as channel:
        assert await check_health(channel, "") == SERVING
        assert await check_health(channel, CONFORMANCE) == SERVING
        await server.set_serving(False)
        assert await check_health(channel, "") == NOT_SERVING
        assert await check_health(channel, CONFORMANCE) == NOT_SERVING
        await server.set_serving(True)
        assert await check_health(channel, "") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check_health(channel, "neve.NoSuchService")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_health_watcher_is_told_when_the_server_begins_to_stop() -> None:
    servicer = Servicer()
    async with serving(servicer.service()) as (server, address), foreign(address) as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(server.stop(PATIENCE_S))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        await stopping


async def test_reflection_lists_our_services_and_has_their_descriptors() -> None:
    async with serving() as (_, address), foreign(address) as channel:
        services, files = await reflect(channel)
        assert {CONFORMANCE, "grpc.health.v1.Health"} <= services
        assert "tests/proto/testing.proto" in files
        assert "neve/proto/common.proto" in files


async def test_only_health_checks_need_no_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice secret\n")
    async with serving(authenticator=TokenFile(tokens)) as (_, address), foreign(address) as channel:
        assert await check_health(channel, "") == SERVING
        watch, mirror = channel.unary_stream("/grpc.health.v1.Health/Watch"), channel.stream_stream(REFLECTION)
        wrong = [("authorization", "Bearer wrong")]
        for refused in (watch(b"", timeout=PATIENCE_S), mirror(timeout=PATIENCE_S), mirror(metadata=wrong)):
            assert await refused.code() is grpc.StatusCode.UNAUTHENTICATED
        services, _ = await reflect(channel, token="secret")
        assert CONFORMANCE in services


async def reflect(channel: Any, *, token: str = "") -> tuple[set[str], set[str]]:
    """Names of the services, and of the files that describe the first of them."""
    stream = channel.stream_stream(
        REFLECTION,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=CONFORMANCE),
    ]
    metadata = [("authorization", f"Bearer {token}")] if token else None
    listed, described = [answer async for answer in stream(iter(requests), timeout=PATIENCE_S, metadata=metadata)]
    files = described.file_descriptor_response.file_descriptor_proto
    return (
        {service.name for service in listed.list_services_response.service},
        {FileDescriptorProto.FromString(file).name for file in files},
    )


async def test_a_reply_counts_against_the_bound_until_grpc_is_done_with_it() -> None:
    """A client that stops reading must not let replies pile up: what is reserved is held until the call is over."""
    limits = Limits(server_bytes_max=4 * MIB, connection_bytes_max=4 * MIB)
    servicer = Servicer()
    server = GrpcServer(
        [Service([methods.CONFORMANCE_DO, methods.CONFORMANCE_HANG], servicer)], cluster=CLUSTER, limits=limits
    )
    address = await server.start("127.0.0.1", 0)
    held: list[int] = []
    budget = server._handlers._replies
    release = budget.release

    def noted(size_bytes: int) -> None:
        held.append(budget.held_bytes)
        release(size_bytes)

    budget.release = noted  # type: ignore[method-assign]
    channel = GrpcChannel(address, cluster=CLUSTER)
    try:
        calls = [
            channel.call(
                methods.CONFORMANCE_DO, testing_pb2.DoRequest(reply_bytes=MIB), timeout_s=30, reply_bytes_max=MIB
            )
            for _ in range(12)
        ]
        replies = await asyncio.gather(*calls)
        assert all(len(reply.attachment) == MIB for reply in replies)
        assert max(held) <= 4 * MIB
        while budget.held_bytes:
            await asyncio.sleep(0.01)
    finally:
        await channel.close()
        await server.stop(1.0)
