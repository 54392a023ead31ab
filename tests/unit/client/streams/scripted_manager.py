"""A stream manager as small as it can be: the rules that a client can see (3, 14-20), in memory, without fail-over.

It decides lengths with the real manager's pure functions, and stores nothing but the owners' locks, which clients put
into the shared metadata store themselves. `hooks` let a test step in before a call is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from neve.meta.lock import lock_key
from neve.meta.store import MetaStore
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, NotEnoughNodes, NotFound, NotOwner, StreamSealed
from neve.proto.method import Method
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call
from neve.stream_manager.streams.core.seal import choose_length

ROOT = b"/test/"
NODE_TIMEOUT_S = 1.0
CONFIRM_PAUSE_S = 0.2
LEADER = common_pb2.Leader(create_revision=1, address="manager1:3401")

METHODS: list[Method[Any, Any]] = [
    methods.STREAM_MANAGER_DESCRIBE_CLUSTER,
    methods.STREAM_MANAGER_DESCRIBE_STREAMS,
    methods.STREAM_MANAGER_DESCRIBE_EXTENTS,
    methods.STREAM_MANAGER_LIST_STREAMS,
    methods.STREAM_MANAGER_CREATE_STREAM,
    methods.STREAM_MANAGER_CHECK_COMMIT_LENGTH,
    methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT,
    methods.STREAM_MANAGER_PREPARE_EXTENT,
    methods.STREAM_MANAGER_WAIT_CONFIRMED,
    methods.STREAM_MANAGER_SEAL_STREAM,
    methods.STREAM_MANAGER_TRUNCATE_STREAM,
    methods.STREAM_MANAGER_DELETE_STREAM,
    methods.STREAM_MANAGER_REPORT_BAD_REPLICA,
]


class ScriptedManager:
    def __init__(self, meta: MetaStore, channels: ChannelPool) -> None:
        self._meta = meta
        self._channels = channels
        self.nodes: dict[int, str] = {}  # those that get new extents
        self.streams: dict[int, sm.StreamInfo] = {}
        self.extents: dict[int, sm.ExtentInfo] = {}
        self.prepared: dict[int, sm.ExtentInfo] = {}
        self.bad: list[sm.BadReplica] = []
        self.dead: dict[int, None] = {}
        self.calls: list[str] = []
        self.hooks: dict[str, Callable[[Any], Awaitable[None]]] = {}
        self.extent_bytes_max = 1 << 20
        self._ids = 0
        self._replay: dict[tuple[int, int], Any] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._took_part: dict[int, bool] = {}

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def _begin(self, name: str, request: Any) -> None:
        self.calls.append(name)
        if name in self.hooks:
            await self.hooks[name](request)

    async def _once(self, request: Any, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        key = (request.call.client_id, request.call.call_id)
        assert all(key), "a mutation without a call id"
        if key not in self._replay:
            self._replay[key] = await work()
        return self._replay[key]

    async def _check_owner(self, owner: common_pb2.Owner) -> None:
        kv = await self._meta.get(lock_key(ROOT, owner.lock))
        if kv is None or kv.mod_revision != owner.token:
            raise NotOwner(lock=owner.lock, token=owner.token)

    def _stream(self, stream_id: int) -> sm.StreamInfo:
        if stream_id not in self.streams:
            raise NotFound(kind="stream", name=str(stream_id))
        return self.streams[stream_id]

    def _lock(self, stream_id: int) -> asyncio.Lock:
        return self._locks.setdefault(stream_id, asyncio.Lock())

    # --- reads -----------------------------------------------------------------------------------------------

    async def describe_cluster(self, request: sm.DescribeClusterRequest, call: Call) -> sm.DescribeClusterReply:
        await self._begin("describe_cluster", request)
        return sm.DescribeClusterReply(cluster="test", leader=LEADER, meta_root=ROOT.decode())

    async def describe_streams(self, request: sm.DescribeStreamsRequest, call: Call) -> sm.DescribeStreamsReply:
        await self._begin("describe_streams", request)
        found = [self.streams[each] for each in request.stream_ids if each in self.streams]
        found += [stream for stream in self.streams.values() if stream.name and stream.name in request.names]
        extents = [self.extents[each] for stream in found for each in stream.extent_ids] if request.with_extents else []
        return sm.DescribeStreamsReply(streams=found, extents=extents, revision=1)

    async def describe_extents(self, request: sm.DescribeExtentsRequest, call: Call) -> sm.DescribeExtentsReply:
        await self._begin("describe_extents", request)
        found = [self.extents[each] for each in request.extent_ids if each in self.extents]
        return sm.DescribeExtentsReply(extents=found, revision=1)

    async def list_streams(self, request: sm.ListStreamsRequest, call: Call) -> sm.ListStreamsReply:
        later = [stream for key, stream in sorted(self.streams.items()) if key > request.after_stream_id]
        return sm.ListStreamsReply(streams=later[:2], more=len(later) > 2, revision=1)

    # --- streams ---------------------------------------------------------------------------------------------

    async def create_stream(self, request: sm.CreateStreamRequest, call: Call) -> sm.CreateStreamReply:
        async def work() -> sm.CreateStreamReply:
            stream_id = self._next_id()
            stream = sm.StreamInfo(
                stream_id=stream_id,
                name=request.name,
                lock=request.lock or f"stream/{stream_id}",
                policy=request.policy,
                labels=request.labels,
                version=1,
            )
            stream.policy.replicas = stream.policy.replicas or 3
            stream.policy.extent_bytes_max = stream.policy.extent_bytes_max or self.extent_bytes_max
            extent = await self._make(stream, avoid=())
            self.extents[extent.extent_id] = extent
            stream.extent_ids.append(extent.extent_id)
            self.streams[stream_id] = stream
            return sm.CreateStreamReply(stream=stream, tail=extent)

        await self._begin("create_stream", request)
        reply: sm.CreateStreamReply = await self._once(request, work)
        return reply

    async def check_commit_length(self, request: sm.CheckCommitLengthRequest, call: Call) -> sm.CheckCommitLengthReply:
        await self._begin("check_commit_length", request)
        stream = self._stream(request.stream_id)
        async with self._lock(stream.stream_id):
            await self._check_owner(request.owner)
            if stream.sealed:
                raise StreamSealed(stream_id=stream.stream_id)
            tail = self.extents[stream.extent_ids[-1]]
            sealed = None
            length = 0
            if not tail.HasField("seal"):
                token = request.owner.token
                answers = await self._ask_all(
                    tail,
                    methods.EXTENT_NODE_RAISE_TOKEN,
                    lambda replica: pb.RaiseTokenRequest(
                        leader=LEADER, extent_id=tail.extent_id, replica=replica, eversion=tail.eversion, token=token
                    ),
                )
                lengths = [
                    answer.length
                    for answer in answers.values()
                    if answer is not None
                    and answer.kind == pb.LengthAnswer.LENGTH
                    and not answer.fenced
                    and not answer.HasField("seal")
                ]
                if len(lengths) == len(answers) and len(set(lengths)) == 1:
                    await self._check_owner(request.owner)
                    return sm.CheckCommitLengthReply(stream=stream, tail=tail, length=lengths[0])
                sealed = tail
            successor = await self._seal_and_link(stream, tail, owner=request.owner, end=None, avoid=(), made=None)
            return sm.CheckCommitLengthReply(stream=stream, tail=successor, length=length, sealed=sealed)

    async def stream_alloc_extent(self, request: sm.StreamAllocExtentRequest, call: Call) -> sm.StreamAllocExtentReply:
        await self._begin("stream_alloc_extent", request)
        stream = self._stream(request.stream_id)
        async with self._lock(stream.stream_id):
            await self._check_owner(request.owner)
            sealed = self.extents[request.extent_id]
            at = list(stream.extent_ids).index(request.extent_id)
            reply = sm.StreamAllocExtentReply(stream=stream, sealed=sealed)
            if at + 1 < len(stream.extent_ids):
                reply.tail.CopyFrom(self.extents[stream.extent_ids[at + 1]])
            elif not stream.sealed:
                end = request.acknowledged_end if request.HasField("acknowledged_end") else None
                made = self.prepared.pop(request.prepared_extent_id, None)
                avoid = tuple(request.avoid_node_ids)
                reply.tail.CopyFrom(
                    await self._seal_and_link(stream, sealed, owner=request.owner, end=end, avoid=avoid, made=made)
                )
                reply.stream.CopyFrom(stream)
                reply.sealed.CopyFrom(sealed)
            all_confirmed = all(replica.confirmed for replica in sealed.replicas)
            reply.all_took_part = self._took_part.get(sealed.extent_id, False) or all_confirmed
            await self._check_owner(request.owner)
            return reply

    async def prepare_extent(self, request: sm.PrepareExtentRequest, call: Call) -> sm.PrepareExtentReply:
        await self._begin("prepare_extent", request)
        stream = self._stream(request.stream_id)
        await self._check_owner(request.owner)
        extent = await self._make(stream, avoid=())
        self.prepared[extent.extent_id] = extent
        return sm.PrepareExtentReply(extent=extent)

    async def wait_confirmed(self, request: sm.WaitConfirmedRequest, call: Call) -> sm.WaitConfirmedReply:
        await self._begin("wait_confirmed", request)
        extent = self.extents[request.extent_id]
        while not all(replica.confirmed for replica in extent.replicas):
            await asyncio.sleep(CONFIRM_PAUSE_S)
        await self._check_owner(request.owner)
        return sm.WaitConfirmedReply(extent=extent)

    async def seal_stream(self, request: sm.SealStreamRequest, call: Call) -> sm.SealStreamReply:
        await self._begin("seal_stream", request)
        stream = self._stream(request.stream_id)
        async with self._lock(stream.stream_id):
            tail = self.extents[stream.extent_ids[-1]]
            if not tail.HasField("seal"):
                end = request.acknowledged_end if request.HasField("acknowledged_end") else None
                await self.seal(tail, token=request.owner.token, end=end)
            stream.sealed = True
            stream.version += 1
            return sm.SealStreamReply(stream=stream, sealed=tail)

    async def truncate_stream(self, request: sm.TruncateStreamRequest, call: Call) -> sm.TruncateStreamReply:
        await self._begin("truncate_stream", request)
        stream = self._stream(request.stream_id)
        at = list(stream.extent_ids).index(request.before_extent_id)
        for extent_id in stream.extent_ids[:at]:
            del self.extents[extent_id]
        del stream.extent_ids[:at]
        stream.truncated_before = request.before_extent_id
        stream.version += 1
        return sm.TruncateStreamReply(stream=stream)

    async def delete_stream(self, request: sm.DeleteStreamRequest, call: Call) -> sm.DeleteStreamReply:
        await self._begin("delete_stream", request)
        stream = self._stream(request.stream_id)
        await self.seal(self.extents[stream.extent_ids[-1]], token=0, end=None)
        del self.streams[request.stream_id]
        return sm.DeleteStreamReply()

    async def report_bad_replica(self, request: sm.ReportBadReplicaRequest, call: Call) -> sm.ReportBadReplicaReply:
        self.bad += request.bad_replicas
        return sm.ReportBadReplicaReply()

    # --- inside ----------------------------------------------------------------------------------------------

    async def _call(self, address: str, method: Method[Any, Any], request: Any) -> Any:
        channel = self._channels.channel(address)
        return (await channel.call(method, request, timeout_s=NODE_TIMEOUT_S)).message

    async def _ask_all(
        self, extent: sm.ExtentInfo, method: Method[Any, Any], request: Callable[[common_pb2.Replica], Any]
    ) -> dict[int, Any]:
        async def ask(each: sm.ExtentReplica) -> Any:
            try:
                return await self._call(each.address, method, request(each.replica))
            except NeveError:
                return None

        answers = await asyncio.gather(*(ask(each) for each in extent.replicas))
        return {each.replica.node_id: answer for each, answer in zip(extent.replicas, answers, strict=True)}

    async def _make(self, stream: sm.StreamInfo, *, avoid: tuple[int, ...]) -> sm.ExtentInfo:
        extent = sm.ExtentInfo(extent_id=self._next_id(), eversion=1, extent_bytes_max=stream.policy.extent_bytes_max)
        candidates = [each for each in self.nodes if each not in avoid] + [each for each in self.nodes if each in avoid]
        turn = extent.extent_id % max(1, len(candidates) - len(avoid))
        candidates = candidates[turn:] + candidates[:turn] if not avoid else candidates
        for node_id in candidates:
            if len(extent.replicas) == stream.policy.replicas:
                break
            request = pb.CreateExtentRequest(
                leader=LEADER,
                extent_id=extent.extent_id,
                replica=common_pb2.Replica(node_id=node_id),
                eversion=1,
                extent_bytes_max=extent.extent_bytes_max,
                stream_id=stream.stream_id,
            )
            try:
                reply = await self._call(self.nodes[node_id], methods.EXTENT_NODE_CREATE_EXTENT, request)
            except NeveError:
                continue
            extent.replicas.add(replica=reply.replica, address=self.nodes[node_id])
        if len(extent.replicas) < stream.policy.replicas:
            raise NotEnoughNodes(wanted=stream.policy.replicas, available=len(extent.replicas))
        return extent

    async def _seal_and_link(
        self,
        stream: sm.StreamInfo,
        tail: sm.ExtentInfo,
        *,
        owner: common_pb2.Owner,
        end: int | None,
        avoid: tuple[int, ...],
        made: sm.ExtentInfo | None,
    ) -> sm.ExtentInfo:
        successor = made or await self._make(stream, avoid=avoid)
        if not tail.HasField("seal"):
            await self.seal(tail, token=owner.token, end=end, owner=owner)
        else:
            await self._check_owner(owner)
        self.extents[successor.extent_id] = successor
        stream.extent_ids.append(successor.extent_id)
        stream.version += 1
        return successor

    async def seal(
        self, tail: sm.ExtentInfo, *, token: int, end: int | None, owner: common_pb2.Owner | None = None
    ) -> None:
        """Fence, choose L, decide; the replicas are told behind it, until all have confirmed."""
        answers = await self._ask_all(
            tail,
            methods.EXTENT_NODE_FENCE,
            lambda replica: pb.FenceRequest(
                leader=LEADER, extent_id=tail.extent_id, replica=replica, eversion=tail.eversion, token=token
            ),
        )
        decision = choose_length(answers, acknowledged_end=end, dead=self.dead, extent_id=tail.extent_id)
        if owner is not None:
            await self._check_owner(owner)
        tail.eversion += 1
        tail.seal.CopyFrom(common_pb2.Seal(length=decision.length, eversion=tail.eversion))
        self._took_part[tail.extent_id] = decision.all_took_part
        task = asyncio.get_running_loop().create_task(self._confirm(tail))
        self._tasks[task] = None

    async def _confirm(self, extent: sm.ExtentInfo) -> None:
        while not all(replica.confirmed for replica in extent.replicas):
            for each in extent.replicas:
                if each.confirmed:
                    continue
                try:
                    await self._confirm_one(extent, each)
                except NeveError:
                    continue
            await asyncio.sleep(CONFIRM_PAUSE_S)

    async def _confirm_one(self, extent: sm.ExtentInfo, each: sm.ExtentReplica) -> None:
        request = pb.SealExtentRequest(
            leader=LEADER, extent_id=extent.extent_id, replica=each.replica, seal=extent.seal
        )
        reply = await self._call(each.address, methods.EXTENT_NODE_SEAL_EXTENT, request)
        if reply.confirmed:
            extent.seal.digest = reply.seal.digest
            each.confirmed = True
            return
        sources = [
            pb.CopySource(replica=other.replica, address=other.address) for other in extent.replicas if other.confirmed
        ]
        if not sources:
            return
        task_id = self._next_id()
        order = pb.StartCopyRequest(
            leader=LEADER,
            task_id=task_id,
            extent_id=extent.extent_id,
            replica=each.replica,
            seal=extent.seal,
            sources=sources,
            eversion=extent.eversion,
        )
        await self._call(each.address, methods.EXTENT_NODE_START_COPY, order)
        while True:
            status = await self._call(
                each.address, methods.EXTENT_NODE_COPY_STATUS, pb.CopyStatusRequest(task_id=task_id)
            )
            if status.state == pb.CopyStatusReply.DONE:
                each.replica.CopyFrom(status.replica)
                each.confirmed = True
            if status.state != pb.CopyStatusReply.RUNNING:
                return
            await asyncio.sleep(CONFIRM_PAUSE_S)
