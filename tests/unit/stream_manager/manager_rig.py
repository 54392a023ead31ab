"""Managers with their real servicers, on the in-memory twin of etcd and one simulated network.

Nodes are either real ones (`start_nodes`: `tests.sim.processes.node.SimNode`) or scripted (`ScriptedNodes`, with hooks
for trouble), which is faster and lets a test say exactly what a replica holds. Managers are processes of the
simulation: they can be paused and killed.

    @simulated
    async def test_...() -> None:
        async with Cluster() as cluster:
            await cluster.start_managers(1)
            owner = await cluster.owner()
            reply = await cluster.create(name="events")
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from neve.meta.lease import Lease
from neve.meta.lock import Lock, acquire_lock
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, LockedByOther, NeveError, NotEnoughNodes, NotLeader, ReplicaMissing
from neve.proto.method import Method, Rep, Req
from neve.rpc.authorisation import Authoriser
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from neve.stream_manager.config import Limits, ManagerConfig
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata import describe
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import Extent, NodeEntry, ReplicaAt, root_of
from neve.stream_manager.nodes.cluster_nodes import ClusterNodes
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.placement.topology import Topology, resolver_for
from neve.stream_manager.servicer import StreamManagerServicer
from neve.stream_manager.term.context import LeaderContext, Mutation, NodeChoice, PlacementRequest
from neve.stream_manager.term.leader import Term
from neve.stream_manager.term.node_calls import NodeCalls, RpcNodeCalls
from tests.sim.network.network import SimNetwork
from tests.sim.processes import processes
from tests.sim.processes.node import CLUSTER, WALL_EPOCH_MS, SimNode
from tests.sim.processes.processes import Process

REAL_LIMIT_S = 60.0
ROOT = root_of(CLUSTER)
CALL_TIMEOUT_S = 30.0
LEASE_TTL_S = 3


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on the deterministic loop whose tasks belong to processes."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        processes.run(test(*arguments, **named), seed=0, real_limit_s=REAL_LIMIT_S)

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    del run.__wrapped__
    return run


def wall_ms() -> int:
    return WALL_EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def config(**changes: Any) -> ManagerConfig:
    return ManagerConfig(cluster=CLUSTER, lease_ttl_s=LEASE_TTL_S, **{"limits": Limits(), **changes})


# --- nodes that do as they are told ---------------------------------------------------------------------------


@dataclass
class ScriptedReplica:
    incarnation: int
    length: int = 0
    committed: int = 0
    token: int = 0
    fenced: bool = False
    seal: common_pb2.Seal | None = None
    kind: en.LengthAnswer.Kind = en.LengthAnswer.LENGTH
    digest: bytes = b"digest"


@dataclass
class ScriptedCluster:
    """What all nodes hold, whoever asks: it outlives managers. `trouble` may raise or wait before a call is done."""

    replicas: dict[tuple[int, int], ScriptedReplica] = field(default_factory=dict)  # by (extent, node)
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # (what, extent, node), in order
    newest_leader: int = 0
    trouble: Callable[[str, int, int], Awaitable[None]] | None = None

    def append(self, extent: sm.ExtentInfo, length: int, *, nodes: Sequence[int] = (), token: int = 0) -> None:
        """Bring replicas to this length, as an owner's appends would; all of them unless some are named."""
        for replica in extent.replicas:
            node_id = replica.replica.node_id
            if not nodes or node_id in nodes:
                held = self.replicas[extent.extent_id, node_id]
                if held.fenced or held.seal is not None:
                    raise AssertionError(f"node {node_id} takes no append")
                if token < held.token:
                    raise LockedByOther(extent_id=extent.extent_id, token=token, token_seen=held.token)
                held.token = token
                held.length = length

    def of(self, extent_id: int) -> dict[int, ScriptedReplica]:
        return {node: replica for (extent, node), replica in self.replicas.items() if extent == extent_id}


class ScriptedNodes(NodeCalls):
    def __init__(self, cluster: ScriptedCluster, leader: common_pb2.Leader) -> None:
        self._cluster = cluster
        self._leader = leader

    async def _begin(self, what: str, extent_id: int, node_id: int) -> None:
        if self._cluster.trouble is not None:
            await self._cluster.trouble(what, extent_id, node_id)
        if self._leader.create_revision < self._cluster.newest_leader:
            raise NotLeader(detail="a later election was heard of")
        self._cluster.newest_leader = self._leader.create_revision
        self._cluster.calls.append((what, extent_id, node_id))

    async def create(
        self, extent_id: int, choice: NodeChoice, *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> ReplicaAt:
        await self._begin("create", extent_id, choice.node_id)
        replica = ScriptedReplica(incarnation=1000 + len(self._cluster.replicas))
        self._cluster.replicas[extent_id, choice.node_id] = replica
        return ReplicaAt(choice.node_id, f"disk-{choice.node_id}", replica.incarnation)

    def _find(self, extent_id: int, replica: ReplicaAt) -> ScriptedReplica | None:
        return self._cluster.replicas.get((extent_id, replica.node_id))

    def _answer(self, found: ScriptedReplica | None) -> en.LengthAnswer:
        if found is None:
            return en.LengthAnswer(kind=en.LengthAnswer.NEVER_EXISTED)
        trusted = found.kind == en.LengthAnswer.LENGTH
        return en.LengthAnswer(
            kind=found.kind,
            length=found.length if trusted else 0,
            valid_length=0 if trusted else found.length,
            committed=found.committed,
            token=found.token,
            fenced=found.fenced,
            seal=found.seal,
        )

    async def raise_token(
        self, extent: Extent, replica: ReplicaAt, *, token: int, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        await self._begin("raise", extent.extent_id, replica.node_id)
        return self._raised(extent, replica, token)

    def _raised(self, extent: Extent, replica: ReplicaAt, token: int) -> en.LengthAnswer:
        found = self._find(extent.extent_id, replica)
        if found is not None and found.seal is None:
            if token and token < found.token:
                raise LockedByOther(extent_id=extent.extent_id, token=token, token_seen=found.token)
            found.token = max(found.token, token)
        return self._answer(found)

    async def fence(
        self, extent: Extent, replica: ReplicaAt, *, token: int = 0, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        await self._begin("fence", extent.extent_id, replica.node_id)
        self._raised(extent, replica, token)
        found = self._find(extent.extent_id, replica)
        if found is not None:
            found.fenced = True
        return self._answer(found)

    async def seal(self, extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
        await self._begin("seal", extent.extent_id, replica.node_id)
        assert extent.seal is not None
        found = self._find(extent.extent_id, replica)
        if found is None:
            raise ReplicaMissing(extent_id=extent.extent_id)
        found.fenced = True
        if found.length < extent.seal.length:
            return en.SealExtentReply(confirmed=False, length=found.length)
        found.length = extent.seal.length
        found.seal = common_pb2.Seal(length=found.length, eversion=extent.seal.eversion, digest=found.digest)
        return en.SealExtentReply(confirmed=True, seal=found.seal, length=found.length)

    async def start_copy(self, extent: Extent, target: ReplicaAt, **how: Any) -> None:
        raise AssertionError("not in this script")

    async def delete(self, extent_id: int, replica: ReplicaAt, *, eversion: int) -> bool:
        await self._begin("delete", extent_id, replica.node_id)
        return self._cluster.replicas.pop((extent_id, replica.node_id), None) is not None

    async def describe(self, extent_id: int, replica: ReplicaAt) -> en.ReplicaInfo:
        raise AssertionError("not in this script")


class ScriptedRegistry(Registry):
    """Places on the nodes that metadata knows; who is down says the test."""

    def __init__(self, ctx: LeaderContext) -> None:
        super().__init__(ctx, Topology(resolver_for("")), on_bad=lambda bad: None)
        self.down: set[int] = set()

    def choose(self, request: PlacementRequest) -> list[NodeChoice]:
        nodes = self._ctx.state.nodes
        usable = [n for n in sorted(nodes) if n not in request.excluded and not nodes[n].dead]
        usable.sort(key=lambda node_id: node_id in request.avoid)
        if len(usable) < request.replicas:
            raise NotEnoughNodes(wanted=request.replicas, available=len(usable))
        return [NodeChoice(node_id) for node_id in usable[: request.replicas]]

    def check_policy(self, name: str) -> None:
        pass

    def seems_down(self, node_id: int) -> bool:
        return node_id in self.down

    async def register(self, request: sm.RegisterNodeRequest, mutation: Mutation) -> sm.RegisterNodeReply:
        changes = self._ctx.changes()
        old = self._ctx.state.nodes.get(request.node_id)
        changes.put(NODE, old, NodeEntry(request.node_id, request.wire_address))
        mutation.record(changes, node_id=request.node_id)
        await self._ctx.commit(changes)
        return sm.RegisterNodeReply(node_id=request.node_id)

    def heartbeat(self, request: sm.HeartbeatRequest) -> sm.HeartbeatReply:
        return sm.HeartbeatReply(leader=self._ctx.leader)


class ScriptedPart(ClusterNodes):
    """Has no background work; what the flows report to it is noted and not acted on."""

    registry: ScriptedRegistry

    def __init__(self, ctx: LeaderContext) -> None:
        super().__init__(ctx)
        self.registry = ScriptedRegistry(ctx)
        self.unconfirmed: list[int] = []
        self.removed: list[int] = []
        self.suspected: list[tuple[int, int]] = []
        self.failed: dict[int, float] = {}
        self.reconciler.note = self.unconfirmed.append  # type: ignore[method-assign, assignment]
        self.collector.note_removed = self._note_removed  # type: ignore[method-assign]
        self.bad.suspect = self._suspect  # type: ignore[method-assign, assignment]

    def start(self) -> None:
        pass

    def _note_removed(self, extents: Iterable[Extent]) -> None:
        self.removed += [extent.extent_id for extent in extents]

    def _suspect(self, extent_id: int, node_id: int, reason: str) -> None:
        self.suspected.append((extent_id, node_id))

    def node_record(self, node: NodeEntry) -> sm.NodeRecord:
        return describe.node_record(node)

    def failures(self, node_id: int) -> float:
        return self.failed.get(node_id, 0.0)


# --- managers -------------------------------------------------------------------------------------------------


class ManagerProcess:
    """One manager process: its connection to etcd (`store`, with fault hooks), and what it serves."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"manager{number}"
        self.address = f"{self.name}:3401"
        self.process = Process(self.name)
        self._cluster = cluster
        self.store: MemoryClient
        self.manager: Manager

    def start(self) -> None:
        self.process.enter(self._start)

    def _start(self) -> None:
        cluster = self._cluster
        self.store = cluster.etcd.client(call_timeout_s=1.0)
        channels = ChannelPool(lambda address: cluster.network.channel(self.name, address, cluster=CLUSTER))

        def node_calls(leader: common_pb2.Leader, node: Callable[[int], NodeEntry | None]) -> NodeCalls:
            if cluster.real_nodes:
                return RpcNodeCalls(channels, leader=leader, node=node, timeout_s=2.0, seal_timeout_s=10.0)
            return ScriptedNodes(cluster.nodes, leader)

        self.manager = Manager(
            cluster.config,
            self.store,
            make_node_calls=node_calls,
            make_cluster_nodes=ClusterNodes if cluster.real_nodes else ScriptedPart,
            rng=random.Random(cluster.network.rng.getrandbits(64)),
            wall_ms=wall_ms,
            authoriser=cluster.authoriser,
        )
        servicer = StreamManagerServicer(self.manager)
        services = [Service(methods.STREAM_MANAGER, servicer)]
        cluster.network.serve(self.address, services, cluster=CLUSTER)
        self.manager.start(self.address)

    def pause(self) -> None:
        self.process.pause()
        self._cluster.network.pause(self.name)
        self.store.stall()

    def resume(self) -> None:
        self.process.resume()
        self._cluster.network.resume(self.name)
        self.store.resume()

    def kill(self) -> None:
        self.store.disconnect()
        self.process.kill()
        self._cluster.network.crash(self.name)

    async def stop(self) -> None:
        await self.process.spawn(self.manager.stop())


class Cluster:
    def __init__(
        self, *, real_nodes: bool = False, seed: int = 0, authoriser: Authoriser | None = None, **changes: Any
    ) -> None:
        self.real_nodes = real_nodes
        self.authoriser = authoriser
        self.network = SimNetwork(random.Random(seed))
        self.etcd = MemoryStore()
        self.config = config(**changes)
        self.nodes = ScriptedCluster()
        self.sim_nodes: dict[int, SimNode] = {}
        self.managers: dict[int, ManagerProcess] = {}
        self.store = self.etcd.client()
        self._channels = ChannelPool(lambda address: self.network.channel("client", address, cluster=CLUSTER))
        self._calls = 0
        self._leases: list[Lease] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for manager in self.managers.values():
                if not manager.process.killed and not manager.process.paused and manager.manager.term is not None:
                    manager.manager.term.state.validate()
        for manager in self.managers.values():
            manager.kill()
        for node in self.sim_nodes.values():
            node.kill()
        await self.store.close()

    # --- processes -------------------------------------------------------------------------------------------

    async def start_managers(self, *numbers: int, nodes: Sequence[int] = (1, 2, 3)) -> None:
        """The first one leads, unless one is there. Scripted nodes are registered."""
        for number in numbers:
            self.managers[number] = ManagerProcess(self, number)
            self.managers[number].start()
            await self.leader()
        for node_id in nodes if not self.real_nodes else ():
            request = sm.RegisterNodeRequest(node_id=node_id, wire_address=f"node{node_id}:3501", cluster=CLUSTER)
            await self.call(methods.STREAM_MANAGER_REGISTER_NODE, request)

    async def start_nodes(self, *node_ids: int, **how: Any) -> None:
        """Real ones; they are registered when it returns."""
        addresses = [manager.address for manager in self.managers.values()]
        for node_id in node_ids:
            self.sim_nodes[node_id] = SimNode(self.network, node_id=node_id, managers=addresses, **how)
            await self.sim_nodes[node_id].start()
        await self.until(lambda: all(node_id in self.term.state.nodes for node_id in node_ids))

    async def leader(self) -> ManagerProcess:
        """Wait for a manager that leads."""
        await self.until(lambda: any(m.manager.term is not None for m in self._running()))
        return next(manager for manager in self._running() if manager.manager.term is not None)

    def _running(self) -> list[ManagerProcess]:
        return [m for m in self.managers.values() if not m.process.killed and not m.process.paused]

    @property
    def term(self) -> Term:
        """Of the manager that leads now."""
        terms = [manager.manager.term for manager in self._running() if manager.manager.term is not None]
        assert terms, "nobody leads"
        return terms[0]

    @property
    def part(self) -> ScriptedPart:
        part = self.term.cluster_nodes
        assert isinstance(part, ScriptedPart)
        return part

    async def declare_dead(self, node_id: int) -> None:
        """As health checking would."""
        term = self.term
        old = term.state.nodes[node_id]
        changes = term.ctx.changes()
        changes.put(NODE, old, NodeEntry(node_id, old.wire_address, health=sm.NODE_HEALTH_DEAD))
        await term.ctx.commit(changes)

    async def until(self, happened: Callable[[], bool], *, limit_s: float = 120.0) -> None:
        """Virtual seconds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not happened():
            assert loop.time() < deadline_s, "it did not happen"
            await asyncio.sleep(0.05)

    # --- a client --------------------------------------------------------------------------------------------

    def call_id(self) -> common_pb2.CallId:
        self._calls += 1
        return common_pb2.CallId(client_id=77, call_id=self._calls)

    async def call(self, method: Method[Req, Rep], request: Req, *, timeout_s: float = CALL_TIMEOUT_S) -> Rep:
        """Ask the leader; while there is none, or it cannot be reached, ask again, as clients do."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        if "call" in method.request.DESCRIPTOR.fields_by_name and not request.HasField("call"):
            request.call.CopyFrom(self.call_id())  # type: ignore[attr-defined]
        while True:
            for manager in list(self.managers.values()):
                try:
                    return await self.ask(manager, method, request, timeout_s=5.0)
                except (NotLeader, ConnectFailed) as error:
                    last: NeveError = error
                except NeveError as error:
                    if not error.outcome_unknown:
                        raise
                    last = error
            if loop.time() >= deadline_s:
                raise last
            await asyncio.sleep(0.2)

    async def ask(
        self, manager: ManagerProcess, method: Method[Req, Rep], request: Req, *, timeout_s: float = 5.0
    ) -> Rep:
        channel = self._channels.channel(manager.address)
        return (await channel.call(method, request, timeout_s=timeout_s)).message

    async def lock(self, name: str, *, ttl_s: int = 60, takeover: bool = False) -> Lock:
        lease = await self.store.grant_lease(ttl_s)
        self._leases.append(lease)
        return await acquire_lock(self.store, name, "test", lease, root=ROOT, takeover=takeover, timeout_s=5.0)

    async def own(self, stream: sm.StreamInfo, *, takeover: bool = False) -> common_pb2.Owner:
        """Take the stream's lock."""
        lock = await self.lock(stream.lock, takeover=takeover)
        return common_pb2.Owner(lock=stream.lock, token=lock.token)

    async def create(self, **fields: Any) -> sm.CreateStreamReply:
        return await self.call(methods.STREAM_MANAGER_CREATE_STREAM, sm.CreateStreamRequest(**fields))

    async def open(self, stream_id: int, owner: common_pb2.Owner, **fields: Any) -> sm.CheckCommitLengthReply:
        request = sm.CheckCommitLengthRequest(stream_id=stream_id, owner=owner, **fields)
        return await self.call(methods.STREAM_MANAGER_CHECK_COMMIT_LENGTH, request)

    async def alloc(
        self, stream_id: int, extent_id: int, owner: common_pb2.Owner, end: int | None = None, **fields: Any
    ) -> sm.StreamAllocExtentReply:
        request = sm.StreamAllocExtentRequest(stream_id=stream_id, extent_id=extent_id, owner=owner, **fields)
        if end is not None:
            request.acknowledged_end = end
        return await self.call(methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request)

    async def describe(self, stream_id: int) -> sm.DescribeStreamsReply:
        request = sm.DescribeStreamsRequest(stream_ids=[stream_id], with_extents=True)
        return await self.call(methods.STREAM_MANAGER_DESCRIBE_STREAMS, request)

    async def opened(self, **fields: Any) -> tuple[sm.StreamInfo, sm.ExtentInfo, common_pb2.Owner]:
        """A new stream, its tail, and its owner, who has opened it."""
        created = await self.create(**fields)
        owner = await self.own(created.stream)
        reply = await self.open(created.stream.stream_id, owner)
        return reply.stream, reply.tail, owner


async def error_of(work: Awaitable[Any], kind: type[NeveError]) -> NeveError:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
