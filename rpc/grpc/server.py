"""The gRPC server: the same servicers as on the wire, with the standard health and reflection services.

Invariants: a caller is authenticated before its message is read: token and cluster are checked on the headers;
            an error is sent as a status with the exact error in a trailer (status.py);
            calls, connections and bytes are bounded: above the bound a call is refused with Overloaded, not queued.
Not here:   order: gRPC starts the handlers of calls in flight in any order (client.py).

Every call needs a token except for `grpc.health.v1.Health/Check`, which load balancers and kubelets send without one.
Health/Watch needs a token, because an endless watch of an unknown caller would occupy one of the server's calls. So
does reflection. The cluster header is checked only if it is sent, because foreign clients need not know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from neve.proto.errors import NeveError, Unimplemented, WrongCluster
from neve.rpc.auth import AllowAll, Authenticator
from neve.rpc.grpc.handlers import Handlers
from neve.rpc.grpc.message import FRAMING_BYTES_MAX
from neve.rpc.grpc.status import CLUSTER_HEADER, METADATA_BYTES_MAX, TOKEN_HEADER, TOKEN_PREFIX, abort_with
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import Service, merge_routes
from neve.rpc.tls import Reloading, TlsFiles, server_context

if TYPE_CHECKING:
    # These classes are generic only in the stubs.
    GenericRpcHandler = grpc.GenericRpcHandler[Any, Any]
    MethodHandler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    GenericRpcHandler = grpc.GenericRpcHandler

log = logging.getLogger(__name__)

# While gRPC receives, only calls times message size bounds its memory, so this is far below the wire's bound.
CALLS_MAX = 1024

_HEALTH_TIMEOUT_S = 1.0


class GrpcServer:
    """Serves `services` on one port. A server is started and stopped once; a restart makes a new one."""

    def __init__(
        self,
        services: Sequence[Service],
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        authenticator: Authenticator | None = None,
        tls: TlsFiles | None = None,
        calls_max: int = CALLS_MAX,
    ) -> None:
        routes = merge_routes(services).values()
        self._limits = limits
        self._tls = tls
        self._calls_max = calls_max
        self._names = sorted({route.method.service for route in routes})
        self._handlers = Handlers(routes, limits=limits)
        self._admission = _Admission(cluster, authenticator or AllowAll())
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # not in the stubs
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen on that port, or on a free one for 0. Returns "host:port"; raises OSError if it cannot listen."""
        assert self._server is None, "a server is started once"
        server = grpc.aio.server(
            handlers=[_Router(self._admission, self._handlers, self._standard_services())],
            options=server_options(self._limits),
            maximum_concurrent_rpcs=self._calls_max,
        )
        target = f"[{host}]" if ":" in host else host
        try:
            if self._tls is None:
                port_bound = server.add_insecure_port(f"{target}:{port}")
            else:
                port_bound = server.add_secure_port(f"{target}:{port}", server_credentials(self._tls))
        except RuntimeError as error:  # raised by gRPC if it cannot bind
            raise OSError(f"cannot listen on {target}:{port}: {error}") from None
        self._server = server
        await server.start()
        await self.set_serving(True)
        log.info("grpc_listening address=%s:%d services=%s", target, port_bound, ",".join(self._names))
        return f"{target}:{port_bound}"

    async def set_serving(self, serving: bool) -> None:
        """Set the health service's answer, for the whole server ("") and for each of its services."""
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serving else response.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those in flight finish within `grace_s`, then cancel them."""
        if self._server is None:
            return
        try:
            # A watcher that does not read holds grpc_health's lock, and must not delay the stop.
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await self._health.enter_graceful_shutdown()
        except TimeoutError:
            log.warning("grpc_health_watcher_stuck: stopping without having told it")
        await self._server.stop(grace_s)
        self._server = None

    def _standard_services(self) -> dict[str, MethodHandler]:
        """Health and reflection by path, built by hand so that `_Router` decides who may call them."""
        mirror = reflection.aio.ReflectionServicer(  # type: ignore[attr-defined]  # not in the stubs
            [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        )
        request, response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        return {
            HEALTH_CHECK: grpc.unary_unary_rpc_method_handler(
                self._health.Check, request.FromString, response.SerializeToString
            ),
            f"/{health.SERVICE_NAME}/Watch": grpc.unary_stream_rpc_method_handler(
                self._health.Watch, request.FromString, response.SerializeToString
            ),
            f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                mirror.ServerReflectionInfo,
                reflection_pb2.ServerReflectionRequest.FromString,
                reflection_pb2.ServerReflectionResponse.SerializeToString,
            ),
        }


HEALTH_CHECK = f"/{health.SERVICE_NAME}/Check"


class _Admission:
    """Authenticates callers by the headers of their calls."""

    def __init__(self, cluster: str, authenticator: Authenticator) -> None:
        self._cluster = cluster
        self._authenticator = authenticator

    def principal(self, metadata: Sequence[tuple[str, str | bytes]]) -> str:
        headers = {key: value for key, value in metadata if isinstance(value, str)}
        cluster = headers.get(CLUSTER_HEADER, self._cluster)
        if cluster != self._cluster:
            raise WrongCluster(expected=self._cluster, got=cluster)
        return self._authenticator.authenticate(headers.get(TOKEN_HEADER, "").removeprefix(TOKEN_PREFIX))


class _Router(GenericRpcHandler):
    """Finds the handler for a path after authenticating the caller, so unknown callers do not learn the paths."""

    def __init__(
        self,
        admission: _Admission,
        handlers: Handlers,
        standard: dict[str, MethodHandler],
    ) -> None:
        self._admission = admission
        self._handlers = handlers
        self._standard = standard

    def service(self, details: grpc.HandlerCallDetails) -> MethodHandler:
        path = details.method
        if path == HEALTH_CHECK:
            return self._standard[path]
        try:
            principal = self._admission.principal(details.invocation_metadata)
        except NeveError as error:
            return _refusal(error)
        handler = self._handlers.find(path, principal) or self._standard.get(path)
        return handler or _refusal(Unimplemented(method=path))


def _refusal(error: NeveError) -> MethodHandler:
    """A handler that aborts. It is declared as streaming, so that gRPC does not wait for a message."""

    async def refuse(_: object, context: Context) -> None:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def server_options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # otherwise a second server on the same port would silently get half of the calls
        ("grpc.max_concurrent_streams", limits.connection_calls_max),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        (
            "grpc.max_receive_message_length",
            limits.message_bytes_max + limits.attachment_bytes_max + FRAMING_BYTES_MAX,
        ),
        ("grpc.max_send_message_length", -1),  # `check_sizes` has the better error
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_timeout_s * 1000)),
        ("grpc.keepalive_time_ms", round(limits.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round((limits.dead_peer_s - limits.keepalive_s) * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client pings every keepalive_s. Without this the server considers that an attack and disconnects.
        ("grpc.http2.min_ping_interval_without_data_ms", round(limits.keepalive_s * 1000 / 2)),
    ]


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that gRPC asks for again at every handshake, so that replaced files are used without a restart."""
    files = Reloading(tls, _certificate_configuration)
    return grpc.dynamic_ssl_server_credentials(
        files.current(),
        files.current,
        require_client_authentication=tls.ca is not None,
    )


def _certificate_configuration(tls: TlsFiles) -> grpc.ServerCertificateConfiguration:
    server_context(tls)  # refuses files that do not fit together, so that the last good ones stay in use
    assert tls.cert is not None, "server_context has checked it"
    assert tls.key is not None, "server_context has checked it"
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=tls.ca.read_bytes() if tls.ca else None,
    )
