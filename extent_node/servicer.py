"""The rpcs of an extent node: check the order's sender, call the part of the storage that executes it, attach bytes.

Invariants: an order of a deposed manager is refused: the node remembers the highest election that it has seen;
            room for a large reply is reserved before it is made, and not while a follower still waits for bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from neve.extent_node.metrics import NodeMetrics, Times
from neve.extent_node.store import append as store_append
from neve.extent_node.store import control as store_control
from neve.extent_node.store.audit import SLICE_BYTES, audit
from neve.extent_node.store.bandwidth import Pacer
from neve.extent_node.store.copier import Copier
from neve.extent_node.store.read import INDEX_BLOCK_BYTES, INDEX_BLOCKS_MAX
from neve.extent_node.store.storage import Storage
from neve.proto import blocks, common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.crc import crc32c
from neve.proto.errors import InvalidArgument, NotLeader, Overloaded
from neve.proto.method import Rep
from neve.rpc.diagnostics import build_version
from neve.rpc.limits import KIB
from neve.rpc.service import Answer, Call, Encoded, answers, eager

RESERVE_BYTES_MIN = 64 * KIB  # for smaller replies the bound on the number of calls is enough
LIST_LIMIT_MAX = 10_000
LIST_REPLICA_BYTES = 256  # the most that one replica takes in a list
AUDITS_MAX = 64  # requested audits at a time: each has its own descriptor, and reads as fast as its caller allows


class LeaderMemory:
    """The newest manager that this node has seen, by its election.

    It is only in memory: etcd transactions decide what must survive a restart, and eversions guard the orders that
    follow from them.
    """

    def __init__(self) -> None:
        self.newest = common_pb2.Leader()

    def check(self, leader: common_pb2.Leader) -> None:
        """NotLeader if a newer manager has given orders; otherwise remember this one."""
        if leader.create_revision < self.newest.create_revision:
            detail = f"election {leader.create_revision} is over, {self.newest.create_revision} is newer"
            raise NotLeader(leader=self.newest.address, detail=detail)
        if leader.create_revision > self.newest.create_revision:
            self.newest = leader


class Timed(Answer[Rep]):
    """An answer whose duration is observed when it is complete."""

    __slots__ = ("_answer", "_begun_s", "_loop", "_times")

    def __init__(self, answer: Answer[Rep], times: Times, loop: asyncio.AbstractEventLoop) -> None:
        self._answer = answer
        self._times = times
        self._loop = loop
        self._begun_s = loop.time()

    def then(self, on_done: Callable[[Rep | Encoded[Rep] | None, BaseException | None], None]) -> None:
        def answered(reply: Rep | Encoded[Rep] | None, error: BaseException | None) -> None:
            self._times.observe(self._loop.time() - self._begun_s)
            on_done(reply, error)

        self._answer.then(answered)

    def abandon(self) -> None:
        self._answer.abandon()

    def __await__(self) -> Generator[Any, Any, Rep]:
        reply = yield from self._answer.__await__()
        self._times.observe(self._loop.time() - self._begun_s)
        return reply


class ExtentNodeServicer:
    """Handles the rpcs of one node."""

    def __init__(
        self,
        storage: Storage,
        copier: Copier,
        metrics: NodeMetrics,
        *,
        cluster: str,
        node_id: int,
        read_bytes_max: int,
    ) -> None:
        self._store = storage.state
        self._reader = storage.reader
        self._inventory = storage.inventory
        self._copier = copier
        self._metrics = metrics
        self._cluster = cluster
        self._node_id = node_id
        self._read_bytes_max = read_bytes_max
        self._leaders = LeaderMemory()
        self._audits = 0  # running ones
        self._version = build_version()
        self._loop = asyncio.get_running_loop()

    # --- writers and readers ---------------------------------------------------------------------------------

    @answers
    def append_block(
        self, request: pb.AppendBlockRequest, call: Call
    ) -> pb.AppendBlockReply | Timed[pb.AppendBlockReply] | Coroutine[Any, Any, pb.AppendBlockReply]:
        if request.HasField("payload_crc32c"):
            if crc32c(call.attachment) != request.payload_crc32c:
                raise InvalidArgument(what="payload_crc32c", detail="it does not match: the payload was damaged")
        elif not call.checksummed and (problem := blocks.verify(call.attachment)) is not None:
            raise InvalidArgument(what="payload", detail=f"{problem.detail}: damaged on the way, or framed wrongly")
        store = self._store
        store.check_running()
        if store.dirty.must_wait:
            return self._append_when_room(request, call)
        begun = store_append.begin_append(store, request.segments, call.attachment, brief=request.brief)
        if isinstance(begun, pb.AppendBlockReply):
            self._metrics.append_s.observe(0.0)  # within one turn, in which the loop's clock stands still
            return begun
        return Timed(begun, self._metrics.append_s, self._loop)

    async def _append_when_room(self, request: pb.AppendBlockRequest, call: Call) -> pb.AppendBlockReply:
        """Append a frame once fewer bytes are dirty."""
        begun_s = self._loop.time()
        reply = await store_append.append(self._store, request.segments, call.attachment, brief=request.brief)
        self._metrics.append_s.observe(self._loop.time() - begun_s)
        return reply

    @eager
    async def read_block(self, request: pb.ReadBlockRequest, call: Call) -> pb.ReadBlockReply:
        if request.follow:
            await self._reader.follow(request)
            request.follow = False
        begun_s = self._loop.time()
        wanted_bytes = min(request.max_bytes or self._read_bytes_max, self._read_bytes_max)
        if wanted_bytes >= RESERVE_BYTES_MIN:
            await call.reserve_reply(wanted_bytes)
        result = await self._reader.read(request)
        # Every block has its CRC, which the reader checks (protocol rule 21): another one over all would add nothing.
        if result.file is not None:
            call.attach_file(result.file, own_checksums=True)
        else:
            call.attach(*result.payload, own_checksums=True)
        self._metrics.read_s.observe(self._loop.time() - begun_s)
        return pb.ReadBlockReply(
            end=result.end,
            readable=result.readable,
            sealed=result.sealed,
            blocks=result.blocks,
            next_end=result.next_end,
        )

    # --- orders of the manager -------------------------------------------------------------------------------

    async def create_extent(self, request: pb.CreateExtentRequest, call: Call) -> pb.CreateExtentReply:
        self._leaders.check(request.leader)
        return pb.CreateExtentReply(replica=await store_control.create(self._store, request))

    async def raise_token(self, request: pb.RaiseTokenRequest, call: Call) -> pb.LengthAnswer:
        self._leaders.check(request.leader)
        return await store_control.raise_token(self._store, request)

    async def fence(self, request: pb.FenceRequest, call: Call) -> pb.LengthAnswer:
        self._leaders.check(request.leader)
        return await store_control.fence(self._store, request)

    async def seal_extent(self, request: pb.SealExtentRequest, call: Call) -> pb.SealExtentReply:
        self._leaders.check(request.leader)
        return await store_control.seal(self._store, request)

    async def delete_extent(self, request: pb.DeleteExtentRequest, call: Call) -> pb.DeleteExtentReply:
        if not request.leader.create_revision:
            raise InvalidArgument(what="leader", detail="only an elected manager may order a delete")
        self._leaders.check(request.leader)
        return pb.DeleteExtentReply(deleted=await store_control.delete(self._store, request))

    async def start_copy(self, request: pb.StartCopyRequest, call: Call) -> pb.StartCopyReply:
        self._leaders.check(request.leader)
        self._copier.start(request)
        return pb.StartCopyReply(task_id=request.task_id)

    async def copy_status(self, request: pb.CopyStatusRequest, call: Call) -> pb.CopyStatusReply:
        return self._copier.status(request.task_id)

    # --- other nodes and operators ---------------------------------------------------------------------------

    async def read_range(self, request: pb.ReadRangeRequest, call: Call) -> pb.ReadRangeReply:
        if request.length > self._read_bytes_max:
            detail = f"{request.length} bytes are more than one reply of {self._read_bytes_max} carries"
            raise InvalidArgument(what="length", detail=detail)
        await call.reserve_reply(request.length)
        result = await self._reader.read_range(request)
        call.attach(*result.payload)
        return result.reply

    async def read_index(self, request: pb.ReadIndexRequest, call: Call) -> pb.ReadIndexReply:
        blocks_max = min(request.max_blocks or INDEX_BLOCKS_MAX, INDEX_BLOCKS_MAX)
        if (wanted_bytes := blocks_max * INDEX_BLOCK_BYTES) >= RESERVE_BYTES_MIN:
            await call.reserve_reply(wanted_bytes)
        result = await self._reader.read_index(request)
        call.attach(*result.payload)
        return result.reply

    async def audit_replica(self, request: pb.AuditReplicaRequest, call: Call) -> pb.AuditReplicaReply:
        wanted = pb.DescribeReplicaRequest(extent_id=request.extent_id, replica=request.replica)
        self._inventory.describe(wanted)  # raises unless it is the requested replica
        pacer = Pacer(bytes_per_s=request.bytes_per_s_max, burst_bytes=SLICE_BYTES)
        if self._audits >= AUDITS_MAX:
            raise Overloaded(what="audits under way")
        self._audits += 1
        try:
            result = await audit(self._store, request.extent_id, pacer=pacer)
        finally:
            self._audits -= 1
        reply = pb.AuditReplicaReply(
            info=self._inventory.describe(wanted),
            bytes_read=result.bytes_read,
            blocks=result.blocks,
            skipped=result.skipped,
            index_rebuilt=result.index_rebuilt,
        )
        if result.finding is not None:
            reply.bad, reply.offset, reply.reason = True, result.finding.offset, result.finding.reason
        return reply

    async def list_replicas(self, request: pb.ListReplicasRequest, call: Call) -> pb.ListReplicasReply:
        limit = min(request.limit or LIST_LIMIT_MAX, LIST_LIMIT_MAX)
        if (wanted_bytes := limit * LIST_REPLICA_BYTES) >= RESERVE_BYTES_MIN:
            await call.reserve_reply(wanted_bytes)
        replicas, more = self._inventory.list(
            after_extent_id=request.after_extent_id, limit=limit, unsealed_only=request.unsealed_only
        )
        return pb.ListReplicasReply(replicas=replicas, more=more)

    async def describe_replica(self, request: pb.DescribeReplicaRequest, call: Call) -> pb.ReplicaInfo:
        return self._inventory.describe(request)

    async def node_info(self, request: pb.NodeInfoRequest, call: Call) -> pb.NodeInfoReply:
        return pb.NodeInfoReply(
            node_id=self._node_id, cluster=self._cluster, disks=self._inventory.disks(), version=self._version
        )
