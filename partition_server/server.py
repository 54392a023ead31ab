"""The partition server process: the stream client, the partitions, the link to the manager, and the listeners.

    python -m neve.partition_server --set cluster=main --set 'stream_managers=["127.0.0.1:3401"]' \\
        --set 'partition_managers=["127.0.0.1:3701"]' --set listen.wire=127.0.0.1:3801

SIGTERM and SIGINT stop it cleanly: it gives up its partitions and releases their locks at once, so that other servers
load them without waiting for a lease; then it takes no new calls and finishes those in flight.
Exit codes: 0 stopped by a signal, 1 could not run, 2 wrong configuration.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from neve.client.manager_link import ManagerLink
from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.meta import keys
from neve.partition_server.config import PartitionServerConfig, load
from neve.partition_server.engine.config import READ_BYTES
from neve.partition_server.engine.engine import Partition, PartitionStreams
from neve.partition_server.engine.interface import Engine
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.hosted import Surroundings
from neve.partition_server.lifecycle import Host
from neve.partition_server.metrics import ServerCollector, ServerMetrics
from neve.partition_server.python_gc import Collections, tune
from neve.partition_server.registration import Registration
from neve.partition_server.servicer import PartitionServerServicer
from neve.partition_server.tables.block_cache import BlockCache
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.rpc.command_line import run_server
from neve.rpc.front import run_until_told_to_stop
from neve.rpc.server_process import ServerProcess
from neve.rpc.service import Service


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def load_partition(around: Surroundings, region: pm.RegionRecord, streams: PartitionStreams) -> Engine:
    return await Partition.load(
        region,
        streams,
        config=around.config.engine,
        clock=around.wall_ms,
        rng=around.rng,
        cache=around.cache,
        memory=around.memory,
    )


def surroundings(
    config: PartitionServerConfig,
    client: Client,
    *,
    rng: random.Random,
    wall_ms: Callable[[], int] = wall_clock_ms,
) -> Surroundings:
    return Surroundings(
        config=config,
        client=client,
        root=keys.root_of(config.cluster),
        rng=rng,
        wall_ms=wall_ms,
        cache=BlockCache(config.cache_bytes_max),
        memory=MemoryBudget(config.memory_bytes_max),
        loading=asyncio.Semaphore(config.serving.loads_at_once),
        load=load_partition,
    )


def loads_of(host: Host) -> Iterable[pm.PartitionLoad]:
    """Return the loads of served partitions, for a heartbeat."""
    return [hosted.partition.load_now() for hosted in host.hosted.values() if hosted.partition is not None]


class PartitionServer(ServerProcess):
    """One server. It has started when its listeners are open; partitions follow when the manager assigns them."""

    kind = log_name = "partition_server"

    def __init__(self, config: PartitionServerConfig, *, rng: random.Random) -> None:
        super().__init__(cluster=config.cluster, listen=config.listen, drain_timeout_s=config.drain_timeout_s)
        self._config = config
        self._rng = rng

    async def _start(self) -> None:
        config = self._config
        client = Client(
            config.stream_managers,
            cluster=config.cluster,
            token=config.token,
            tls=config.listen.tls,
            etcd=config.etcd,
            options=ClientOptions(lease_ttl_s=config.lease_ttl_s, limits=config.listen.limits, read_bytes=READ_BYTES),
        )
        await client.open()
        self._exit.push_async_callback(client.close)  # ends the lease and so the registration
        channels = self._make_channels(config.token)
        around = surroundings(config, client, rng=self._rng)
        self.host = Host(around, await client.metadata())
        registry = CollectorRegistry()
        registry.register(ServerCollector(self.host, around))
        servicer = PartitionServerServicer(
            self.host, ServerMetrics(registry), multi_reply_bytes_max=config.multi_reply_bytes_max
        )
        service = Service(methods.PARTITION_SERVER, servicer)
        await self._open(self._make_front(service, registry), advertise=config.advertise)
        options = ClientOptions(call_timeout_s=10.0, attempt_timeout_s=3.0)
        self.registration = Registration(
            config,
            client,
            ManagerLink(channels, config.partition_managers, options=options, rng=self._rng),
            wire_address=self.address,
            grpc_address=self.front.grpc_address,
            loads=lambda: loads_of(self.host),
            rng=self._rng,
        )
        self._tasks = [
            asyncio.ensure_future(self.registration.run()),
            asyncio.ensure_future(self._serve_when_registered()),
            asyncio.ensure_future(Collections(around.memory).run()),
        ]
        self._exit.push_async_callback(self._stop_serving)

    async def _serve_when_registered(self) -> None:
        await self.registration.registered.wait()
        self.host.start(self.registration.server_id)

    async def _stop_serving(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.host.stop()

    def _facts(self) -> Mapping[str, object]:
        hosted = self.host.hosted
        return {
            "server_id": self.host.server_id,
            "map_version": self.host.version,
            "partitions": {str(number): each.phase.value for number, each in sorted(hosted.items())},
        }


async def serve(config: PartitionServerConfig) -> None:
    """Run a server until the process gets a signal to stop."""
    tune()
    await run_until_told_to_stop(PartitionServer(config, rng=random.SystemRandom()), on_started=gc.freeze)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_server(arguments, kind="partition server", load=load, serve=serve)
