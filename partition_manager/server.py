"""The partition manager process: etcd, the stream client, the manager, its servicer and its servers.

    python -m neve.partition_manager --set cluster=main --set 'stream_managers=["127.0.0.1:3401"]' \\
        --set listen.wire=127.0.0.1:3701 --set 'etcd.endpoints=["127.0.0.1:2379"]'

SIGTERM and SIGINT stop it cleanly. It resigns first, so that another manager leads at once; then it takes no new calls
and finishes those in flight. Exit codes: 0 stopped by a signal, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from neve.client.streams.client import Client
from neve.meta.etcd.client import EtcdStore
from neve.partition_manager.config import PartitionManagerConfig, load
from neve.partition_manager.manager import Manager
from neve.partition_manager.metrics import ManagerCollector, ManagerMetrics
from neve.partition_manager.servicer import PartitionManagerServicer
from neve.proto import methods
from neve.rpc.command_line import run_server
from neve.rpc.front import run_until_told_to_stop
from neve.rpc.server_process import ServerProcess
from neve.rpc.service import Service


class PartitionManager(ServerProcess):
    """A partition manager, leading or not."""

    kind = log_name = "partition_manager"

    def __init__(self, config: PartitionManagerConfig, *, rng: random.Random) -> None:
        super().__init__(cluster=config.cluster, listen=config.listen, drain_timeout_s=config.drain_timeout_s)
        self._config = config
        self._rng = rng

    async def _start(self) -> None:
        config = self._config
        store = await EtcdStore.connect(config.etcd)
        self._exit.push_async_callback(store.close)
        channels = self._make_channels(config.token)
        streams = Client(
            config.stream_managers, cluster=config.cluster, token=config.token, tls=config.listen.tls, meta=store
        )
        await streams.open()
        self._exit.push_async_callback(streams.close)
        self.manager = Manager(config, store, streams=streams, channels=channels, rng=self._rng)
        registry = CollectorRegistry()
        registry.register(ManagerCollector(self.manager))
        servicer = PartitionManagerServicer(self.manager, ManagerMetrics(registry))
        service = Service(methods.PARTITION_MANAGER, servicer)
        await self._open(self._make_front(service, registry), advertise=config.advertise)
        self.manager.start(self.address)
        self._exit.push_async_callback(self.manager.stop)

    def _facts(self) -> Mapping[str, object]:
        state = self.manager.follower.state
        leader = self.manager.roster.leader
        return {
            "leading": self.manager.term is not None,
            "leader": leader.address if leader is not None else "",
            "map_version": state.version if state is not None else 0,
        }


async def serve(config: PartitionManagerConfig) -> None:
    """Run a manager until a signal stops it."""
    await run_until_told_to_stop(PartitionManager(config, rng=random.SystemRandom()))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_server(arguments, kind="partition manager", load=load, serve=serve)
