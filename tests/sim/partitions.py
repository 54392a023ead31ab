"""The partition layer on virtual time: managers, servers and key-value clients on a whole simulated stream layer.

    @partitioned(seed=1, servers=2)
    async def test_something(cluster: PartitionCluster) -> None:
        await cluster.bootstrap(b"g", b"p")
        kv = await cluster.kv("client")
        await kv.put(b"key", b"value")
        cluster.servers[1].kill()
        ...

Invariants: every revision of the region map is looked at, as it is made: it covers all keys once (T52).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from neve.client.manager_link import ManagerLink
from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.partition_manager.config import PartitionManagerConfig
from neve.partition_manager.core_balance import BalanceConfig
from neve.partition_manager.core_regions import MapBroken, RegionMap
from neve.partition_server.config import Serving
from neve.partition_server.engine.config import EngineConfig
from neve.proto import common_pb2, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.method import Method
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Channel
from neve.stream_manager.config import Defaults
from tests.sim.checks.region_watcher import RegionWatcher
from tests.sim.cluster import LEASE_TTL_S, ROOT, SimCluster, calm, run_story
from tests.sim.processes.client import OPTIONS
from tests.sim.processes.node import CLUSTER
from tests.sim.processes.partitions import SimPartitionManager, SimPartitionServer
from tests.sim.processes.processes import Killed, Process

T = TypeVar("T")
Rep = TypeVar("Rep", bound=Message)

ENGINE = EngineConfig(
    value_threshold_bytes=200,
    part_bytes=1500,
    memtable_bytes=20_000,
    block_bytes=1000,
    append_bytes=3000,
    tables_max=4,
)
SERVING = Serving(frozen_ms=3000, hold_s=5.0, load_retry_s_max=1.0)
EXTENT_BYTES = 60_000  # of the partitions' streams: they roll now and then
KV_OPTIONS = KeyValueOptions(operation_timeout_s=40.0, attempt_timeout_s=3.0, limits=OPTIONS.limits)
NO_BALANCE = BalanceConfig(interval_s=1e6)
RESTLESS = BalanceConfig(  # splits and merges by itself, within seconds
    interval_s=1.0,
    rest_s=2.0,
    rounds=2,
    split_bytes=40_000,
    merge_bytes_max=10_000,
    merge_rounds=5,
    regions_per_server_min=1,
)


class SimKeyValue:
    """A key-value client as a process of its own. A killed one never comes back."""

    def __init__(self, cluster: PartitionCluster, name: str, options: KeyValueOptions) -> None:
        self.name = name
        self.process = Process(name)
        self.left: list[str] = []  # tasks that were not over when it was closed
        network, limits = cluster.sim.network, options.limits
        self._network = network
        self.kv = KeyValueClient(
            cluster.manager_addresses,
            cluster=CLUSTER,
            options=options,
            channels=ChannelPool(lambda address: network.channel(name, address, cluster=CLUSTER, limits=limits)),
            rng=random.Random(network.rng.getrandbits(64)),
        )

    @property
    def running(self) -> bool:
        return not self.process.killed

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.running:  # nobody would ever end it
            work.close()
            raise Killed(self.name)
        return await self.process.run(work)

    async def close(self) -> None:
        await self.run(self.kv.close())
        self.left = [*await self.process.left(), *self._network.held_by(self.name)]
        self.process.stopped = not self.process.killed
        self.kill()

    def kill(self) -> None:
        if self.running:
            self.process.kill()
            self._network.crash(self.name, gone=True)

    def pause(self, *, buffered: bool = False) -> None:
        """SIGSTOP. `buffered`: what is sent to it waits in its own buffers, not on the way."""
        self.process.pause()
        self._network.pause(self.name, buffered=buffered)

    def resume(self) -> None:
        self._network.resume(self.name)  # first: a process reads what has come before it runs its late timers
        self.process.resume()


class PartitionCluster:
    def __init__(
        self, sim: SimCluster, *, managers: int, servers: int, balance: BalanceConfig = NO_BALANCE, **server: Any
    ) -> None:
        self.sim = sim
        self.config = PartitionManagerConfig(
            cluster=CLUSTER,
            stream_managers=[manager.address for manager in sim.managers.values()],
            lease_ttl_s=LEASE_TTL_S,
            start_grace_s=5.0,
            balance=balance,
        )
        self.managers = {
            number: SimPartitionManager(sim, number=number, config=self.config) for number in range(1, managers + 1)
        }
        self.manager_addresses = [manager.address for manager in self.managers.values()]
        self._server_config = {"engine": ENGINE, "serving": SERVING, "memory_bytes_max": 8 << 20, **server}
        self.servers: dict[int, SimPartitionServer] = {}
        for number in range(1, servers + 1):
            self.add_server(number)
        self.clients: list[SimKeyValue] = []
        self.watcher = RegionWatcher(ROOT)
        sim.etcd.on_changed.append(self._look_at_map)
        self._names = itertools.count(1)
        self._pools: dict[str, ChannelPool] = {}
        self._operator = ManagerLink(
            self._channels("operator"),
            self.manager_addresses,
            options=OPTIONS,
            rng=random.Random(sim.rng.getrandbits(64)),
        )

    def _channels(self, name: str) -> ChannelPool:
        """One for each name: whoever is called so uses it until all is over."""
        if name not in self._pools:
            network, limits = self.sim.network, OPTIONS.limits
            self._pools[name] = ChannelPool(
                lambda address: network.channel(name, address, cluster=CLUSTER, limits=limits)
            )
        return self._pools[name]

    async def hang_up(self) -> None:
        """Operators and clients ask for nothing any more."""
        for client in self.clients:
            if client.running:
                await client.close()
        for pool in self._pools.values():
            await pool.close()

    def add_server(self, number: int) -> SimPartitionServer:
        self.servers[number] = SimPartitionServer(
            self.sim, number=number, managers=self.manager_addresses, **self._server_config
        )
        return self.servers[number]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        for manager in self.managers.values():
            await manager.start()
        await self.leader()
        for server in self.servers.values():
            await server.start()
        await self.until(lambda: len(self.watcher.state.servers) == len(self.servers), "all servers are registered")

    async def __aexit__(self, *_: object) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for client in self.clients:
            client.kill()
        for server in self.servers.values():
            server.kill()
        for manager in self.managers.values():
            manager.kill()

    # --- looking on ------------------------------------------------------------------------------------------

    def _look_at_map(self) -> None:
        try:
            self.watcher.catch_up(self.sim.etcd.key_space)
            for partition_id in self.watcher.partition_ids:  # of the same counter
                self.sim.etcd.claim(partition_id, "partition", self.sim.etcd.key_space.revision)
        except (AssertionError, MapBroken) as error:  # whoever wrote it shall not notice
            self.sim.violations.append(f"revision {self.sim.etcd.key_space.revision}: {error} (T52)")

    async def until(self, happened: Callable[[], bool], what: str, *, limit_s: float = 120.0) -> None:
        await self.sim.until(happened, what, limit_s=limit_s)

    async def leader(self) -> SimPartitionManager:
        def leading() -> list[SimPartitionManager]:
            return [manager for manager in self.managers.values() if manager.running and manager.term is not None]

        await self.until(lambda: bool(leading()), "a partition manager leads")
        return leading()[0]

    @property
    def map(self) -> RegionMap:
        return self.watcher.maps[-1]

    def homes(self) -> dict[int, int]:
        return {region.partition_id: region.server_id for region in self.map.regions}

    def region(self, key: bytes) -> pm.RegionRecord:
        return self.map.find(key)

    def all_served(self) -> bool:
        served = [number for server in self.servers.values() for number in server.serving()]
        return sorted(served) == sorted(region.partition_id for region in self.map.regions)

    async def until_served(self, *, limit_s: float = 120.0) -> None:
        await self.until(self.all_served, "every region is served", limit_s=limit_s)

    # --- use -------------------------------------------------------------------------------------------------

    async def order(self, method: Method[Any, Rep], request: Any, *, timeout_s: float = 40.0) -> Rep:
        return await self._operator.order(method, request, timeout_s=timeout_s, attempt_timeout_s=timeout_s)

    async def once(self, method: Method[Any, Rep], request: Any, *, timeout_s: float = 40.0) -> Rep:
        """One attempt at the leader; whatever it says."""
        channel = self._channels("impatient").channel((await self.leader()).address)
        return (await channel.call(method, request, timeout_s=timeout_s)).message

    def call_id(self) -> common_pb2.CallId:
        return self._operator.next_call()

    async def bootstrap(self, *split_keys: bytes) -> pm.BootstrapReply:
        reply = await self.order(methods.PARTITION_MANAGER_BOOTSTRAP, pm.BootstrapRequest(split_keys=split_keys))
        await self.until_served()
        return reply

    async def move(self, partition_id: int, server_id: int) -> pm.MoveRegionReply:
        request = pm.MoveRegionRequest(partition_id=partition_id, server_id=server_id)
        return await self.order(methods.PARTITION_MANAGER_MOVE_REGION, request)

    async def split(self, partition_id: int, middle_key: bytes = b"") -> pm.SplitRegionReply:
        request = pm.SplitRegionRequest(partition_id=partition_id, middle_key=middle_key)
        return await self.order(methods.PARTITION_MANAGER_SPLIT_REGION, request)

    async def merge(self, left_id: int, right_id: int) -> pm.MergeRegionsReply:
        request = pm.MergeRegionsRequest(left_partition_id=left_id, right_partition_id=right_id)
        return await self.order(methods.PARTITION_MANAGER_MERGE_REGIONS, request)

    def operator_channel(self, address: str) -> Channel:
        return self._channels("operator").channel(address)

    async def compact(self, partition_id: int) -> None:
        address = self.servers[self.homes()[partition_id]].address
        request = ps.CompactPartitionRequest(partition_id=partition_id, full=True)
        channel = self.operator_channel(address)
        await channel.call(methods.PARTITION_SERVER_COMPACT_PARTITION, request, timeout_s=30.0)

    async def kv(self, name: str = "", *, options: KeyValueOptions = KV_OPTIONS) -> KeyValueClient:
        client = self.new_client(name or f"kv{next(self._names)}", options)
        await client.run(client.kv.open())
        return client.kv

    def new_client(self, name: str, options: KeyValueOptions) -> SimKeyValue:
        """To be opened."""
        client = SimKeyValue(self, name, options)
        self.clients.append(client)
        return client

    async def heal(self) -> None:
        """All trouble ends: whatever is down or stopped runs again."""
        await self.sim.heal()
        await self.heal_own()
        await self.until_served()

    async def heal_own(self) -> None:
        """The same, of what is not the stream layer's. Partitions may be on their way for as long as operators move
        them."""
        for client in self.clients:
            if client.running and client.process.paused:
                client.resume()
        for process in (*self.managers.values(), *self.servers.values()):
            if not process.running:
                await process.start()
            elif process.process is not None and process.process.paused:
                process.resume()
            calm(process.store)
        for server in self.servers.values():
            server.skew_ms = 0
        await self.leader()


Story = Callable[..., Coroutine[Any, Any, None]]


def partitioned(
    *,
    seed: int = 0,
    managers: int = 1,
    servers: int = 2,
    balance: BalanceConfig = NO_BALANCE,
    server: dict[str, Any] | None = None,
    **how: Any,
) -> Callable[[Story], Callable[..., None]]:
    """Turns a story into a test; further parameters of the story are pytest's. `seed` may be one of them."""

    def decorate(story: Story) -> Callable[..., None]:
        @functools.wraps(story)
        def test(**named: Any) -> None:
            async def run(sim: SimCluster) -> None:
                cluster = PartitionCluster(sim, managers=managers, servers=servers, balance=balance, **(server or {}))
                async with cluster:
                    await story(cluster, **named)

            small = Defaults(extent_bytes_max=EXTENT_BYTES)
            run_story(run, seed=named.get("seed", seed), **{"managers": 1, "nodes": 4, "defaults": small, **how})

        signature = inspect.signature(story)
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return test

    return decorate
