"""The base class of the server processes: parts that start in order and stop in reverse order, and ports.

Invariants: a start that fails or is cancelled undoes its steps;
            the ports open after the parts that serve them have started, and close before those parts stop: a part
            pushed on `_exit` before `_open` outlives the calls, and one pushed after `_open` ends while the ports are
            still open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import ClassVar

from prometheus_client import CollectorRegistry

from neve.rpc.diagnostics import diagnostics_service
from neve.rpc.front import Front, FrontConfig
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from neve.rpc.wire.client import WireChannel

log = logging.getLogger(__name__)


class ServerProcess:
    """One server. `start` returns when it serves, `stop` when all of its parts have ended."""

    kind: ClassVar[str]  # its kind, as reported to callers and on the status page
    log_name: ClassVar[str]  # the beginning of its log events
    front: Front

    def __init__(self, *, cluster: str, listen: FrontConfig, drain_timeout_s: float) -> None:
        self._cluster = cluster
        self._listen = listen
        self._drain_timeout_s = drain_timeout_s
        self._exit = contextlib.AsyncExitStack()
        self.address = ""  # of its wire port, as other processes reach it; set when it is known

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        front = self.front
        doors = (front.wire_address, front.grpc_address or "-", front.status_address or "-")
        log.info("%s_started wire=%s grpc=%s status=%s", self.log_name, *doors)

    async def stop(self) -> None:
        """Stop all parts in the reverse order of their start."""
        await self._exit.aclose()
        log.info("%s_stopped wire=%s", self.log_name, self.address)

    async def _start(self) -> None:
        """Make the parts and open the ports; push on `_exit` how each part ends."""
        raise NotImplementedError

    def _facts(self) -> Mapping[str, object]:
        """The status page's facts besides `kind` and `cluster`."""
        raise NotImplementedError

    def _agent(self) -> str:
        """This process's name in the logs of the servers that it calls."""
        return self.kind

    def _make_channels(self, token: str) -> ChannelPool:
        """Channels for calls to other servers, with the limits and certificates of this server's own ports."""
        channels = ChannelPool(
            lambda address: WireChannel(
                address,
                cluster=self._cluster,
                limits=self._listen.limits,
                token=token,
                tls=self._listen.tls,
                agent=self._agent(),
            )
        )
        self._exit.push_async_callback(channels.close)
        return channels

    def _make_front(self, service: Service, registry: CollectorRegistry) -> Front:
        services = [service, diagnostics_service(kind=self.kind, cluster=self._cluster)]
        return Front(
            self._listen,
            services,
            cluster=self._cluster,
            registry=registry,
            facts=lambda: {"kind": self.kind, "cluster": self._cluster, **self._facts()},
        )

    async def _open(self, front: Front, *, advertise: str = "") -> None:
        self.front = front
        await front.start()
        self._exit.push_async_callback(front.stop, self._drain_timeout_s)
        self.address = advertise or front.wire_address
