"""Calls over gRPC: the same `Channel` as inside the cluster, for callers at the edge and for tests.

Invariants: a failed call raises the same class with the same fields as on the other transports (`rpc.grpc_status`);
            nothing is sent twice: gRPC's own retries are off, and the caller decides;
            bytes and calls in flight are bounded by `Limits`; calls wait for room in order and within their deadline.
Not here:   order among calls in flight. Each is an HTTP/2 stream of its own and gRPC starts them as it likes; a caller
            that needs order over gRPC awaits one call before the next.

TLS files are read when the channel is made. To use replaced client certificates, make a new channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from neve.proto.errors import ConnectFailed, ConnectionLost, DeadlineExceeded
from neve.proto.method import Method, Rep, Req
from neve.rpc.grpc.message import FRAMING_BYTES_MAX, check_sizes, decode, encode
from neve.rpc.grpc.status import CLUSTER_HEADER, METADATA_BYTES_MAX, TOKEN_HEADER, TOKEN_PREFIX, to_error
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import REPLY_BYTES_DEFAULT, Buffer, Channel, Reply, attachment_bytes, bounded_timeout_s
from neve.rpc.tls import TlsFiles, client_context
from neve.rpc.wire.budget import ByteBudget

Option = tuple[str, int | str]


class GrpcChannel(Channel):
    """Calls to one address over gRPC. Make it inside a running loop."""

    def __init__(
        self,
        address: str,
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        token: str = "",
        tls: TlsFiles | None = None,
    ) -> None:
        self.address = address
        self._limits = limits
        self._bytes = ByteBudget(limits.connection_bytes_max)
        self._calls = asyncio.Semaphore(limits.connection_calls_max)
        self._closed = False
        self._stubs: dict[str, grpc.aio.UnaryUnaryMultiCallable[Any, Any]] = {}
        self._metadata: list[tuple[str, str]] = []
        if cluster:
            self._metadata.append((CLUSTER_HEADER, cluster))
        if token:
            self._metadata.append((TOKEN_HEADER, TOKEN_PREFIX + token))
        options = channel_options(limits)
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            if tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            self._channel = grpc.aio.secure_channel(address, channel_credentials(tls), options=options)

    async def call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
    ) -> Reply[Rep]:
        timeout_s = bounded_timeout_s(method, timeout_s)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        check_sizes(
            self._limits,
            f"request of {method.path}",
            message_bytes=request.ByteSize(),
            attachment_bytes=attachment_bytes(attachment),
        )
        data = encode(request, attachment)
        in_flight_bytes = len(data) + reply_bytes_max
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._take_room(in_flight_bytes)
        except TimeoutError:
            raise DeadlineExceeded(
                method=method.path,
                timeout_ms=int(timeout_s * 1000),
                detail="never sent: too many bytes or calls were in flight all that time",
            ) from None
        try:
            data = await self._exchange(method, data, timeout_s=timeout_s, deadline_s=deadline_s)
        finally:
            self._bytes.release(in_flight_bytes)
            self._calls.release()
        return Reply(*decode(method.reply, data))

    async def close(self) -> None:
        self._closed = True
        await self._channel.close(grace=None)

    async def _take_room(self, size_bytes: int) -> None:
        await self._calls.acquire()
        try:
            await self._bytes.acquire(size_bytes)
        except asyncio.CancelledError:
            self._calls.release()
            raise

    async def _exchange(self, method: Method[Req, Rep], data: bytes, *, timeout_s: float, deadline_s: float) -> bytes:
        if self._closed:
            raise ConnectFailed(address=self.address, detail="this channel is closed")
        remaining_s = deadline_s - asyncio.get_running_loop().time()
        try:
            reply: bytes = await self._stub(method.path)(data, timeout=remaining_s, metadata=self._metadata)
            return reply
        except grpc.aio.AioRpcError as failure:
            timeout_ms = int(timeout_s * 1000)
            error = to_error(failure, address=self.address, method=method.path, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            closed: bool = self._closed  # it may have changed while the call was awaited
            # gRPC cancels the calls of a channel that closes; only a task that was itself cancelled may see that.
            if not closed or task is None or task.cancelling():
                raise
            error = ConnectionLost(address=self.address, detail="this channel was closed")
        # Raised out here so that it does not drag gRPC's exception along: that one refers to the call, and a call that
        # somebody refers to keeps its connection alive, reconnecting even, after the channel was closed.
        raise error

    def _stub(self, path: str) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        stub = self._stubs.get(path)
        if stub is None:
            stub = self._stubs[path] = self._channel.unary_unary(
                path, request_serializer=None, response_deserializer=None
            )
        return stub


def channel_options(limits: Limits) -> list[Option]:
    return [
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),  # servers of a cluster are dialled directly, whatever the environment says
        ("grpc.use_local_subchannel_pool", 1),  # or channels would share a connection, and close() not end it
        ("grpc.max_send_message_length", -1),  # `check_sizes` has the better error
        (
            "grpc.max_receive_message_length",
            limits.message_bytes_max + limits.attachment_bytes_max + FRAMING_BYTES_MAX,
        ),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.min_reconnect_backoff_ms", round(limits.connect_timeout_s * 1000)),  # in truth: time for one attempt
        ("grpc.initial_reconnect_backoff_ms", round(limits.reconnect_delay_s_min * 1000)),
        ("grpc.max_reconnect_backoff_ms", round(limits.reconnect_delay_s_max * 1000)),
        ("grpc.keepalive_time_ms", round(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round((limits.dead_peer_s - limits.keepalive_s) * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def channel_credentials(tls: TlsFiles) -> grpc.ChannelCredentials:
    client_context(tls)  # refuses files that do not fit together, with a better message than a failed handshake
    assert tls.ca is not None, "client_context has checked it"
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes() if tls.key else None,
        certificate_chain=tls.cert.read_bytes() if tls.cert else None,
    )
