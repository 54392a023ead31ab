"""The servicer of Diagnostics, which every Neve server has: Echo and ServerInfo."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version

from neve.proto import common_pb2, methods
from neve.proto import diagnostics_pb2 as pb
from neve.rpc.service import Call, Service, eager
from neve.rpc.wire.frame import PROTOCOL_VERSION


def build_version() -> common_pb2.Version:
    """This build's version, as servers report it to each other."""
    try:
        build = version("neve")
    except PackageNotFoundError:  # the process runs from a folder that was never installed
        build = "unknown"
    return common_pb2.Version(protocol=PROTOCOL_VERSION, build=build)


class Diagnostics:
    def __init__(self, *, kind: str, cluster: str) -> None:
        self._kind = kind
        self._cluster = cluster
        self._version = build_version()
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()

    @eager
    async def echo(self, request: pb.EchoRequest, call: Call) -> pb.EchoReply:
        call.attach(call.attachment)
        return pb.EchoReply(text=request.text)

    async def server_info(self, request: pb.ServerInfoRequest, call: Call) -> pb.ServerInfoReply:
        uptime_ms = int((self._loop.time() - self._started_s) * 1000)
        return pb.ServerInfoReply(kind=self._kind, cluster=self._cluster, version=self._version, uptime_ms=uptime_ms)


def diagnostics_service(*, kind: str, cluster: str) -> Service:
    return Service(methods.DIAGNOSTICS, Diagnostics(kind=kind, cluster=cluster))
