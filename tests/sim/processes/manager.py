"""A stream manager in the simulation: the real manager and servicer, as a process that can be killed and stopped.

    manager = SimManager(network, etcd, number=1, config=config)
    manager.start(); manager.pause(); manager.resume(); manager.kill(); manager.start()

Invariants: each start is a new process with a connection of its own to the metadata store; a killed one has lost its
            connection before its tasks come to their end, so that it changes nothing any more;
            everything by chance is drawn from the seed of the network.
"""

from __future__ import annotations

import asyncio
import random

from neve.meta.memory.client import MemoryClient
from neve.meta.memory.link import FaultPlan
from neve.proto import methods
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.manager import Manager
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from neve.stream_manager.servicer import StreamManagerServicer
from neve.stream_manager.term.leader import Term
from neve.stream_manager.term.node_calls import RpcNodeCalls
from tests.sim.checks.watched_store import WatchedStore
from tests.sim.network.network import SimNetwork
from tests.sim.processes.node import CLUSTER, WALL_EPOCH_MS
from tests.sim.processes.processes import Clock, Process

PORT = 3401
META_TIMEOUT_S = 1.0
DRAIN_S = 5.0


def meta_plan(rng: random.Random) -> FaultPlan:
    """A metadata store in the same rack, without faults."""
    return FaultPlan(rng=rng, delay_s_min=0.0002, delay_s_max=0.002)


class SimManager:
    """One machine, and at most one manager process on it."""

    def __init__(self, network: SimNetwork, etcd: WatchedStore, *, number: int, config: ManagerConfig) -> None:
        self.host = f"manager{number}"
        self.address = f"{self.host}:{PORT}"
        self.process: Process | None = None
        self.skew_ms = 0  # how wrong its clock is
        self.clock = Clock()
        self.left: list[str] = []  # tasks that were not over when it had stopped, and to whom it was connected
        self.store: MemoryClient
        self.manager: Manager
        self._network = network
        self._etcd = etcd
        self._config = config
        self._rng = random.Random(network.rng.getrandbits(64))

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    @property
    def term(self) -> Term | None:
        """The term that it serves; None if it is gone, paused, or does not lead."""
        return self.manager.term if self.process is not None and not self.process.paused else None

    def start(self) -> None:
        """It campaigns from now on, and answers what followers answer."""
        assert self.process is None, f"{self.host} runs"
        self.process = Process(self.host, clock=self.clock)
        self.process.enter(self._start, self.process)

    def _start(self, process: Process) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        plan = meta_plan(random.Random(rng.getrandbits(64)))
        self.store = self._etcd.connect(process, plan=plan, call_timeout_s=META_TIMEOUT_S)
        timeouts = self._config.timeouts
        channels = self._channels = ChannelPool(
            lambda address: self._network.channel(self.host, address, cluster=CLUSTER)
        )
        self.manager = Manager(
            self._config,
            self.store,
            make_node_calls=lambda leader, node: RpcNodeCalls(
                channels,
                leader=leader,
                node=node,
                timeout_s=timeouts.node_call_s,
                seal_timeout_s=timeouts.node_seal_s,
            ),
            make_cluster_nodes=ClusterNodes,
            rng=rng,
            wall_ms=self.wall_ms,
        )
        servicer = StreamManagerServicer(self.manager)
        services = [Service(methods.STREAM_MANAGER, servicer)]
        self._server = self._network.serve(self.address, services, cluster=CLUSTER)
        self.manager.start(self.address)

    async def stop(self) -> None:
        """SIGTERM: it resigns. What it leaves behind is in `left`."""
        process = self.process
        assert process is not None
        await process.spawn(self._stop())
        if self.process is process:
            self.left = [*await process.left(), *self._network.held_by(self.host)]
            process.stopped = True
            if self.process is process:
                self.kill()

    async def _stop(self) -> None:
        """In the order of stream_manager/server.py."""
        await self.manager.stop()
        await self._server.stop(DRAIN_S)
        await self._channels.close()

    # --- trouble ---------------------------------------------------------------------------------------------

    def kill(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        self.store.disconnect()
        process.kill()
        self._network.crash(self.host, gone=True)

    def pause(self) -> None:
        """SIGSTOP. What it has sent to the metadata store still arrives there."""
        assert self.process is not None
        self.process.pause()
        self._network.pause(self.host)

    def resume(self) -> None:
        assert self.process is not None
        self._network.resume(self.host)  # first: a process reads what has come before it runs its late timers
        self.process.resume()

    def wall_ms(self) -> int:
        return wall_ms() + self.skew_ms


def wall_ms() -> int:
    return WALL_EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
