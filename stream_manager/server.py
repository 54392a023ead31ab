"""The stream manager process: etcd, the manager, its servicer and its servers.

    python -m neve.stream_manager --config manager.toml
    python -m neve.stream_manager --set cluster=main --set listen.wire=127.0.0.1:3401 \\
        --set 'etcd.endpoints=["127.0.0.1:2379"]'

SIGTERM and SIGINT stop it cleanly. It resigns first, so that another manager leads at once; then it takes no new calls
and finishes those in flight. SIGHUP makes it ask the topology's resolver again where each node is.
Exit codes: 0 stopped by a signal, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from neve.meta.etcd.client import EtcdStore
from neve.meta.store import MetaStore
from neve.proto import common_pb2, methods
from neve.proto.errors import InvalidArgument
from neve.rpc.command_line import run_server
from neve.rpc.front import run_until_told_to_stop
from neve.rpc.pool import ChannelPool
from neve.rpc.server_process import ServerProcess
from neve.rpc.service import Service
from neve.stream_manager.config import ManagerConfig, load
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata.records import NodeEntry
from neve.stream_manager.metrics import ManagerCollector, ManagerMetrics
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from neve.stream_manager.placement.policies import policy_named
from neve.stream_manager.servicer import StreamManagerServicer
from neve.stream_manager.term.leader import Loaded
from neve.stream_manager.term.node_calls import NodeCalls, RpcNodeCalls

log = logging.getLogger(__name__)

# A mutation leaves dozens of objects that stay (records, keys), and Python's default thresholds (700, 10, 10) take
# them for garbage: collections took a quarter of a busy manager's time. While a million extents were loaded, they
# blocked the loop for so long that the lease was lost. Cycles are rare here.
GC_THRESHOLDS = (50_000, 20, 50)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class StreamManager(ServerProcess):
    """A stream manager, leading or not."""

    kind = "stream_manager"
    log_name = "manager"

    def __init__(
        self,
        config: ManagerConfig,
        *,
        rng: random.Random,
        store: MetaStore | None = None,
    ) -> None:
        super().__init__(cluster=config.cluster, listen=config.listen, drain_timeout_s=config.drain_timeout_s)
        self._config = config
        self._rng = rng
        self._store = store

    async def _start(self) -> None:
        config = self._config
        store = self._store
        if store is None:
            store = await EtcdStore.connect(config.etcd)
            self._exit.push_async_callback(store.close)
        channels = self._make_channels(config.node_token)
        registry = CollectorRegistry()
        self.manager = Manager(
            config,
            store,
            make_node_calls=lambda leader, node: rpc_node_calls(config, channels, leader, node),
            make_cluster_nodes=ClusterNodes,
            rng=self._rng,
            wall_ms=wall_clock_ms,
            observe=ManagerMetrics(registry).observe,
            on_loaded=_freeze,
            on_ended=_unfreeze,
        )
        registry.register(ManagerCollector(self.manager))
        service = Service(methods.STREAM_MANAGER, StreamManagerServicer(self.manager))
        await self._open(self._make_front(service, registry), advertise=config.advertise)
        self.manager.start(self.address)
        self._exit.push_async_callback(self.manager.stop)

    def reload_topology(self) -> None:
        """Make the current term, if this manager leads, resolve locations again. A new term has nothing cached."""
        term = self.manager.term if self.address else None
        if term is not None:
            term.cluster_nodes.relocation.reload()
        log.info("topology_reload_asked leading=%s", term is not None)

    def _facts(self) -> Mapping[str, object]:
        term = self.manager.term
        state = term.state if term is not None else self.manager.follower.state
        leader = self.manager.roster.leader
        return {
            "leading": term is not None,
            "leader": leader.address if leader is not None else "",
            "revision": state.revision if state is not None else 0,
        }


def rpc_node_calls(
    config: ManagerConfig,
    channels: ChannelPool,
    leader: common_pb2.Leader,
    node: Callable[[int], NodeEntry | None],
) -> NodeCalls:
    return RpcNodeCalls(
        channels,
        leader=leader,
        node=node,
        timeout_s=config.timeouts.node_call_s,
        seal_timeout_s=config.timeouts.node_seal_s,
    )


def _freeze(loaded: Loaded) -> None:
    """Exempt the loaded records from garbage collection: they stay for the term, and there are up to a million.

    It runs no last collection before, which would block the loop for seconds while the lease runs out.
    """
    gc.freeze()


def _unfreeze() -> None:
    """Collect the ended term's records, which are in cycles, before the follower loads its own."""
    gc.unfreeze()
    gc.collect()


async def serve(config: ManagerConfig) -> None:
    """Run a manager until a signal stops it."""
    gc.set_threshold(*GC_THRESHOLDS)
    manager = StreamManager(config, rng=random.SystemRandom())
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, manager.reload_topology)
    await run_until_told_to_stop(manager)


def load_checked(path: Path | None, settings: Sequence[str]) -> ManagerConfig:
    """Load the configuration and check the placement policy's name, which the configuration modules cannot."""
    config = load(path, settings)
    try:
        policy_named(config.defaults.placement)
    except InvalidArgument as error:
        raise InvalidArgument(what="defaults.placement", detail=error.detail) from None
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    return run_server(arguments, kind="stream manager", load=load_checked, serve=serve)
