"""What the server processes have in common: parts that are started in order and stopped in the reverse one, and doors.

Invariants: a start that fails or is cancelled undoes what it has done;
            the doors open when what they lead to is there, and close before it goes: what is pushed on `_exit` before
            `_open` outlives the calls, what is pushed after it ends while they are still let in.
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
    """One server. `start` returns when it serves; `stop` when nothing of it runs any more."""

    kind: ClassVar[str]  # what it tells callers and the status page that it is
    log_name: ClassVar[str]  # how its lines in the log begin
    front: Front

    def __init__(self, *, cluster: str, listen: FrontConfig, drain_timeout_s: float) -> None:
        self._cluster = cluster
        self._listen = listen
        self._drain_timeout_s = drain_timeout_s
        self._exit = contextlib.AsyncExitStack()
        self.address = ""  # of its wire door, as others are told, when it is known

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
        """In the reverse order of the start."""
        await self._exit.aclose()
        log.info("%s_stopped wire=%s", self.log_name, self.address)

    async def _start(self) -> None:
        """Make the parts and open the doors; push on `_exit` how each part is ended."""
        raise NotImplementedError

    def _facts(self) -> Mapping[str, object]:
        """What the status page tells beside `kind` and `cluster`."""
        raise NotImplementedError

    def _agent(self) -> str:
        """Who is calling, for those who are called."""
        return self.kind

    def _make_channels(self, token: str) -> ChannelPool:
        """For calls to other servers, with the limits and certificates of this one's own doors."""
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
