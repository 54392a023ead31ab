"""The rpcs of a partition server, kept thin: find the partition of the key, call it, answer.

Invariants: the engine itself checks the lock's lease right before each of its answers (protocol rule 2);
            a call for a partition that is loading or frozen is held, and starts again when it is served;
            memory for a large reply is reserved before the reply is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from neve.partition_server.engine.engine import Operation, expected_of
from neve.partition_server.engine.interface import Admit, Engine
from neve.partition_server.lifecycle import Host
from neve.partition_server.metrics import ServerMetrics
from neve.partition_server.operation_frames import Multi
from neve.partition_server.put_frames import PutMany
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import InvalidArgument
from neve.rpc.service import Buffer, Call, eager

REPLY_RESERVED_BYTES_MIN = 64 * 1024  # smaller replies are not worth a reservation


class PartitionServerServicer:
    def __init__(self, host: Host, metrics: ServerMetrics, *, multi_reply_bytes_max: int) -> None:
        self._host = host
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._multi = Multi(host, metrics, reply_bytes_max=multi_reply_bytes_max)
        self._put_many = PutMany(host, metrics)

    async def _partition(self, key: bytes, call: Call, *, version: int = 0, write: bool) -> Engine:
        found = self._host.find(key, regions_version=version, write=write)
        if found is None:
            found = await self._host.wait_for(key, regions_version=version, write=write, deadline_s=call.deadline_s)
        return found

    # --- objects ---------------------------------------------------------------------------------------------

    @eager
    async def get(self, request: ps.GetRequest, call: Call) -> ps.GetReply:
        partition = await self._partition(request.key, call, version=request.regions_version, write=False)
        with self._metrics.timed("Get"):
            info, pieces = await partition.get(
                request.key,
                offset=request.offset,
                length=request.length,
                version=request.version,
                admit=_reserving(call),
            )
        call.attach(*pieces)
        return ps.GetReply(info=info)

    @eager
    async def put(self, request: ps.PutRequest, call: Call) -> ps.PutReply:
        partition = await self._partition(request.key, call, version=request.regions_version, write=True)
        with self._metrics.timed("Put"):
            info = await partition.put(
                request.key, call.attachment, condition=request.condition, ttl_ms=request.ttl_ms, call=request.call
            )
        return ps.PutReply(info=info)

    @eager
    async def delete(self, request: ps.DeleteRequest, call: Call) -> ps.DeleteReply:
        partition = await self._partition(request.key, call, version=request.regions_version, write=True)
        with self._metrics.timed("Delete"):
            existed = await partition.delete(request.key, condition=request.condition, call=request.call)
        return ps.DeleteReply(existed=existed)

    @eager
    async def head(self, request: ps.HeadRequest, call: Call) -> ps.HeadReply:
        partition = await self._partition(request.key, call, version=request.regions_version, write=False)
        with self._metrics.timed("Head"):
            return ps.HeadReply(info=await partition.head(request.key))

    async def batch(self, request: ps.BatchRequest, call: Call) -> ps.BatchReply:
        if not request.operations:
            raise InvalidArgument(what="operations", detail="there is none")
        operations = _batch_operations(request, call.attachment)
        partition = await self._partition(request.operations[0].key, call, version=request.regions_version, write=True)
        with self._metrics.timed("Batch"):
            return ps.BatchReply(infos=await partition.batch(operations, call=request.call))

    async def scan(self, request: ps.ScanRequest, call: Call) -> ps.ScanReply:
        start, end = scan_bounds(request)
        partition = await self._partition(start, call, version=request.regions_version, write=False)
        self._host.check_range(start, end)
        with self._metrics.timed("Scan"):
            page = await partition.scan(
                prefix=request.prefix,
                start=request.start,
                end=request.end,
                limit=request.limit,
                continuation=request.continuation,
                with_values=request.with_values,
                max_bytes=request.max_bytes,
            )
        await _attach(call, page.values)
        return ps.ScanReply(infos=page.infos, continuation=page.continuation, left_out=page.left_out)

    @eager
    async def multi(self, request: ps.MultiRequest, call: Call) -> ps.MultiReply:
        with self._metrics.timed("Multi"):
            return await self._multi.run(request, call)

    @eager
    async def put_many(self, request: ps.PutManyRequest, call: Call) -> ps.PutManyReply:
        with self._metrics.timed("PutMany"):
            return await self._put_many.run(request, call)

    # --- uploads ---------------------------------------------------------------------------------------------

    async def begin_upload(self, request: ps.BeginUploadRequest, call: Call) -> ps.BeginUploadReply:
        partition = await self._partition(request.key, call, version=request.regions_version, write=True)
        upload_id = await partition.begin_upload(
            request.key, condition=request.condition, ttl_ms=request.ttl_ms, call=request.call
        )
        return ps.BeginUploadReply(upload_id=upload_id)

    async def upload_part(self, request: ps.UploadPartRequest, call: Call) -> ps.UploadPartReply:
        partition = await self._partition(request.key, call, write=True)
        with self._metrics.timed("UploadPart"):
            end = await partition.upload_part(
                request.upload_id, request.key, offset=request.offset, payload=call.attachment
            )
        return ps.UploadPartReply(end=end)

    async def complete_upload(self, request: ps.CompleteUploadRequest, call: Call) -> ps.PutReply:
        partition = await self._partition(request.key, call, write=True)
        info = await partition.complete_upload(
            request.upload_id,
            request.key,
            size_bytes=request.size_bytes,
            value_crc32c=request.value_crc32c,
            call=request.call,
        )
        return ps.PutReply(info=info)

    async def abort_upload(self, request: ps.AbortUploadRequest, call: Call) -> ps.AbortUploadReply:
        partition = await self._partition(request.key, call, write=True)
        await partition.abort_upload(request.upload_id, request.key)
        return ps.AbortUploadReply()

    # --- for managers, operators and garbage collection ------------------------------------------------------

    async def prepare_partition_split(
        self, request: ps.PreparePartitionSplitRequest, call: Call
    ) -> ps.PreparePartitionSplitReply:
        await self._host.by_id(request.partition_id, deadline_s=call.deadline_s)
        return await self._host.by_number(request.partition_id).prepare_split(request.middle_key)

    async def prepare_partition_merge(
        self, request: ps.PreparePartitionMergeRequest, call: Call
    ) -> ps.PreparePartitionMergeReply:
        await self._host.by_id(request.partition_id, deadline_s=call.deadline_s)
        return await self._host.by_number(request.partition_id).prepare_merge()

    async def thaw_partition(self, request: ps.ThawPartitionRequest, call: Call) -> ps.ThawPartitionReply:
        self._host.by_number(request.partition_id).thaw(request.owner)
        return ps.ThawPartitionReply()

    async def describe_partitions(
        self, request: ps.DescribePartitionsRequest, call: Call
    ) -> ps.DescribePartitionsReply:
        wanted = set(request.partition_ids)
        return ps.DescribePartitionsReply(
            partitions=[
                hosted.partition.state()
                for partition_id, hosted in sorted(self._host.hosted.items())
                if hosted.partition is not None and (not wanted or partition_id in wanted)
            ]
        )

    async def flush_partition(self, request: ps.FlushPartitionRequest, call: Call) -> ps.FlushPartitionReply:
        await (await self._host.by_id(request.partition_id, deadline_s=call.deadline_s)).flush()
        return ps.FlushPartitionReply()

    async def compact_partition(self, request: ps.CompactPartitionRequest, call: Call) -> ps.CompactPartitionReply:
        partition = await self._host.by_id(request.partition_id, deadline_s=call.deadline_s)
        await partition.compact(full=request.full)
        return ps.CompactPartitionReply()

    async def reclaim_log_extents(self, request: ps.ReclaimLogExtentsRequest, call: Call) -> ps.ReclaimLogExtentsReply:
        partition = await self._host.by_id(request.partition_id, deadline_s=call.deadline_s)
        punched, kept, moved_bytes = await partition.reclaim(list(request.extent_ids))
        return ps.ReclaimLogExtentsReply(punched=punched, kept=kept, moved_bytes=moved_bytes)


def _batch_operations(request: ps.BatchRequest, payload: memoryview) -> list[Operation]:
    found = []
    at = 0
    for each in request.operations:
        end = at + each.value_bytes
        if end > len(payload) or (each.delete and each.value_bytes):
            raise InvalidArgument(what="operations.value_bytes", detail=f"a value ends at {end} of {len(payload)}")
        value = None if each.delete else payload[at:end]
        condition = each.condition if each.HasField("condition") else None
        found.append(Operation(each.key, value, expected_of(condition), each.ttl_ms))
        at = end
    if at != len(payload):
        raise InvalidArgument(what="payload", detail=f"{len(payload)} bytes, the values have {at}")
    return found


def scan_bounds(request: ps.ScanRequest) -> tuple[bytes, bytes]:
    """Return the bounds of the scanned range; an empty end means none."""
    start, end = max(request.start, request.prefix), request.end
    if request.prefix:
        stem = request.prefix.rstrip(b"\xff")
        behind = stem[:-1] + bytes([stem[-1] + 1]) if stem else b""
        end = min(end, behind) if end and behind else end or behind
    return start, end


def _reserving(call: Call) -> Admit:
    """Return a function that reserves reply memory for a value before it is read; for a grown one, the difference."""
    reserved_bytes = 0

    def admit(size_bytes: int) -> Awaitable[None] | None:
        nonlocal reserved_bytes
        missing_bytes = size_bytes - reserved_bytes
        if size_bytes < REPLY_RESERVED_BYTES_MIN or missing_bytes <= 0:
            return None
        reserved_bytes = size_bytes
        return call.reserve_reply(missing_bytes)

    return admit


async def _attach(call: Call, pieces: Iterable[Buffer]) -> None:
    parts = list(pieces)
    size_bytes = sum(map(len, parts))
    if size_bytes >= REPLY_RESERVED_BYTES_MIN:
        await call.reserve_reply(size_bytes)
    call.attach(*parts)
