"""Partition managers and partition servers in the simulation: the real ones, as processes to be killed and stopped.

    server = SimPartitionServer(cluster, number=1, managers=[...])
    await server.start(); server.pause(); server.resume(); server.kill(); await server.stop()

Invariants: those of manager.py: each start is a new process with its own connection to the metadata store, which a
            killed one has lost before its tasks come to their end; all chance comes from the network's seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from neve.client.manager_link import ManagerLink
from neve.client.streams.client import Client
from neve.meta.memory.client import MemoryClient
from neve.partition_manager.config import PartitionManagerConfig
from neve.partition_manager.manager import Manager
from neve.partition_manager.metrics import ManagerMetrics
from neve.partition_manager.servicer import PartitionManagerServicer
from neve.partition_manager.term import Term
from neve.partition_server.config import PartitionServerConfig
from neve.partition_server.hosted import Phase, Surroundings
from neve.partition_server.lifecycle import Host
from neve.partition_server.metrics import ServerMetrics
from neve.partition_server.registration import Registration
from neve.partition_server.server import loads_of, surroundings
from neve.partition_server.servicer import PartitionServerServicer
from neve.proto import methods
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from tests.sim.cluster import SimCluster
from tests.sim.network.network import SimServer
from tests.sim.processes.client import OPTIONS
from tests.sim.processes.manager import META_TIMEOUT_S, meta_plan, wall_ms
from tests.sim.processes.node import CLUSTER
from tests.sim.processes.processes import Clock, Process, lasting

CLIENT_OPTIONS = dataclasses.replace(
    OPTIONS, writer_bytes_max=200_000, buffer_bytes_max=2_000_000, block_payload_bytes_max=20_000
)
DRAIN_S = 2.0  # calls that are under way when a process is told to stop have so long: as real ones, at the same point


class SimProcess:
    """What both kinds have in common: a machine, and at most one process on it."""

    def __init__(self, cluster: SimCluster, host: str, port: int) -> None:
        self.host = host
        self.address = f"{host}:{port}"
        self.process: Process | None = None
        self.clock = cluster.clocks[host] = Clock()
        self.store: MemoryClient
        self.streams: Client
        self.door: SimServer
        self._channels: ChannelPool
        self.up = False  # it runs, and has started
        self.left: list[str] = []  # tasks that were not over when it had stopped
        self._cluster = cluster
        self._rng = random.Random(cluster.network.rng.getrandbits(64))

    @property
    def running(self) -> bool:
        return self.process is not None

    def _connect(self, process: Process) -> random.Random:
        """In the process: its connections, and its own chance."""
        cluster = self._cluster
        rng = random.Random(self._rng.getrandbits(64))
        plan = meta_plan(random.Random(rng.getrandbits(64)))
        self.store = cluster.etcd.connect(process, plan=plan, call_timeout_s=META_TIMEOUT_S)
        self.streams = Client(
            [manager.address for manager in cluster.managers.values()],
            cluster=CLUSTER,
            meta=self.store,
            channels=self.channels(),
            rng=random.Random(rng.getrandbits(64)),
            options=CLIENT_OPTIONS,
        )
        return rng

    def channels(self) -> ChannelPool:
        network, limits = self._cluster.network, OPTIONS.limits
        return ChannelPool(lambda address: network.channel(self.host, address, cluster=CLUSTER, limits=limits))

    async def start(self) -> None:
        """Until it is up. If it fails, or is killed meanwhile, there is no process."""
        assert self.process is None, f"{self.host} runs"
        process = self.process = Process(self.host, clock=self.clock)
        rng = process.enter(self._connect, process)
        try:
            await process.run(self._start(rng))
        except BaseException:
            if self.process is process:
                self.kill()
            raise
        self.up = True

    async def _start(self, rng: random.Random) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        """SIGTERM. `Killed` if it is killed before it is done."""
        process = self.process
        assert process is not None
        await process.run(self._stop())
        if self.process is process:
            self.left = [*process.tasks(), *self._cluster.network.held_by(self.host)]
            process.stopped = True
            self.kill()

    async def _stop(self) -> None:
        raise NotImplementedError

    @property
    def active(self) -> bool:
        """It has started, and is not stopped."""
        return self.up and self.process is not None and not self.process.paused

    def kill(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        self.up = False
        self.store.disconnect()
        process.kill()
        self._cluster.network.crash(self.host, gone=True)

    def pause(self, *, buffered: bool = False) -> None:
        """SIGSTOP. `buffered`: what is sent to it waits in its own buffers, not on the way."""
        assert self.process is not None
        self.process.pause()
        self._cluster.network.pause(self.host, buffered=buffered)

    def resume(self) -> None:
        assert self.process is not None
        self._cluster.network.resume(self.host)  # first: a process reads what has come before it runs its late timers
        self.process.resume()


class SimPartitionManager(SimProcess):
    def __init__(self, cluster: SimCluster, *, number: int, config: PartitionManagerConfig) -> None:
        super().__init__(cluster, f"pmanager{number}", 3701)
        self.manager: Manager
        self._config = config

    @property
    def term(self) -> Term | None:
        """The term that it serves; None if it is gone, paused, or does not lead."""
        return self.manager.term if self.active else None

    async def _start(self, rng: random.Random) -> None:
        await self.streams.open()
        channels = self._channels = self.channels()
        self.manager = Manager(self._config, self.store, streams=self.streams, channels=channels, rng=rng)
        servicer = PartitionManagerServicer(self.manager, ManagerMetrics(CollectorRegistry()))
        service = Service(methods.PARTITION_MANAGER, servicer)
        self.door = self._cluster.network.serve(self.address, [service], cluster=CLUSTER)
        self.manager.start(self.address)

    async def _stop(self) -> None:
        await self.manager.stop()
        await self.door.stop(DRAIN_S)
        await self.streams.close()
        await self._channels.close()


class SimPartitionServer(SimProcess):
    def __init__(self, cluster: SimCluster, *, number: int, managers: Sequence[str], **config: Any) -> None:
        super().__init__(cluster, f"pserver{number}", 3801)
        self.host_: Host
        self.around: Surroundings
        self.registration: Registration
        self.config = PartitionServerConfig(
            cluster=CLUSTER,
            stream_managers=[manager.address for manager in cluster.managers.values()],
            partition_managers=list(managers),
            server_id=number,
            lease_ttl_s=CLIENT_OPTIONS.lease_ttl_s,
            **config,
        )
        self.server_id = number
        self.skew_ms = 0  # how wrong its clock is

    async def _start(self, rng: random.Random) -> None:
        config = self.config
        await self.streams.open()
        self.around = surroundings(config, self.streams, rng=rng, wall_ms=lambda: wall_ms() + self.skew_ms)
        self.host_ = Host(self.around, self.store)
        servicer = PartitionServerServicer(
            self.host_, ServerMetrics(CollectorRegistry()), multi_reply_bytes_max=config.multi_reply_bytes_max
        )
        service = Service(methods.PARTITION_SERVER, servicer)
        self.door = self._cluster.network.serve(self.address, [service], cluster=CLUSTER)
        channels = self._channels = self.channels()
        self.registration = Registration(
            config,
            self.streams,
            ManagerLink(channels, config.partition_managers, options=CLIENT_OPTIONS, rng=rng),
            wire_address=self.address,
            grpc_address="",
            loads=lambda: loads_of(self.host_),
            rng=rng,
        )
        self._tasks = [
            lasting(asyncio.create_task(self.registration.run(), name=f"{self.host} registration")),
            lasting(asyncio.create_task(self._serve(), name=f"{self.host} serve")),
        ]

    async def _serve(self) -> None:
        await self.registration.registered.wait()
        self.host_.start(self.registration.server_id)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.host_.stop()
        await self.door.stop(DRAIN_S)
        await self.streams.close()
        await self._channels.close()

    def serving(self) -> list[int]:
        """Which partitions it serves, by its own word."""
        if not self.active:
            return []
        return [number for number, each in sorted(self.host_.hosted.items()) if each.phase is Phase.SERVING]
