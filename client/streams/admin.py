"""Calls for operators, about the cluster, its nodes, extents and quotas.

They are thin: most return the messages of proto/stream_manager.proto.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence

from neve.client.manager_link import ManagerLink
from neve.client.pages import PAGE, pages
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound


class Admin:
    """Operations on the cluster, as `client.admin`."""

    def __init__(self, link: ManagerLink) -> None:
        self._link = link

    async def describe(self) -> sm.DescribeClusterReply:
        """Return the name, leader, managers and defaults of the cluster."""
        return await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())

    async def status(self) -> sm.ClusterStatusReply:
        """Return the leader, the nodes, the amount of data, and what is at risk."""
        return await self._link.ask_leader(methods.STREAM_MANAGER_CLUSTER_STATUS, sm.ClusterStatusRequest())

    def streams(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[sm.StreamInfo]:
        """Iterate over the streams that have these labels, by id, in pages, as of one revision."""
        request = sm.ListStreamsRequest(limit=PAGE, labels=labels)
        ask = functools.partial(self._link.ask_leader, methods.STREAM_MANAGER_LIST_STREAMS)
        return pages(ask, request, items="streams", after="after_stream_id")

    async def stream(self, id_or_name: int | str) -> tuple[sm.StreamInfo, Sequence[sm.ExtentInfo]]:
        """Return a stream and all of its extents, in order. Raises NotFound if there is none."""
        stream = await self.stream_info(id_or_name)
        return stream, await self.describe_extents(stream.extent_ids, with_streams=True)

    async def stream_info(self, id_or_name: int | str) -> sm.StreamInfo:
        """Return a stream without its extents. Raises NotFound if there is none."""
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
        """Return one node's record. Raises NotFound if there is none."""
        for record in await self.nodes([node_id]):
            if record.node_id == node_id:
                return record
        raise NotFound(kind="node", name=str(node_id))

    async def nodes(self, node_ids: Sequence[int] = ()) -> Sequence[sm.NodeRecord]:
        """Return the records of these nodes, or of all nodes."""
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
        """Iterate over extents, by id, in pages, as of one revision.

        The calls go to the leader, which alone knows which nodes are healthy.
        """
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
        """Return those of these extents that exist, in this order."""
        found: list[sm.ExtentInfo] = []
        for first in range(0, len(extent_ids), PAGE):
            page = extent_ids[first : first + PAGE]
            request = sm.DescribeExtentsRequest(extent_ids=page, with_streams=with_streams)
            found += (await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_EXTENTS, request)).extents
        return found

    def tasks(self) -> AsyncIterator[sm.RecoveryTask]:
        """Iterate over the recovery tasks, by extent id."""
        ask = functools.partial(self._link.order, methods.STREAM_MANAGER_LIST_TASKS)
        return pages(ask, sm.ListTasksRequest(limit=PAGE), items="tasks", after="after_extent_id")

    async def set_node_mode(self, node_id: int, mode: sm.NodeMode, *, maintenance_s: int = 0) -> sm.NodeRecord:
        """Set a node's mode: normal, read-only, maintenance (for `maintenance_s`), draining or decommissioned."""
        request = sm.SetNodeModeRequest(node_id=node_id, mode=mode, maintenance_s=maintenance_s)
        return (await self._link.order(methods.STREAM_MANAGER_SET_NODE_MODE, request)).node

    async def set_placement(self, region: str, *, stopped: bool) -> None:
        """Stop placing new extents in a region, or resume."""
        request = sm.SetPlacementRequest(region=region, stopped=stopped)
        await self._link.order(methods.STREAM_MANAGER_SET_PLACEMENT, request)

    async def set_quota(
        self, prefix: str, *, streams_max: int = 0, extents_max: int = 0, bytes_max: int = 0
    ) -> sm.QuotaUsage:
        """Limit the streams that have a label `key=value` beginning with `prefix`. No limits given: unlimited."""
        quota = sm.Quota(prefix=prefix, streams_max=streams_max, extents_max=extents_max, bytes_max=bytes_max)
        return (await self._link.order(methods.STREAM_MANAGER_SET_QUOTA, sm.SetQuotaRequest(quota=quota))).usage

    async def quotas(self) -> Sequence[sm.QuotaUsage]:
        """Return all quotas and how much of each is used."""
        return (await self._link.ask_leader(methods.STREAM_MANAGER_LIST_QUOTAS, sm.ListQuotasRequest())).quotas

    async def accept_length(self, extent_id: int, length: int, *, reason: str) -> sm.ExtentInfo:
        """Seal an extent at `length` when too few replicas can report its end.

        Data beyond `length` is lost, on the operator's decision.
        """
        request = sm.AcceptLengthRequest(extent_id=extent_id, length=length, reason=reason)
        return (await self._link.order(methods.STREAM_MANAGER_ACCEPT_LENGTH, request)).extent

    async def seal_stream(self, stream_id: int) -> sm.SealStreamReply:
        """Seal a stream as an operator. Its writer ends, and its pending appends raise AppendOutcomeUnknown."""
        request = sm.SealStreamRequest(stream_id=stream_id)
        return await self._link.order(methods.STREAM_MANAGER_SEAL_STREAM, request)

    async def delete_extents(self, extents: Sequence[tuple[int, int]], *, revision: int) -> sm.DeleteExtentsReply:
        """Propose extents (id, eversion) of a snapshot at `revision` for deletion. Those still referred to are kept."""
        versions = [sm.ExtentVersion(extent_id=extent_id, eversion=eversion) for extent_id, eversion in extents]
        request = sm.DeleteExtentsRequest(extents=versions, revision=revision)
        return await self._link.order(methods.STREAM_MANAGER_DELETE_EXTENTS, request)

    # --- for the partition layer ------------------------------------------------------------------------------

    async def alloc_ids(self, count: int = 1) -> int:
        """Reserve `count` consecutive numbers, unique in the cluster, and return the first."""
        return (await self._link.ask(methods.STREAM_MANAGER_ALLOC_ID, sm.AllocIdRequest(count=count))).first_id

    async def split_streams(self, request: sm.SplitStreamsRequest, *, timeout_s: float) -> sm.SplitStreamsReply:
        """Make twins of several streams and write the caller's keys, in one transaction."""
        return await self._link.order(methods.STREAM_MANAGER_SPLIT_STREAMS, request, timeout_s=timeout_s)

    async def merge_streams(self, request: sm.MergeStreamsRequest, *, timeout_s: float) -> sm.MergeStreamsReply:
        """Merge streams and write the caller's keys, in one transaction."""
        return await self._link.order(methods.STREAM_MANAGER_MERGE_STREAMS, request, timeout_s=timeout_s)
