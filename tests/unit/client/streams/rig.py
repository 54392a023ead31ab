"""A cluster for the client's tests: real nodes on simulated machines, a scripted manager, and clients.

def test_something() -> None:
    async def story(rig: Rig) -> None: ...
    run(story, seed=1)
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.client.streams.types import Position, Record
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.proto import common_pb2
from neve.rpc.limits import Limits
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from tests.sim.network.network import SimNetwork
from tests.sim.processes import processes
from tests.sim.processes.node import CLUSTER, SimNode
from tests.sim.processes.processes import Process
from tests.unit.client.streams.scripted_manager import METHODS, ScriptedManager

MANAGER = "manager1:3401"
REAL_LIMIT_S = 200.0

# Small enough that a few records fill frames, extents and bounds.
OPTIONS = ClientOptions(
    frame_bytes=2000,
    writer_bytes_max=50_000,
    buffer_bytes_max=200_000,
    block_payload_bytes_max=1000,
    read_bytes=3000,
    read_first_bytes=1000,
    append_timeout_s=0.5,
    follow_wait_s=1.0,
    lease_ttl_s=5,
    limits=Limits(dead_peer_s=6.0, keepalive_s=2.0, connect_timeout_s=0.5, handshake_timeout_s=0.5),
)


class Rig:
    """Made inside of the loop that it runs on."""

    def __init__(self, seed: int = 0, *, nodes: int = 4, extent_bytes_max: int = 1 << 20) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(random.Random(self.rng.getrandbits(64)))
        self.store = MemoryStore()
        self.nodes = [SimNode(self.network, node_id=number + 1, managers=[]) for number in range(nodes)]
        self.manager = ScriptedManager(self.store.client(), self.channels("manager1"))
        self.manager.extent_bytes_max = extent_bytes_max
        self.manager.nodes = {node.node_id: node.address for node in self.nodes}
        self.network.serve(MANAGER, [Service(METHODS, self.manager)], cluster=CLUSTER)
        self.metas: list[MemoryClient] = []

    async def start(self) -> None:
        for node in self.nodes:
            await node.start()

    def node(self, node_id: int) -> SimNode:
        return self.nodes[node_id - 1]

    def channels(self, host: str) -> ChannelPool:
        limits = OPTIONS.limits
        return ChannelPool(lambda address: self.network.channel(host, address, cluster=CLUSTER, limits=limits))

    def make_client(self, host: str = "client", **changes: Any) -> Client:
        meta = self.store.client()
        self.metas.append(meta)
        return Client(
            [MANAGER],
            cluster=CLUSTER,
            meta=meta,
            channels=self.channels(host),
            rng=random.Random(self.rng.getrandbits(64)),
            options=dataclasses.replace(OPTIONS, **changes),
        )

    @asynccontextmanager
    async def client(self, host: str = "client", **changes: Any) -> AsyncIterator[Client]:
        async with self.make_client(host, **changes) as client:
            yield client

    def tail_nodes(self, stream_id: int) -> list[SimNode]:
        tail = self.manager.extents[self.manager.streams[stream_id].extent_ids[-1]]
        return [self.node(each.replica.node_id) for each in tail.replicas]


async def read_all(client: Client, stream_id: int, start: Position | None = None, **how: Any) -> list[Record]:
    return [record async for record in client.read(stream_id, start=start, **how)]


async def payloads_of(client: Client, stream_id: int) -> list[bytes]:
    return [bytes(record.payload) for record in await read_all(client, stream_id)]


def run(story: Callable[[Rig], Coroutine[Any, Any, None]], *, seed: int = 0, **how: Any) -> None:
    async def main() -> None:
        rig = Rig(seed, **how)
        await rig.start()
        await story(rig)

    processes.run(main(), seed=seed, real_limit_s=REAL_LIMIT_S)


__all__ = ["MANAGER", "OPTIONS", "Process", "Rig", "asyncio", "common_pb2", "payloads_of", "read_all", "run"]
