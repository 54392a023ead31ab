"""Calls of an operator to the stream managers, one method for each.

Invariants: what the leader alone knows (health, tasks) is asked of the leader; lists come in pages of one revision.
Neighbours: neve.client.manager_link finds the leader and repeats what may be repeated; views.py shows the answers.
Not here:   appends and reads: those are the client's.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from neve.client.manager_link import ManagerLink
from neve.client.options import ClientOptions
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.client import WireChannel

PAGE = 500


class AdminLink:
    """A context; one for each command."""

    def __init__(self, managers: Sequence[str], *, cluster: str, token: str, timeout_s: float) -> None:
        self._channels = ChannelPool(
            lambda address: WireChannel(address, cluster=cluster, token=token, agent="neve tools")
        )
        options = ClientOptions(call_timeout_s=timeout_s, attempt_timeout_s=min(5.0, timeout_s))
        self._link = ManagerLink(self._channels, managers, options=options, rng=random.SystemRandom())

    async def __aenter__(self) -> Self:
        """Any manager knows who leads; from then on the leader is asked first."""
        try:
            reply = await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())
        except BaseException:
            await self._channels.close()
            raise
        self._link.learn(reply.managers, reply.leader.address)
        self.cluster = reply
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channels.close()

    # --- reads ------------------------------------------------------------------------------------------------

    async def status(self) -> sm.ClusterStatusReply:
        return await self._link.order(methods.STREAM_MANAGER_CLUSTER_STATUS, sm.ClusterStatusRequest())

    async def nodes(self, *node_ids: int) -> list[sm.NodeRecord]:
        reply = await self._link.order(methods.STREAM_MANAGER_LIST_NODES, sm.ListNodesRequest(node_ids=node_ids))
        return list(reply.nodes)

    async def node(self, node_id: int) -> sm.NodeRecord:
        for record in await self.nodes(node_id):
            if record.node_id == node_id:
                return record
        raise NotFound(kind="node", name=str(node_id))

    async def stream(self, id_or_name: int | str) -> tuple[sm.StreamInfo, list[sm.ExtentInfo]]:
        request = sm.DescribeStreamsRequest(with_extents=True)
        if isinstance(id_or_name, int):
            request.stream_ids.append(id_or_name)
        else:
            request.names.append(id_or_name)
        reply = await self._link.order(methods.STREAM_MANAGER_DESCRIBE_STREAMS, request)
        if not reply.streams:
            raise NotFound(kind="stream", name=str(id_or_name))
        return reply.streams[0], list(reply.extents)

    async def streams(self, labels: Mapping[str, str]) -> AsyncIterator[sm.StreamInfo]:
        request = sm.ListStreamsRequest(limit=PAGE, labels=labels)
        while True:
            reply = await self._link.order(methods.STREAM_MANAGER_LIST_STREAMS, request)
            for stream in reply.streams:
                yield stream
            if not reply.more:
                return
            # A page may be empty and not the last: then it says how far it has looked.
            last = reply.streams[-1].stream_id if reply.streams else 0
            request.after_stream_id = max(last, reply.scanned_stream_id)
            request.revision = reply.revision

    async def extents(
        self, *, node_id: int = 0, under_replicated: bool = False, open_only: bool = False
    ) -> AsyncIterator[sm.ExtentInfo]:
        request = sm.ListExtentsRequest(
            limit=PAGE, node_id=node_id, under_replicated=under_replicated, open_only=open_only, with_streams=True
        )
        while True:
            reply = await self._link.order(methods.STREAM_MANAGER_LIST_EXTENTS, request)
            for extent in reply.extents:
                yield extent
            if not reply.more:
                return
            last = reply.extents[-1].extent_id if reply.extents else 0
            request.after_extent_id = max(last, reply.scanned_extent_id)
            request.revision = reply.revision

    async def tasks(self) -> AsyncIterator[sm.RecoveryTask]:
        request = sm.ListTasksRequest(limit=PAGE)
        while True:
            reply = await self._link.order(methods.STREAM_MANAGER_LIST_TASKS, request)
            for task in reply.tasks:
                yield task
            if not reply.more or not reply.tasks:
                return
            request.after_extent_id = max(task.extent_id for task in reply.tasks)

    async def quotas(self) -> list[sm.QuotaUsage]:
        return list((await self._link.order(methods.STREAM_MANAGER_LIST_QUOTAS, sm.ListQuotasRequest())).quotas)

    # --- orders -----------------------------------------------------------------------------------------------

    async def set_node_mode(self, node_id: int, mode: sm.NodeMode, *, maintenance_s: int = 0) -> sm.NodeRecord:
        request = sm.SetNodeModeRequest(node_id=node_id, mode=mode, maintenance_s=maintenance_s)
        return (await self._link.order(methods.STREAM_MANAGER_SET_NODE_MODE, request)).node

    async def set_placement(self, region: str, *, stopped: bool) -> None:
        request = sm.SetPlacementRequest(region=region, stopped=stopped)
        await self._link.order(methods.STREAM_MANAGER_SET_PLACEMENT, request)

    async def seal_stream(self, stream_id: int) -> sm.SealStreamReply:
        request = sm.SealStreamRequest(stream_id=stream_id)
        return await self._link.order(methods.STREAM_MANAGER_SEAL_STREAM, request)

    async def accept_length(self, extent_id: int, *, length: int, reason: str) -> sm.ExtentInfo:
        request = sm.AcceptLengthRequest(extent_id=extent_id, length=length, reason=reason)
        return (await self._link.order(methods.STREAM_MANAGER_ACCEPT_LENGTH, request)).extent

    async def set_quota(self, quota: sm.Quota) -> sm.QuotaUsage:
        request = sm.SetQuotaRequest(quota=quota)
        return (await self._link.order(methods.STREAM_MANAGER_SET_QUOTA, request)).usage
