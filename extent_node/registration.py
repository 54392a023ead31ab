"""A node's link to the stream manager: it registers, sends heartbeats, and reports its replicas.

Invariants: the node serves whether or not a manager answers: losing the manager loses reports, never data;
            each heartbeat carries everything that the manager's decisions need, so that losing one costs nothing;
            replicas are reported in whole rounds: each page says where the one before it ended, and the last page says
            that it is the last. A round that was interrupted, or split over two managers, does not count.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from neve.extent_node.config import Location
from neve.meta.core_retry import Backoff, Delays
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, NeveError, NotLeader
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
REPORT_PAGE = 2_000
RETRY_DELAY_S_MAX = 10.0
MANAGERS_MAX = 32
BAD_REPLICAS_MAX = 1_000  # kept until a heartbeat with them is answered


class ManagerLink(Protocol):
    """The calls that a node makes to the stream manager."""

    async def register(self, request: sm.RegisterNodeRequest) -> sm.RegisterNodeReply: ...
    async def heartbeat(self, request: sm.HeartbeatRequest) -> sm.HeartbeatReply: ...
    async def report_replicas(self, request: sm.ReportReplicasRequest) -> sm.ReportReplicasReply: ...


class WireManagerLink:
    """Calls the leading manager. Each call tries each known address once, the last successful one first."""

    def __init__(self, channels: ChannelPool, managers: Sequence[str]) -> None:
        self._channels = channels
        self._managers = list(managers)

    async def register(self, request: sm.RegisterNodeRequest) -> sm.RegisterNodeReply:
        return await self._call(methods.STREAM_MANAGER_REGISTER_NODE, request)

    async def heartbeat(self, request: sm.HeartbeatRequest) -> sm.HeartbeatReply:
        return await self._call(methods.STREAM_MANAGER_HEARTBEAT, request)

    async def report_replicas(self, request: sm.ReportReplicasRequest) -> sm.ReportReplicasReply:
        return await self._call(methods.STREAM_MANAGER_REPORT_REPLICAS, request)

    async def _call(self, method: Method[Req, Rep], request: Req) -> Rep:
        tried: set[str] = set()
        waiting = list(self._managers)
        error: NeveError = ConnectFailed(address="", detail="no manager is configured")
        while waiting:
            address = waiting.pop(0)
            if address in tried:
                continue
            tried.add(address)
            try:
                reply = await self._channels.channel(address).call(method, request, timeout_s=CALL_TIMEOUT_S)
            except NotLeader as elsewhere:
                error = elsewhere
                if elsewhere.leader and elsewhere.leader not in tried:
                    waiting.insert(0, elsewhere.leader)
            except NeveError as failure:
                if not failure.retriable:
                    raise
                error = failure
            else:
                self._prefer(address)
                return reply.message
        raise error

    def _prefer(self, address: str) -> None:
        """Try this address first from now on. Adds a leader named by a manager; keeps the configured addresses."""
        if self._managers[0] != address:
            self._managers = [address, *(other for other in self._managers if other != address)][:MANAGERS_MAX]


class NodeView(Protocol):
    """The store's lists for the manager."""

    def disks(self) -> Sequence[pb.DiskInfo]: ...
    def list(
        self, *, after_extent_id: int, limit: int, unsealed_only: bool
    ) -> tuple[Sequence[pb.ReplicaInfo], bool]: ...


class Registrar:
    """Keeps the manager informed, in a task of its own, until it is stopped."""

    def __init__(
        self,
        link: ManagerLink,
        node: NodeView,
        *,
        registration: sm.RegisterNodeRequest,
        copies: Callable[[], Iterable[pb.CopyStatusReply]],
        load: Callable[[], sm.NodeLoad],
        heartbeat_s: float,
        report_interval_s: float,
        rng: random.Random,
    ) -> None:
        self._link = link
        self._node = node
        self._registration = registration
        self._copies = copies
        self._load = load
        self._heartbeat_s = heartbeat_s
        self._report_interval_s = report_interval_s
        self._rng = rng
        self._bad: list[sm.BadReplica] = []
        self._round = 0
        self._report_due_s = 0.0
        self.registered = False
        self.leader = common_pb2.Leader()

    def report_bad(self, bad: sm.BadReplica) -> None:
        """Report the replica with the next heartbeat. Of too many, the oldest are dropped: they are found again."""
        self._bad = [*self._bad, bad][-BAD_REPLICAS_MAX:]

    async def run(self) -> None:
        """Register, send heartbeats and report replicas, until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                if not self.registered:
                    await self._register()
                await self._beat()
                if loop.time() >= self._report_due_s:
                    await self._report()
                    self._report_due_s = loop.time() + self._report_interval_s
                failures, delay_s = 0, self._heartbeat_s
            except NeveError as error:
                log.warning("manager_not_informed error=%s", error)
                delay_s = Delays(2 * self._heartbeat_s, RETRY_DELAY_S_MAX).after(failures)
                failures += 1
            await asyncio.sleep(delay_s * self._rng.uniform(0.8, 1.0))

    async def _register(self) -> None:
        del self._registration.disks[:]
        self._registration.disks.extend(self._node.disks())
        reply = await self._link.register(self._registration)
        self.registered = True
        self._report_due_s = 0.0
        if reply.heartbeat_ms:
            self._heartbeat_s = reply.heartbeat_ms / 1000
        log.info("node_registered node_id=%d heartbeat_s=%g", reply.node_id, self._heartbeat_s)

    async def _beat(self) -> None:
        bad = list(self._bad)
        reply = await self._link.heartbeat(
            sm.HeartbeatRequest(
                node_id=self._registration.node_id,
                process_id=self._registration.process_id,
                disks=self._node.disks(),
                load=self._load(),
                copies=self._copies(),
                bad_replicas=bad,
            )
        )
        self._bad = [entry for entry in self._bad if entry not in bad]  # keeps those reported meanwhile
        self.leader = reply.leader
        if reply.register_again:
            self.registered = False
        if reply.report_replicas:
            self._report_due_s = 0.0

    async def _report(self) -> None:
        self._round += 1
        after_extent_id, more = 0, True
        while more:
            replicas, more = self._node.list(after_extent_id=after_extent_id, limit=REPORT_PAGE, unsealed_only=False)
            await self._link.report_replicas(
                sm.ReportReplicasRequest(
                    node_id=self._registration.node_id,
                    process_id=self._registration.process_id,
                    round=self._round,
                    replicas=replicas,
                    last=not more,
                    after_extent_id=after_extent_id,
                )
            )
            if replicas:
                after_extent_id = replicas[-1].extent_id


def registration_request(
    *,
    cluster: str,
    node_id: int,
    wire_address: str,
    grpc_address: str,
    location: Location,
    version: common_pb2.Version,
    process_id: int,
) -> sm.RegisterNodeRequest:
    return sm.RegisterNodeRequest(
        cluster=cluster,
        node_id=node_id,
        wire_address=wire_address,
        grpc_address=grpc_address,
        location=sm.NodeLocation(
            region=location.region, rack=location.rack, zone=location.zone, labels=location.labels
        ),
        version=version,
        process_id=process_id,
    )


async def first_id(link: ManagerLink, request: sm.RegisterNodeRequest, *, rng: random.Random, timeout_s: float) -> int:
    """Request an id for a node that has none yet; tries until `timeout_s` is over."""
    backoff = Backoff(Delays(0.2, RETRY_DELAY_S_MAX), lambda: rng.uniform(0.5, 1.0))
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return (await link.register(request)).node_id
            except NeveError as error:
                if not error.retriable:
                    raise
                log.warning("manager_not_reached error=%s", error)
            await asyncio.sleep(backoff.next_s())
