"""A node and its manager: registering, beats, whole rounds of reports, and managers that come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from neve.extent_node.config import Location
from neve.extent_node.registration import Registrar, WireManagerLink, first_id, registration_request
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, InvalidArgument, NeveError, NotLeader
from neve.proto.method import Method
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call, Service
from tests.sim.network.network import SimNetwork

METHODS: list[Method[Any, Any]] = [
    methods.STREAM_MANAGER_REGISTER_NODE,
    methods.STREAM_MANAGER_HEARTBEAT,
    methods.STREAM_MANAGER_REPORT_REPLICAS,
]


class Manager:
    """Notes what it is told. `error` is raised instead of every answer while it is set."""

    def __init__(self) -> None:
        self.error: NeveError | None = None
        self.registered: list[sm.RegisterNodeRequest] = []
        self.beats: list[sm.HeartbeatRequest] = []
        self.reports: list[sm.ReportReplicasRequest] = []
        self.beat_reply = sm.HeartbeatReply(leader=common_pb2.Leader(create_revision=9))

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    async def register_node(self, request: sm.RegisterNodeRequest, call: Call) -> sm.RegisterNodeReply:
        self._check()
        self.registered.append(request)
        return sm.RegisterNodeReply(node_id=request.node_id or 42, heartbeat_ms=500)

    async def heartbeat(self, request: sm.HeartbeatRequest, call: Call) -> sm.HeartbeatReply:
        self._check()
        self.beats.append(request)
        reply, self.beat_reply = self.beat_reply, sm.HeartbeatReply(leader=self.beat_reply.leader)
        return reply

    async def report_replicas(self, request: sm.ReportReplicasRequest, call: Call) -> sm.ReportReplicasReply:
        self._check()
        self.reports.append(request)
        return sm.ReportReplicasReply()


class Node:
    def __init__(self, extents: int) -> None:
        self.ids = list(range(1, extents + 1))

    def disks(self) -> Sequence[pb.DiskInfo]:
        return [pb.DiskInfo(disk_uuid="d", state=pb.DiskInfo.WRITABLE)]

    def list(self, *, after_extent_id: int, limit: int, unsealed_only: bool) -> tuple[Sequence[pb.ReplicaInfo], bool]:
        ids = [extent_id for extent_id in self.ids if extent_id > after_extent_id]
        return [pb.ReplicaInfo(extent_id=extent_id) for extent_id in ids[:limit]], len(ids) > limit


class World:
    def __init__(self, managers: int, *, extents: int = 0) -> None:
        self.network = SimNetwork(random.Random(5))
        self.managers = [Manager() for _ in range(managers)]
        self.addresses = [f"manager{number}:1" for number in range(managers)]
        for address, manager in zip(self.addresses, self.managers, strict=True):
            self.network.serve(address, [Service(METHODS, manager)], cluster="c")
        pool = ChannelPool(lambda address: self.network.channel("node", address, cluster="c"))
        self.link = WireManagerLink(pool, self.addresses)
        self.request = registration_request(
            cluster="c",
            node_id=7,
            wire_address="node:1",
            grpc_address="",
            location=Location(region="r", rack="k"),
            version=common_pb2.Version(),
            process_id=1,
        )
        self.registrar = Registrar(
            self.link,
            Node(extents),
            registration=self.request,
            copies=list,
            load=sm.NodeLoad,
            heartbeat_s=1.0,
            report_interval_s=60.0,
            rng=random.Random(1),
        )

    async def run_for(self, duration_s: float) -> None:
        task = asyncio.ensure_future(self.registrar.run())
        await asyncio.sleep(duration_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.sim(seed=1)
async def test_a_node_registers_once_beats_and_reports_whole_rounds() -> None:
    world = World(1, extents=4500)
    await world.run_for(90)
    (manager,) = world.managers
    assert len(manager.registered) == 1
    assert manager.registered[0].location.rack == "k"
    assert [disk.disk_uuid for disk in manager.registered[0].disks] == ["d"]
    assert 150 < len(manager.beats) < 250  # every half second, as the manager asked
    assert world.registrar.leader.create_revision == 9
    rounds: dict[int, list[sm.ReportReplicasRequest]] = {}
    for report in manager.reports:
        rounds.setdefault(report.round, []).append(report)
    assert len(rounds) == 2
    for pages in rounds.values():
        assert [page.last for page in pages] == [False, False, True]
        assert [page.after_extent_id for page in pages] == [0, 2000, 4000]
        assert [replica.extent_id for page in pages for replica in page.replicas] == list(range(1, 4501))


@pytest.mark.sim(seed=2)
async def test_a_node_follows_the_leader_and_survives_its_loss() -> None:
    world = World(3)
    for number in (0, 2):
        world.managers[number].error = NotLeader(leader=world.addresses[1])
    await world.run_for(10)
    assert len(world.managers[1].beats) > 10
    world.managers[1].error = NotLeader(leader=world.addresses[2])
    world.managers[2].error = None
    before = len(world.managers[2].beats)
    await world.run_for(10)
    assert len(world.managers[2].beats) > before + 10


@pytest.mark.sim(seed=3)
async def test_without_a_manager_the_node_goes_on_trying_with_longer_waits() -> None:
    world = World(1)
    world.managers[0].error = NotLeader()
    await world.run_for(600)
    assert world.managers[0].registered == []
    world.managers[0].error = None
    await world.run_for(30)
    assert world.registrar.registered
    assert world.managers[0].beats


@pytest.mark.sim(seed=4)
async def test_the_manager_may_ask_to_register_again_and_to_report_now() -> None:
    world = World(1, extents=3)
    manager = world.managers[0]
    task = asyncio.ensure_future(world.registrar.run())
    await asyncio.sleep(5)
    reports = len(manager.reports)
    manager.beat_reply = sm.HeartbeatReply(report_replicas=True)
    await asyncio.sleep(5)
    assert len(manager.reports) == reports + 1
    manager.beat_reply = sm.HeartbeatReply(register_again=True)
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(manager.registered) == 2


@pytest.mark.sim(seed=5)
async def test_a_bad_replica_is_told_until_a_beat_was_answered() -> None:
    world = World(1)
    manager = world.managers[0]
    bad = sm.BadReplica(extent_id=5, offset=8, reason="checksum")
    world.registrar.report_bad(bad)
    manager.error = ConnectFailed(address="x")
    await world.run_for(5)
    assert manager.beats == []
    manager.error = None
    await world.run_for(20)
    assert list(manager.beats[0].bad_replicas) == [bad]
    assert all(not beat.bad_replicas for beat in manager.beats[1:])


@pytest.mark.sim(seed=6)
async def test_a_node_without_an_id_is_given_one_or_told_why_not() -> None:
    world = World(2)
    world.request.node_id = 0
    world.managers[0].error = NotLeader()
    assert await first_id(world.link, world.request, rng=random.Random(1), timeout_s=60) == 42
    world.managers[1].error = InvalidArgument(what="cluster")
    with pytest.raises(InvalidArgument):
        await first_id(world.link, world.request, rng=random.Random(1), timeout_s=60)
    world.managers[1].error = NotLeader()
    with pytest.raises(TimeoutError):
        await first_id(world.link, world.request, rng=random.Random(1), timeout_s=60)
