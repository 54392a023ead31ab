"""A manager that leads, on the in-memory twin of etcd, and real extent nodes, on one simulated network.

The manager is the real one but for its front door: `Door` hands the nodes' calls to the part under test. With
`manual=True` its loops stand still, and a test calls single passes; otherwise all runs by itself, in virtual time.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Self

from neve.extent_node.config import Location
from neve.meta.lock import lock_key
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.method import Method
from neve.proto.methods import EXTENT_NODE_APPEND_BLOCK, STREAM_MANAGER
from neve.proto.stream_policy import StreamPolicy
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call, Service
from neve.stream_manager.config import Collecting, ManagerConfig, Placing, Recovery
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata.records import Extent, ReplicaAt, Stream
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from neve.stream_manager.nodes.core.health import HealthConfig
from neve.stream_manager.streams.make_extent import make_extent
from neve.stream_manager.streams.seal_tail import SealOrder, seal_tail
from neve.stream_manager.term.context import LeaderContext, Mutation, NodeChoice, PlacementRequest
from neve.stream_manager.term.leader import Term
from neve.stream_manager.term.node_calls import RpcNodeCalls
from tests.sim.network.network import SimNetwork
from tests.sim.processes import processes
from tests.sim.processes.node import CLUSTER, WALL_EPOCH_MS, SimNode
from tests.unit.extent_node.store.rig import block_of, segment

MANAGER = "manager1:3401"
REAL_LIMIT_S = 200.0
TOKEN = 1  # below every lock's revision
DOOR_METHODS = ("register_node", "heartbeat", "report_replicas", "report_bad_replica")

BLOCKS = [block_of(f"block {number}", 60 + 30 * number) for number in range(6)]
BYTES = b"".join(BLOCKS)


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on the deterministic loop whose tasks belong to processes."""

    @functools.wraps(test)
    def run() -> None:
        processes.run(test(), seed=0, real_limit_s=REAL_LIMIT_S)

    del run.__wrapped__
    return run


def config(**changes: Any) -> ManagerConfig:
    """Short delays: virtual time is free, but each heartbeat is real work."""
    tables: dict[str, Any] = {
        "health": HealthConfig(
            heartbeat_s=1.0, suspect_after_s=3.0, dead_after_s=8.0, stabilise_s=3.0, leader_grace_s=4.0
        ),
        "placing": Placing(free_bytes_min=1),
        "recovery": Recovery(delay_s=5.0, retry_delay_s=1.0, retry_delay_s_max=4.0),
        "collecting": Collecting(grace_s=120.0, extra_replica_grace_s=60.0, interval_s=5.0),
        **changes,
    }
    return ManagerConfig(cluster=CLUSTER, lease_ttl_s=3, **tables)


def mutation(*, call_id: int = 0, replayed: Any = None) -> Mutation:
    return Mutation((1 if call_id else 0, call_id), 0, 0, "test", wall_ms(), replayed)


def wall_ms() -> int:
    return WALL_EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


class StillNodes(ClusterNodes):
    """Its loops do not run: a test calls the passes."""

    def start(self) -> None:
        pass


class Door:
    """What nodes call, answered by whoever leads."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def register_node(self, request: sm.RegisterNodeRequest, call: Call) -> sm.RegisterNodeReply:
        return await self._rig.part.registry.register(request, mutation())

    async def heartbeat(self, request: sm.HeartbeatRequest, call: Call) -> sm.HeartbeatReply:
        return self._rig.part.registry.heartbeat(request)

    async def report_replicas(self, request: sm.ReportReplicasRequest, call: Call) -> sm.ReportReplicasReply:
        self._rig.part.reports.page(request)
        return sm.ReportReplicasReply(leader=self._rig.ctx.leader)

    async def report_bad_replica(self, request: sm.ReportBadReplicaRequest, call: Call) -> sm.ReportBadReplicaReply:
        self._rig.part.bad.report(request.bad_replicas)
        return sm.ReportBadReplicaReply()


class Rig:
    def __init__(self, *, manual: bool = False, seed: int = 0, **changes: Any) -> None:
        self.network = SimNetwork(random.Random(seed))
        self.etcd = MemoryStore()
        self.config = config(**changes)
        self.manual = manual
        self.nodes: dict[int, SimNode] = {}
        self.stores: list[MemoryClient] = []
        self.manager: Manager
        methods: list[Method[Any, Any]] = [method for method in STREAM_MANAGER if method.handler in DOOR_METHODS]
        self.network.serve(MANAGER, [Service(methods, Door(self))], cluster=CLUSTER)

    async def __aenter__(self) -> Self:
        await self.lead()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.depose()
        for node in self.nodes.values():
            node.kill()

    # --- the manager -----------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """A manager that leads; call it again for the next one, after `depose`."""
        store = self.etcd.client()
        channels = ChannelPool(lambda address: self.network.channel("manager1", address, cluster=CLUSTER))
        self.manager = Manager(
            self.config,
            store,
            make_node_calls=lambda leader, node: RpcNodeCalls(
                channels, leader=leader, node=node, timeout_s=2.0, seal_timeout_s=10.0
            ),
            make_cluster_nodes=StillNodes if self.manual else ClusterNodes,
            rng=random.Random(7),
            wall_ms=wall_ms,
        )
        self.manager.start(MANAGER)
        await self.until(lambda: self.manager.term is not None)

    async def depose(self) -> None:
        await self.manager.stop()

    @property
    def term(self) -> Term:
        return self.manager.leading()

    @property
    def ctx(self) -> LeaderContext:
        return self.term.ctx

    @property
    def part(self) -> ClusterNodes:
        return self.term.cluster_nodes

    # --- nodes -----------------------------------------------------------------------------------------------

    async def start_nodes(self, *node_ids: int, **how: Any) -> None:
        for node_id in node_ids:
            self.nodes[node_id] = SimNode(self.network, node_id=node_id, managers=[MANAGER], **how)
            await self.nodes[node_id].start()
        await self.until(lambda: all(node_id in self.ctx.state.nodes for node_id in node_ids))

    async def start_node_at(self, node_id: int, region: str, rack: str) -> None:
        await self.start_nodes(node_id, location=Location(region=region, rack=rack))

    # --- streams ---------------------------------------------------------------------------------------------

    async def make_stream(self, *, replicas: int = 3, nodes: tuple[int, ...] = (), blocks: list[bytes] = BLOCKS) -> int:
        """A stream with one open extent, on these nodes if they are named, with these blocks; its stream id."""
        ctx = self.ctx
        policy = StreamPolicy(replicas=replicas, extent_bytes_max=1 << 20)
        stream_id = await ctx.ids.take()
        if nodes:
            others = frozenset(ctx.state.nodes) - frozenset(nodes)
            extent = await _made_on(ctx, policy, stream_id, others)
        else:
            extent = await make_extent(ctx, policy, stream_id=stream_id)
        stream = Stream(stream_id, "", f"stream/{stream_id}", (extent.extent_id,), False, policy, (), 1, wall_ms())
        changes = ctx.changes()
        changes.put_extent(None, extent)
        changes.put_stream(None, stream)
        await ctx.commit(changes)
        await self.append(extent, 0, blocks)
        return stream_id

    async def append(self, extent: Extent, offset: int, blocks: list[bytes], nodes: tuple[int, ...] = ()) -> None:
        """To these nodes, all of the extent's by default."""
        for replica in extent.replicas:
            if blocks and (not nodes or replica.node_id in nodes):
                message, body = segment(extent.extent_id, offset, blocks, token=TOKEN, eversion=extent.eversion)
                channel = self.network.channel("writer", self.nodes[replica.node_id].address, cluster=CLUSTER)
                request = en.AppendBlockRequest(segments=[message])
                reply = await channel.call(EXTENT_NODE_APPEND_BLOCK, request, timeout_s=5.0, attachment=[body])
                assert not reply.message.results[0].HasField("error"), reply

    def tail(self, stream_id: int) -> Extent:
        state = self.ctx.state
        tail_id = state.streams[stream_id].tail_id
        assert tail_id is not None
        return state.extents[tail_id]

    async def seal(self, stream_id: int, *, acknowledged_end: int | None = None) -> Extent:
        """Without a successor; its replicas are told behind that. With an end it is an owner who asks."""
        ctx = self.ctx
        stream = ctx.state.streams[stream_id]
        order = SealOrder()
        if acknowledged_end is not None:
            token = await self.manager.store.put(lock_key(ctx.root, stream.lock), b"owner")
            order = SealOrder(owner=common_pb2.Owner(lock=stream.lock, token=token), acknowledged_end=acknowledged_end)
        async with ctx.locks.hold(streams=[stream_id]):
            _, sealed = await seal_tail(ctx, stream, self.tail(stream_id), order)
        return sealed

    async def sealed_stream(self, **how: Any) -> Extent:
        """A sealed extent that all of its replicas have confirmed."""
        extent = await self.seal(await self.make_stream(**how))
        await self.until(lambda: self.extent(extent.extent_id).all_confirmed)
        return self.extent(extent.extent_id)

    def extent(self, extent_id: int) -> Extent:
        return self.ctx.state.extents[extent_id]

    # --- looking on ------------------------------------------------------------------------------------------

    async def until(self, happened: Callable[[], bool], *, limit_s: float = 600.0) -> None:
        """Virtual seconds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not happened():
            assert loop.time() < deadline_s, "it did not happen"
            await asyncio.sleep(0.1)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def on_node(self, node_id: int, extent_id: int) -> en.ReplicaInfo | None:
        """What a running node has of an extent."""
        store = self.nodes[node_id].store
        replicas, _ = store.inventory.list(after_extent_id=extent_id - 1, limit=1, unsealed_only=False)
        return replicas[0] if replicas and replicas[0].extent_id == extent_id else None

    def holders(self, extent_id: int) -> list[int]:
        """Nodes that run and have a file of this extent."""
        running = [node_id for node_id, node in self.nodes.items() if node.running]
        return [node_id for node_id in running if self.on_node(node_id, extent_id) is not None]

    def bytes_on(self, node_id: int, extent_id: int) -> bytes:
        node = self.nodes[node_id]
        return node.fs.content(node.extent_path(extent_id))

    def bytes_on_or_none(self, node_id: int, extent_id: int) -> bytes | None:
        return self.bytes_on(node_id, extent_id) if node_id in self.holders(extent_id) else None

    def check_equal(self, extent_id: int) -> None:
        """T10: every confirmed replica has the same bytes, and exactly as many as the seal says."""
        extent = self.extent(extent_id)
        assert extent.seal is not None
        assert extent.all_confirmed, extent
        found = {node_id: self.bytes_on(node_id, extent_id) for node_id in extent.node_ids}
        assert len(set(found.values())) == 1, {node_id: len(data) for node_id, data in found.items()}
        assert all(len(data) == extent.seal.length for data in found.values())


async def _made_on(ctx: LeaderContext, policy: StreamPolicy, stream_id: int, others: frozenset[int]) -> Extent:
    extent = None
    registry = ctx.cluster_nodes.registry
    original = registry.choose

    def choose(request: PlacementRequest) -> list[NodeChoice]:
        return original(replace(request, excluded=request.excluded | others))

    registry.choose = choose  # type: ignore[method-assign]
    try:
        extent = await make_extent(ctx, policy, stream_id=stream_id)
    finally:
        registry.choose = original  # type: ignore[method-assign]
    return extent


async def error_of(work: Awaitable[Any], kind: type[BaseException]) -> str:
    try:
        await work
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


__all__ = ["BLOCKS", "BYTES", "ReplicaAt", "Rig", "error_of", "mutation", "simulated"]
