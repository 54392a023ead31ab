"""One servicer, two transports: what it answers and what it raises is the same over the wire and gRPC.

    python examples/transports.py          exit code 0 when both agree

Neve's servers speak to each other over the wire; gRPC is for any other language.
"""

from __future__ import annotations

import asyncio
import random
import sys

from neve.proto import diagnostics_pb2 as pb
from neve.proto import methods
from neve.proto.errors import NeveError, NotFound
from neve.rpc.grpc.client import GrpcChannel
from neve.rpc.grpc.server import GrpcServer
from neve.rpc.service import Call, Channel, Service
from neve.rpc.wire.client import WireChannel
from neve.rpc.wire.server import WireServer

CLUSTER = "example"


class Diagnostics:
    """Knows nothing of transports: messages in, messages out, bulk bytes beside them, errors raised."""

    async def echo(self, request: pb.EchoRequest, call: Call) -> pb.EchoReply:
        if request.text == "nobody":
            raise NotFound(kind="echo", name=request.text)
        call.attach(call.attachment)
        return pb.EchoReply(text=request.text)

    async def server_info(self, request: pb.ServerInfoRequest, call: Call) -> pb.ServerInfoReply:
        return pb.ServerInfoReply(kind="example", cluster=CLUSTER)


async def ask(name: str, channel: Channel) -> NeveError | None:
    """Call everything once, print what came, and return the error that the last call raised."""
    payload = random.randbytes(100_000)
    info = await channel.call(methods.DIAGNOSTICS_SERVER_INFO, pb.ServerInfoRequest(), timeout_s=5)
    echo = await channel.call(
        methods.DIAGNOSTICS_ECHO,
        pb.EchoRequest(text="hello"),
        timeout_s=5,
        attachment=[payload],
        reply_bytes_max=len(payload),
    )
    intact = "intact" if echo.attachment == payload else "DAMAGED"
    print(f"{name:5} {channel.address}: cluster {info.message.cluster!r}, {len(echo.attachment)} bytes back, {intact}")
    try:
        await channel.call(methods.DIAGNOSTICS_ECHO, pb.EchoRequest(text="nobody"), timeout_s=5)
    except NeveError as error:
        print(f"      raised {type(error).__name__}: {error}")
        return error if intact == "intact" else None
    return None


async def main() -> int:
    services = [Service(methods.DIAGNOSTICS, Diagnostics())]
    wire_server = WireServer(services, cluster=CLUSTER)
    grpc_server = GrpcServer(services, cluster=CLUSTER)
    channels: dict[str, Channel] = {
        "wire": WireChannel(await wire_server.start("127.0.0.1", 0), cluster=CLUSTER),
        "grpc": GrpcChannel(await grpc_server.start("127.0.0.1", 0), cluster=CLUSTER),
    }
    raised = [await ask(name, channel) for name, channel in channels.items()]
    for channel in channels.values():
        await channel.close()
    for server in (wire_server, grpc_server):
        await server.stop(1.0)

    agreed = all(type(error) is NotFound and error.name == "nobody" for error in raised)
    print("the same error, twice" if agreed else "the transports DISAGREE")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
