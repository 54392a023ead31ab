"""The rpcs of a stream manager: reads are answered from a state, all other calls go through the leader's pipeline.

Invariants: only a leader answers a leader's call, by its lease's clock (protocol rule 25); other managers raise
            `NotLeader` with the leader's address;
            any manager hands out ids and answers reads: the leader from its own state, others from the followed one;
            a follower's state may be behind, so before it says that a stream or an extent does not exist, it waits
            until it has everything that was committed before the request.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from google.protobuf.message import Message

from neve.meta.txn import KeyRange
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.proto.stream_policy import StreamPolicy
from neve.rpc.limits import MIB
from neve.rpc.service import Answer, Call, answers
from neve.stream_manager.manager import Manager
from neve.stream_manager.metadata.describe import node_record
from neve.stream_manager.metadata.records import COMMITS
from neve.stream_manager.metadata.state import State
from neve.stream_manager.streams import open_stream, reads, split_merge, streams
from neve.stream_manager.streams import set_quota as quota_flows
from neve.stream_manager.streams.reads import NodeRecordOf
from neve.stream_manager.term.context import LeaderContext, Mutation
from neve.stream_manager.term.leader import Term

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)

BLOCK_PAYLOAD_BYTES_MAX = 16 * MIB - 1
ANSWER_MARGIN_S = 0.05
IDS_MAX = 10_000  # per AllocId
NEWS_S_MAX = 1.0  # how long a follower waits for newer state that exists; another manager may have it

CtxFlow = Callable[[LeaderContext, Req, Mutation], Coroutine[Any, Any, Rep]]


class StreamManagerServicer:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._config = manager.config

    async def _mutate(self, request: Req, call: Call, flow: CtxFlow[Req, Rep]) -> Rep:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, functools.partial(flow, term.ctx))

    async def _state(self, call: Call, revision_min: int = 0) -> tuple[State, NodeRecordOf, Term | None]:
        """A state to read from, the function that describes its nodes, and the term if this manager leads."""
        term = self._manager.term
        if term is not None:
            term.ensure_leading()
            if revision_min:
                await term.batcher.settled()
                term.ensure_leading()
            return term.state, term.cluster_nodes.node_record, term
        state = await self._manager.follower.at(revision_min, deadline_s=call.deadline_s - ANSWER_MARGIN_S)
        return state, node_record, None

    async def _newest_state(self, call: Call) -> State:
        """The followed state, with everything that any leader has committed until now: each batch writes a mark."""
        marks = await self._manager.store.range(KeyRange.prefix(self._manager.root + COMMITS))
        newest = max((kv.mod_revision for kv in marks.kvs), default=0)
        now_s = asyncio.get_running_loop().time()
        deadline_s = min(call.deadline_s - ANSWER_MARGIN_S, now_s + NEWS_S_MAX)
        return await self._manager.follower.at(newest, deadline_s=deadline_s)

    # --- by any manager --------------------------------------------------------------------------------------

    async def alloc_id(self, request: sm.AllocIdRequest, call: Call) -> sm.AllocIdReply:
        count = request.count or 1
        if count > IDS_MAX:
            raise InvalidArgument(what="count", detail=f"{count}, at most {IDS_MAX}")
        return sm.AllocIdReply(first_id=await self._manager.ids.take(count), count=count)

    async def describe_streams(self, request: sm.DescribeStreamsRequest, call: Call) -> sm.DescribeStreamsReply:
        state, _, term = await self._state(call, request.revision_min)
        if term is None and not reads.has_streams(state, request):
            state = await self._newest_state(call)
        reply = reads.describe_streams(state, request)
        if term is not None:
            reads.in_read_order(reply.extents, term.cluster_nodes.failures)
        return reply

    async def list_streams(self, request: sm.ListStreamsRequest, call: Call) -> sm.ListStreamsReply:
        state, _, _ = await self._state(call, request.revision)
        return reads.list_streams(state, request)

    async def describe_extents(self, request: sm.DescribeExtentsRequest, call: Call) -> sm.DescribeExtentsReply:
        state, _, term = await self._state(call, request.revision_min)
        if term is None and not state.extents.keys() >= {*request.extent_ids}:
            state = await self._newest_state(call)
        reply = reads.describe_extents(state, request)
        if term is not None:
            reads.in_read_order(reply.extents, term.cluster_nodes.failures)
        return reply

    async def list_extents(self, request: sm.ListExtentsRequest, call: Call) -> sm.ListExtentsReply:
        state, _, _ = await self._state(call, request.revision)
        return reads.list_extents(state, request)

    async def list_nodes(self, request: sm.ListNodesRequest, call: Call) -> sm.ListNodesReply:
        state, record_of, _ = await self._state(call)
        return reads.list_nodes(state, request, record_of)

    async def cluster_status(self, request: sm.ClusterStatusRequest, call: Call) -> sm.ClusterStatusReply:
        state, record_of, term = await self._state(call)
        return await reads.cluster_status(
            state,
            cluster=self._config.cluster,
            leader=term.leader if term is not None else self._manager.roster.leader,
            managers=self._manager.roster.managers(),
            record_of=record_of,
        )

    async def describe_cluster(self, request: sm.DescribeClusterRequest, call: Call) -> sm.DescribeClusterReply:
        config = self._config
        term = self._manager.term
        leader = term.leader if term is not None else self._manager.roster.leader
        reply = sm.DescribeClusterReply(
            cluster=config.cluster,
            managers=self._manager.roster.managers(),
            meta_endpoints=config.advertise_etcd or config.etcd.endpoints,
            meta_root=self._manager.root.decode(),
            defaults=StreamPolicy(
                replicas=config.defaults.replicas,
                extent_bytes_max=config.defaults.extent_bytes_max,
                placement=config.defaults.placement,
            ).message(),
            block_payload_bytes_max=BLOCK_PAYLOAD_BYTES_MAX,
        )
        if leader is not None:
            reply.leader.CopyFrom(leader)
        return reply

    # --- streams ---------------------------------------------------------------------------------------------

    @answers
    def create_stream(self, request: sm.CreateStreamRequest, call: Call) -> Answer[sm.CreateStreamReply]:
        term = self._manager.leading()
        return term.pipeline.begin(request, call, functools.partial(streams.create_stream, term.ctx), eager=True)

    async def check_commit_length(self, request: sm.CheckCommitLengthRequest, call: Call) -> sm.CheckCommitLengthReply:
        return await self._mutate(request, call, open_stream.check_commit_length)

    @answers
    def stream_alloc_extent(
        self, request: sm.StreamAllocExtentRequest, call: Call
    ) -> Answer[sm.StreamAllocExtentReply]:
        term = self._manager.leading()
        return term.pipeline.begin(request, call, term.allocator.alloc_extent, eager=True)

    async def prepare_extent(self, request: sm.PrepareExtentRequest, call: Call) -> sm.PrepareExtentReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.allocator.prepare_extent)

    async def wait_confirmed(self, request: sm.WaitConfirmedRequest, call: Call) -> sm.WaitConfirmedReply:
        term = self._manager.leading()
        return await term.pipeline.ask(request, call, term.allocator.wait_confirmed)

    async def seal_stream(self, request: sm.SealStreamRequest, call: Call) -> sm.SealStreamReply:
        return await self._mutate(request, call, streams.seal_stream)

    async def truncate_stream(self, request: sm.TruncateStreamRequest, call: Call) -> sm.TruncateStreamReply:
        return await self._mutate(request, call, streams.truncate_stream)

    async def punch_holes(self, request: sm.PunchHolesRequest, call: Call) -> sm.PunchHolesReply:
        return await self._mutate(request, call, streams.punch_holes)

    async def delete_stream(self, request: sm.DeleteStreamRequest, call: Call) -> sm.DeleteStreamReply:
        return await self._mutate(request, call, streams.delete_stream)

    async def split_streams(self, request: sm.SplitStreamsRequest, call: Call) -> sm.SplitStreamsReply:
        return await self._mutate(request, call, split_merge.split_streams)

    async def merge_streams(self, request: sm.MergeStreamsRequest, call: Call) -> sm.MergeStreamsReply:
        return await self._mutate(request, call, split_merge.merge_streams)

    async def accept_length(self, request: sm.AcceptLengthRequest, call: Call) -> sm.AcceptLengthReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.allocator.accept_length)

    async def set_quota(self, request: sm.SetQuotaRequest, call: Call) -> sm.SetQuotaReply:
        return await self._mutate(request, call, quota_flows.set_quota)

    async def list_quotas(self, request: sm.ListQuotasRequest, call: Call) -> sm.ListQuotasReply:
        term = self._manager.leading()
        return reads.list_quotas(term.state, term.ctx.quotas)

    # --- nodes and operators ---------------------------------------------------------------------------------

    async def register_node(self, request: sm.RegisterNodeRequest, call: Call) -> sm.RegisterNodeReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.cluster_nodes.registry.register)

    async def heartbeat(self, request: sm.HeartbeatRequest, call: Call) -> sm.HeartbeatReply:
        return self._manager.leading().cluster_nodes.registry.heartbeat(request)

    async def report_replicas(self, request: sm.ReportReplicasRequest, call: Call) -> sm.ReportReplicasReply:
        term = self._manager.leading()
        term.cluster_nodes.reports.page(request)
        return sm.ReportReplicasReply(leader=term.leader)

    async def report_bad_replica(self, request: sm.ReportBadReplicaRequest, call: Call) -> sm.ReportBadReplicaReply:
        self._manager.leading().cluster_nodes.bad.report(request.bad_replicas)
        return sm.ReportBadReplicaReply()

    async def list_tasks(self, request: sm.ListTasksRequest, call: Call) -> sm.ListTasksReply:
        return self._manager.leading().cluster_nodes.recovery.list_tasks(request)

    async def set_node_mode(self, request: sm.SetNodeModeRequest, call: Call) -> sm.SetNodeModeReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.cluster_nodes.set_node_mode)

    async def set_placement(self, request: sm.SetPlacementRequest, call: Call) -> sm.SetPlacementReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.cluster_nodes.set_placement)

    async def delete_extents(self, request: sm.DeleteExtentsRequest, call: Call) -> sm.DeleteExtentsReply:
        term = self._manager.leading()
        return await term.pipeline.mutate(request, call, term.cluster_nodes.collector.delete_extents)
