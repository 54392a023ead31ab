"""A server that takes an attachment and answers with a few bytes, over a transport named on the command line.

Prints its address when it listens, and ends when its standard input does: it cannot outlive who started it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Protocol

import uvloop

from neve.proto import methods
from neve.proto.diagnostics_pb2 import EchoReply, EchoRequest
from neve.rpc.service import Call, Service, eager

CLUSTER = "bench"
GRACE_S = 1.0


class Echo:
    """Bulk bytes go one way, as in an append: only the text comes back."""

    @eager  # as hot methods of Neve are; gRPC makes a task all the same
    async def echo(self, request: EchoRequest, call: Call) -> EchoReply:
        return EchoReply(text=request.text)


class Server(Protocol):
    async def start(self, host: str, port: int) -> str: ...

    async def stop(self, grace_s: float) -> None: ...


def make_server(transport: str) -> Server:
    """Imports only the transport that is asked for: what another one brings with it stays out of the numbers."""
    services = [Service([methods.DIAGNOSTICS_ECHO], Echo())]
    match transport:
        case "wire":
            from neve.rpc.wire.server import WireServer

            return WireServer(services, cluster=CLUSTER)
        case "grpc":
            from neve.rpc.grpc.server import GrpcServer

            return GrpcServer(services, cluster=CLUSTER)
        case "bare_grpc":
            from tests.bench.baselines.bare_grpc import BareGrpcServer

            return BareGrpcServer()
    raise ValueError(f"no transport {transport!r}")


async def serve(transport: str) -> None:
    server = make_server(transport)
    print(await server.start("127.0.0.1", 0), flush=True)
    gc.freeze()  # as servers of Neve do: what was imported is not looked through again at each collection
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(GRACE_S)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
