"""A key-value client on the simulated network, over partitions in a dict."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.client.streams.sync import LoopThread
from neve.rpc.limits import Limits
from neve.rpc.pool import ChannelPool
from tests.sim import loop as sim_loop
from tests.sim.network.network import SimNetwork
from tests.unit.client.objects.scripted_partitions import CLUSTER, MANAGER, ScriptedCluster

OPTIONS = KeyValueOptions(
    operation_timeout_s=20.0,
    attempt_timeout_s=2.0,
    map_timeout_s=1.0,
    alone_bytes_min=5000,
    frame_bytes_max=4000,
    part_bytes=10_000,
    first_part_bytes=1000,
    scan_page_keys_max=7,
    limits=Limits(dead_peer_s=6.0, keepalive_s=2.0, connect_timeout_s=0.5, handshake_timeout_s=0.5),
)


class Rig:
    def __init__(self, seed: int, **how: Any) -> None:
        self.rng = random.Random(seed)
        self.network = SimNetwork(random.Random(self.rng.getrandbits(64)))
        self.cluster = ScriptedCluster(**how)
        self.cluster.wall_ms = lambda: int(asyncio.get_running_loop().time() * 1000)
        self.cluster.serve_on(self.network)

    def make_client(
        self, host: str = "client", *, managers: tuple[str, ...] = (MANAGER,), **changes: Any
    ) -> KeyValueClient:
        options = dataclasses.replace(OPTIONS, **changes)
        pool = ChannelPool(lambda a: self.network.channel(host, a, cluster=CLUSTER, limits=options.limits))
        return KeyValueClient(
            managers, cluster=CLUSTER, channels=pool, rng=random.Random(self.rng.getrandbits(64)), options=options
        )

    @asynccontextmanager
    async def client(self, host: str = "client", **changes: Any) -> AsyncIterator[KeyValueClient]:
        async with self.make_client(host, **changes) as client:
            yield client


@contextmanager
def wire_cluster(**how: Any) -> Iterator[tuple[ScriptedCluster, str]]:
    """Partitions in a dict on real sockets, served by a thread; with the manager's address."""
    thread = LoopThread()

    async def make() -> tuple[ScriptedCluster, str]:
        cluster = ScriptedCluster(**how)
        return cluster, await cluster.serve_on_wire()

    cluster, address = thread.run(make())
    try:
        yield cluster, address
    finally:
        thread.run(cluster.stop())
        thread.stop()


def run(story: Callable[[Rig], Coroutine[Any, Any, None]], *, seed: int = 0, **how: Any) -> None:
    async def main() -> None:
        await story(Rig(seed, **how))

    sim_loop.run(main(), seed=seed, real_limit_s=120.0)
