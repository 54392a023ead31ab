"""grpc.aio with nothing of ours around it: what a user of gRPC for Python gets, with the attachment as `payload`.

The wire is compared with this, not only with `rpc.grpc_server`: what our own adapter costs must not flatter the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio

from neve.proto import methods
from neve.proto.diagnostics_pb2 import EchoReply, EchoRequest
from neve.proto.method import Method, Rep, Req
from neve.rpc.service import REPLY_BYTES_DEFAULT, Buffer, Channel, Reply

ECHO = methods.DIAGNOSTICS_ECHO


class BareGrpcServer:
    def __init__(self) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._echo,
            request_deserializer=EchoRequest.FromString,
            response_serializer=EchoReply.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ECHO.service, {ECHO.name: handler}),)
        )

    async def start(self, host: str, port: int) -> str:
        bound_port = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()
        return f"{host}:{bound_port}"

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def _echo(self, request: EchoRequest, _context: Any) -> EchoReply:
        return EchoReply(text=request.text)


class BareGrpcChannel(Channel):
    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address)
        self._echo = self._channel.unary_unary(
            ECHO.path,
            request_serializer=EchoRequest.SerializeToString,
            response_deserializer=EchoReply.FromString,
        )

    async def call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
    ) -> Reply[Rep]:
        assert method.method_id == ECHO.method_id, method
        echo = EchoRequest(text=cast(EchoRequest, request).text, payload=cast(bytes, attachment[0]))
        return Reply(cast(Rep, await self._echo(echo, timeout=timeout_s)))

    async def close(self) -> None:
        await self._channel.close(None)
