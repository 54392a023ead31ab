"""The rpcs of a partition manager.

Invariants: only a leader answers a leader's call, by its lease's clock; other managers raise `NotLeader` with the
            leader's address; any manager lists regions and servers, from what it follows;
            a caller that has seen a newer map gets no older one: it waits, up to its deadline.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import Message

from neve.partition_manager import answers, reshape
from neve.partition_manager.bootstrap import bootstrap
from neve.partition_manager.manager import Manager
from neve.partition_manager.metrics import ManagerMetrics
from neve.partition_manager.registration import register_server
from neve.partition_manager.term import Flow
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NotFound, Overloaded
from neve.rpc.service import Call

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

ANSWER_MARGIN_S = 0.05
WAITING_MAX = 10_000  # callers that wait for a newer map


class PartitionManagerServicer:
    def __init__(self, manager: Manager, metrics: ManagerMetrics) -> None:
        self._manager = manager
        self._metrics = metrics
        self._waiting = 0
        self._loop = asyncio.get_running_loop()

    async def _mutate(self, request: Req, call: Call, flow: Flow[Req, Rep]) -> Rep:
        term = self._manager.leading()
        begun_s = self._loop.time()
        try:
            return await term.mutate(request, call, flow)
        finally:
            self._metrics.observe(call.method.name, self._loop.time() - begun_s)

    # --- by any manager --------------------------------------------------------------------------------------

    async def list_regions(self, request: pm.ListRegionsRequest, call: Call) -> pm.ListRegionsReply:
        manager = self._manager
        if self._waiting >= WAITING_MAX:
            raise Overloaded(what="partition manager", detail=f"{WAITING_MAX} callers wait for a newer map")
        self._waiting += 1
        try:
            state = await manager.follower.until(
                lambda state: state.version >= request.version_min,
                deadline_s=call.deadline_s - ANSWER_MARGIN_S,
                what=f"version {request.version_min} of the map",
            )
        finally:
            self._waiting -= 1
        return answers.list_regions(manager.regions.snapshot_of(state), request)

    async def list_partition_servers(
        self, request: pm.ListPartitionServersRequest, call: Call
    ) -> pm.ListPartitionServersReply:
        """The registered servers. Only the leader knows their loads."""
        term = self._manager.term
        state = await self._manager.follower.at(0, deadline_s=call.deadline_s - ANSWER_MARGIN_S)
        return pm.ListPartitionServersReply(
            servers=[
                pm.PartitionServerRecord(
                    server_id=server_id,
                    wire_address=stored.record.wire_address,
                    grpc_address=stored.record.grpc_address,
                    lease_id=stored.lease_id,
                    load=term.servers.load_of(server_id) if term is not None else (),
                    version=stored.record.version,
                )
                for server_id, stored in sorted(state.servers.items())
            ]
        )

    # --- by the leader ---------------------------------------------------------------------------------------

    async def bootstrap(self, request: pm.BootstrapRequest, call: Call) -> pm.BootstrapReply:
        return await self._mutate(request, call, bootstrap)

    async def register_partition_server(
        self, request: pm.RegisterPartitionServerRequest, call: Call
    ) -> pm.RegisterPartitionServerReply:
        return await self._mutate(request, call, register_server)

    async def partition_heartbeat(
        self, request: pm.PartitionHeartbeatRequest, call: Call
    ) -> pm.PartitionHeartbeatReply:
        term = self._manager.leading()
        snapshot = term.regions.snapshot()
        if request.server_id not in snapshot.servers:
            raise NotFound(kind="partition server", name=str(request.server_id))
        term.servers.note_load(request.server_id, request.load)
        version = snapshot.map.version if snapshot.map is not None else 0
        return pm.PartitionHeartbeatReply(regions_version=version)

    async def split_region(self, request: pm.SplitRegionRequest, call: Call) -> pm.SplitRegionReply:
        return await self._mutate(request, call, reshape.split_region)

    async def merge_regions(self, request: pm.MergeRegionsRequest, call: Call) -> pm.MergeRegionsReply:
        return await self._mutate(request, call, reshape.merge_regions)

    async def move_region(self, request: pm.MoveRegionRequest, call: Call) -> pm.MoveRegionReply:
        return await self._mutate(request, call, reshape.move_region)

    async def set_balancing(self, request: pm.SetBalancingRequest, call: Call) -> pm.SetBalancingReply:
        return await self._mutate(request, call, reshape.set_balancing)
