"""The partition manager as a process: etcd, the stream client, the manager, its servicer and its front doors together.

    python -m neve.partition_manager --set cluster=main --set 'stream_managers=["127.0.0.1:3401"]' \\
        --set listen.wire=127.0.0.1:3701 --set 'etcd.endpoints=["127.0.0.1:2379"]'

SIGTERM and SIGINT stop it cleanly: it resigns first, so that another manager leads at once; then no new calls, and
those in flight finish. Exit codes: 0 stopped as told, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from neve.client.client import Client
from neve.meta.etcd import EtcdStore
from neve.partition_manager.config import PartitionManagerConfig, load
from neve.partition_manager.manager import Manager
from neve.partition_manager.metrics import ManagerCollector, ManagerMetrics
from neve.partition_manager.servicer import PartitionManagerServicer
from neve.proto import methods
from neve.rpc.command_line import run_server
from neve.rpc.diagnostics import diagnostics_service
from neve.rpc.front import Front, run_until_told_to_stop
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from neve.rpc.wire.client import WireChannel

log = logging.getLogger(__name__)


class PartitionManager:
    """One manager. `start` returns when it serves, as a leader or not; `stop` when nothing of it runs any more."""

    def __init__(self, config: PartitionManagerConfig, *, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._exit = contextlib.AsyncExitStack()
        self.address = ""

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise

    async def _start(self) -> None:
        config = self._config
        store = await EtcdStore.connect(config.etcd)
        self._exit.push_async_callback(store.close)
        channels = ChannelPool(self._channel)
        self._exit.push_async_callback(channels.close)
        streams = Client(
            config.stream_managers, cluster=config.cluster, token=config.token, tls=config.listen.tls, meta=store
        )
        await streams.open()
        self._exit.push_async_callback(streams.close)
        self.manager = Manager(config, store, streams=streams, channels=channels, rng=self._rng)
        registry = CollectorRegistry()
        registry.register(ManagerCollector(self.manager))
        services = [
            Service(methods.PARTITION_MANAGER, PartitionManagerServicer(self.manager, ManagerMetrics(registry))),
            diagnostics_service(kind="partition_manager", cluster=config.cluster),
        ]
        self.front = Front(config.listen, services, cluster=config.cluster, registry=registry, facts=self._facts)
        await self.front.start()
        self._exit.push_async_callback(self.front.stop, config.drain_timeout_s)
        self.address = config.advertise or self.front.wire_address
        self.manager.start(self.address)
        self._exit.push_async_callback(self.manager.stop)
        log.info(
            "partition_manager_started wire=%s grpc=%s status=%s",
            self.front.wire_address,
            self.front.grpc_address or "-",
            self.front.status_address or "-",
        )

    async def stop(self) -> None:
        await self._exit.aclose()
        log.info("partition_manager_stopped wire=%s", self.address)

    def _channel(self, address: str) -> WireChannel:
        config = self._config
        return WireChannel(
            address,
            cluster=config.cluster,
            limits=config.listen.limits,
            token=config.token,
            tls=config.listen.tls,
            agent="partition_manager",
        )

    def _facts(self) -> Mapping[str, object]:
        state = self.manager.follower.state
        leader = self.manager.roster.leader
        return {
            "kind": "partition_manager",
            "cluster": self._config.cluster,
            "leading": self.manager.term is not None,
            "leader": leader.address if leader is not None else "",
            "map_version": state.version if state is not None else 0,
        }


async def serve(config: PartitionManagerConfig) -> None:
    """Run a manager until the process is told to stop."""
    await run_until_told_to_stop(PartitionManager(config, rng=random.SystemRandom()))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_server(arguments, kind="partition manager", load=load, serve=serve)
