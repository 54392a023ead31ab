"""What operators ask of a cluster and tell it: thin calls, answered with the messages of proto/stream_manager.proto."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence

from neve.client.manager_link import ManagerLink
from neve.client.pages import PAGE, pages
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound


class Admin:
    """`client.admin`."""

    def __init__(self, link: ManagerLink) -> None:
        self._link = link

    async def describe(self) -> sm.DescribeClusterReply:
        """Name, leader, managers and defaults of the cluster."""
        return await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())

    async def status(self) -> sm.ClusterStatusReply:
        """Leader, nodes, how much there is, and what is in danger."""
        return await self._link.ask_leader(methods.STREAM_MANAGER_CLUSTER_STATUS, sm.ClusterStatusRequest())

    def streams(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[sm.StreamInfo]:
        """Streams that have these labels, by id, page by page, as of one revision."""
        request = sm.ListStreamsRequest(limit=PAGE, labels=labels)
        ask = functools.partial(self._link.ask_leader, methods.STREAM_MANAGER_LIST_STREAMS)
        return pages(ask, request, items="streams", after="after_stream_id")

    async def stream(self, id_or_name: int | str) -> tuple[sm.StreamInfo, Sequence[sm.ExtentInfo]]:
        """A stream with all of its extents, in their order; NotFound if there is none."""
        stream = await self.stream_info(id_or_name)
        return stream, await self.describe_extents(stream.extent_ids, with_streams=True)

    async def stream_info(self, id_or_name: int | str) -> sm.StreamInfo:
        """A stream alone; NotFound if there is none."""
        request = sm.DescribeStreamsRequest()
        if isinstance(id_or_name, int):
            request.stream_ids.append(id_or_name)
        else:
            request.names.append(id_or_name)
        reply = await self._link.ask_leader(methods.STREAM_MANAGER_DESCRIBE_STREAMS, request)
        if not reply.streams:
            raise NotFound(kind="stream", name=str(id_or_name))
        return reply.streams[0]

    async def node(self, node_id: int) -> sm.NodeRecord:
        """NotFound if there is none."""
        for record in await self.nodes([node_id]):
            if record.node_id == node_id:
                return record
        raise NotFound(kind="node", name=str(node_id))

    async def nodes(self, node_ids: Sequence[int] = ()) -> Sequence[sm.NodeRecord]:
        request = sm.ListNodesRequest(node_ids=node_ids)
        return (await self._link.ask_leader(methods.STREAM_MANAGER_LIST_NODES, request)).nodes

    def extents(
        self,
        *,
        node_id: int = 0,
        under_replicated: bool = False,
        open_only: bool = False,
        with_streams: bool = False,
    ) -> AsyncIterator[sm.ExtentInfo]:
        """Extents by id, page by page, as of one revision: the leader's, who alone knows which nodes are well."""
        request = sm.ListExtentsRequest(
            limit=PAGE,
            node_id=node_id,
            under_replicated=under_replicated,
            open_only=open_only,
            with_streams=with_streams,
        )
        ask = functools.partial(self._link.ask_leader, methods.STREAM_MANAGER_LIST_EXTENTS)
        return pages(ask, request, items="extents", after="after_extent_id")

    async def describe_extents(
        self, extent_ids: Sequence[int], *, with_streams: bool = False
    ) -> Sequence[sm.ExtentInfo]:
        """Those of them that there are, in this order, page by page."""
        found: list[sm.ExtentInfo] = []
        for first in range(0, len(extent_ids), PAGE):
            page = extent_ids[first : first + PAGE]
            request = sm.DescribeExtentsRequest(extent_ids=page, with_streams=with_streams)
            found += (await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_EXTENTS, request)).extents
        return found

    def tasks(self) -> AsyncIterator[sm.RecoveryTask]:
        """What recovery has to do, by extent id."""
        ask = functools.partial(self._link.order, methods.STREAM_MANAGER_LIST_TASKS)
        return pages(ask, sm.ListTasksRequest(limit=PAGE), items="tasks", after="after_extent_id")

    async def set_node_mode(self, node_id: int, mode: sm.NodeMode, *, maintenance_s: int = 0) -> sm.NodeRecord:
        """Normal, read-only, maintenance (for so long), draining, decommissioned."""
        request = sm.SetNodeModeRequest(node_id=node_id, mode=mode, maintenance_s=maintenance_s)
        return (await self._link.order(methods.STREAM_MANAGER_SET_NODE_MODE, request)).node

    async def set_placement(self, region: str, *, stopped: bool) -> None:
        """Stop placing new extents in a region, or begin again."""
        request = sm.SetPlacementRequest(region=region, stopped=stopped)
        await self._link.order(methods.STREAM_MANAGER_SET_PLACEMENT, request)

    async def set_quota(
        self, prefix: str, *, streams_max: int = 0, extents_max: int = 0, bytes_max: int = 0
    ) -> sm.QuotaUsage:
        """Bound the streams that have a label `key=value` beginning with `prefix`. Without any limit: no bound."""
        quota = sm.Quota(prefix=prefix, streams_max=streams_max, extents_max=extents_max, bytes_max=bytes_max)
        return (await self._link.order(methods.STREAM_MANAGER_SET_QUOTA, sm.SetQuotaRequest(quota=quota))).usage

    async def quotas(self) -> Sequence[sm.QuotaUsage]:
        return (await self._link.ask_leader(methods.STREAM_MANAGER_LIST_QUOTAS, sm.ListQuotasRequest())).quotas

    async def accept_length(self, extent_id: int, length: int, *, reason: str) -> sm.ExtentInfo:
        """Where too few replicas can tell an extent's end: name it. What lies beyond is lost, by your word."""
        request = sm.AcceptLengthRequest(extent_id=extent_id, length=length, reason=reason)
        return (await self._link.order(methods.STREAM_MANAGER_ACCEPT_LENGTH, request)).extent

    async def seal_stream(self, stream_id: int) -> sm.SealStreamReply:
        """End a stream by an operator's word: its writer ends with it, and what that did not hear of is unknown."""
        request = sm.SealStreamRequest(stream_id=stream_id)
        return await self._link.order(methods.STREAM_MANAGER_SEAL_STREAM, request)

    async def delete_extents(self, extents: Sequence[tuple[int, int]], *, revision: int) -> sm.DeleteExtentsReply:
        """Propose extents (id, eversion) for deletion, from a snapshot at `revision`: what is referred to stays."""
        versions = [sm.ExtentVersion(extent_id=extent_id, eversion=eversion) for extent_id, eversion in extents]
        request = sm.DeleteExtentsRequest(extents=versions, revision=revision)
        return await self._link.order(methods.STREAM_MANAGER_DELETE_EXTENTS, request)

    # --- for the partition layer ------------------------------------------------------------------------------

    async def alloc_ids(self, count: int = 1) -> int:
        """The first of `count` numbers in a row that nobody else ever gets."""
        return (await self._link.ask(methods.STREAM_MANAGER_ALLOC_ID, sm.AllocIdRequest(count=count))).first_id

    async def split_streams(self, request: sm.SplitStreamsRequest, *, timeout_s: float) -> sm.SplitStreamsReply:
        """Twins of several streams, and keys of the caller, in one transaction."""
        return await self._link.order(methods.STREAM_MANAGER_SPLIT_STREAMS, request, timeout_s=timeout_s)

    async def merge_streams(self, request: sm.MergeStreamsRequest, *, timeout_s: float) -> sm.MergeStreamsReply:
        return await self._link.order(methods.STREAM_MANAGER_MERGE_STREAMS, request, timeout_s=timeout_s)
