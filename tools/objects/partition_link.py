"""Calls of an operator to the partition managers, and through their map to partition servers, one method for each.

Invariants: what the leader alone knows (load) is asked of the leader; the map is read at one version.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from neve.client.manager_link import ManagerLink
from neve.client.streams.options import ClientOptions
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NotFound, VersionConflict
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool

READS_MAX = 10  # of the map, while it changes between two pages


class PartitionLink:
    def __init__(self, channels: ChannelPool, managers: Sequence[str], *, options: ClientOptions) -> None:
        rng = random.SystemRandom()
        self._link = ManagerLink(channels, managers, options=options, rng=rng, kind="partition manager")
        self._channels = channels
        self._timeout_s = options.call_timeout_s

    async def regions(self) -> tuple[list[pm.Region], int]:
        """All regions by their start, and the version of the map."""
        for _ in range(READS_MAX):
            request = pm.ListRegionsRequest()
            found: list[pm.Region] = []
            while True:
                reply = await self._link.ask(methods.PARTITION_MANAGER_LIST_REGIONS, request)
                if found and reply.version != request.version_min:
                    break  # it changed between two pages
                found.extend(reply.regions)
                if not reply.more:
                    return found, reply.version
                request.after_key, request.version_min = reply.regions[-1].start, reply.version
        raise VersionConflict(what="region map", detail="it changes too fast to be read")

    async def servers(self) -> list[pm.PartitionServerRecord]:
        request = pm.ListPartitionServersRequest()
        return list((await self._link.order(methods.PARTITION_MANAGER_LIST_PARTITION_SERVERS, request)).servers)

    async def bootstrap(self, split_keys: Sequence[bytes]) -> list[pm.Region]:
        request = pm.BootstrapRequest(split_keys=split_keys)
        return list((await self._order(methods.PARTITION_MANAGER_BOOTSTRAP, request)).regions)

    async def split(self, partition_id: int, middle_key: bytes) -> pm.SplitRegionReply:
        request = pm.SplitRegionRequest(partition_id=partition_id, middle_key=middle_key)
        return await self._order(methods.PARTITION_MANAGER_SPLIT_REGION, request)

    async def merge(self, left_id: int, right_id: int) -> pm.MergeRegionsReply:
        request = pm.MergeRegionsRequest(left_partition_id=left_id, right_partition_id=right_id)
        return await self._order(methods.PARTITION_MANAGER_MERGE_REGIONS, request)

    async def move(self, partition_id: int, server_id: int) -> pm.MoveRegionReply:
        request = pm.MoveRegionRequest(partition_id=partition_id, server_id=server_id)
        return await self._order(methods.PARTITION_MANAGER_MOVE_REGION, request)

    async def compact(self, partition_id: int) -> pm.Region:
        """Asked of the server that has it. Not repeated: it takes as long as there is data."""
        region = next((each for each in (await self.regions())[0] if each.partition_id == partition_id), None)
        if region is None:
            raise NotFound(kind="partition", name=str(partition_id))
        if not region.address:
            raise NotFound(kind="partition server", name=str(region.server_id), detail=f"of partition {partition_id}")
        request = ps.CompactPartitionRequest(partition_id=partition_id, full=True)
        channel = self._channels.channel(region.address)
        await channel.call(methods.PARTITION_SERVER_COMPACT_PARTITION, request, timeout_s=self._timeout_s)
        return region

    async def set_balancing(self, *, paused: bool) -> int:
        request = pm.SetBalancingRequest(paused=paused)
        return (await self._order(methods.PARTITION_MANAGER_SET_BALANCING, request)).version

    async def _order(self, method: Method[Req, Rep], request: Req) -> Rep:
        """These take as long as the work they order: one attempt may have all of the time."""
        return await self._link.order(method, request, attempt_timeout_s=self._timeout_s)
