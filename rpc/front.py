"""The ports of a server process: wire, gRPC and the status page, opened and closed together.

Every Neve server has one `Front` with its services. The order of a stop matters: first new calls are refused, then
calls in flight finish, then the process closes the resources that they used.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry

from neve.rpc.auth import AllowAll, Authenticator, TokenFile
from neve.rpc.grpc.server import GrpcServer
from neve.rpc.limits import Limits
from neve.rpc.service import Service
from neve.rpc.status_page import Facts, StatusPage
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.server import WireServer
from neve.rpc.wire.sockets import split_listen_address

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """Table [listen]. An address is host:port; port 0 takes a free one; an empty address disables that port."""

    wire: str = "127.0.0.1:0"
    grpc: str = ""
    status: str = ""
    token_file: Path | None = None  # lines of `principal token`; without it every caller is accepted
    tls: TlsFiles | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("wire", "grpc", "status"):
            if address := getattr(self, name):
                split_listen_address(address)
        if not self.wire:
            raise ValueError("wire must not be empty: the cluster speaks it")


class Front:
    def __init__(
        self,
        config: FrontConfig,
        services: Sequence[Service],
        *,
        cluster: str,
        registry: CollectorRegistry,
        facts: Facts,
    ) -> None:
        self._config = config
        self.wire_address = self.grpc_address = self.status_address = ""
        self.ready = False
        authenticator: Authenticator = TokenFile(config.token_file) if config.token_file else AllowAll()
        self.wire = WireServer(
            services, cluster=cluster, limits=config.limits, authenticator=authenticator, tls=config.tls
        )
        self._grpc = (
            GrpcServer(services, cluster=cluster, limits=config.limits, authenticator=authenticator, tls=config.tls)
            if config.grpc
            else None
        )
        self._status = StatusPage(registry, ready=lambda: self.ready, facts=facts)

    async def start(self) -> None:
        config = self._config
        self.wire_address = await self.wire.start(*split_listen_address(config.wire))
        if self._grpc is not None:
            self.grpc_address = await self._grpc.start(*split_listen_address(config.grpc))
        if config.status:
            self.status_address = await self._status.start(*split_listen_address(config.status))
        self.ready = True

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls and let those in flight finish."""
        self.ready = False
        stopping = [self.wire.stop(grace_s)]
        if self._grpc is not None:
            stopping.append(self._grpc.stop(grace_s))
        await asyncio.gather(*stopping)
        await self._status.stop()


async def until_told_to_stop() -> signal.Signals:
    """Wait for SIGTERM or SIGINT. A second one ends the process at once, by the default action."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        told.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return await told


class Process(Protocol):
    """A server process. Both methods may take a while. A start that fails or is cancelled cleans up."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


async def run_until_told_to_stop(process: Process, *, on_started: Callable[[], None] = lambda: None) -> None:
    """Start, serve until SIGTERM or SIGINT, stop. A signal while it starts ends the start."""
    stop = asyncio.ensure_future(until_told_to_stop())
    start = asyncio.ensure_future(process.start())
    await asyncio.wait({stop, start}, return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return
    try:
        start.result()
    except BaseException:
        stop.cancel()
        raise
    on_started()
    log.info("process_stopping signal=%s", (await stop).name)
    await process.stop()
