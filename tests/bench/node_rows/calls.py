"""The calls that a writer, a reader and a manager make to one node, as the client library makes them.

Invariants: a writer's offsets, token, eversion and `committed` are right, and every answer is checked: a benchmark of
            refused appends would be fast;
            frames of one extent leave in the order in which their offsets were given out.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence

from neve.proto import common_pb2, errors, methods
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import EncodedBlocks
from neve.proto.diagnostics_pb2 import EchoRequest
from neve.rpc.service import Buffer, Reply
from neve.rpc.wire.client import WireChannel
from tests.bench.node_rows.process import CLUSTER

TIMEOUT_S = 60.0
SEAL_TIMEOUT_S = 300.0  # a node reads, checks and digests every byte before it confirms

TOKEN, EVERSION = 10, 1
LEADER = common_pb2.Leader(create_revision=1, address="bench")

READ_REPLY_BYTES = 4096  # what a reply of ReadBlock has beside its payload, at most

_extent_ids = itertools.count(1)


class Unexpected(Exception):
    """The node answered what no benchmark can go on with."""


class OpenExtent:
    """What the one writer of an extent knows of it."""

    __slots__ = ("_segment", "_sizes", "committed", "end", "extent_id", "replica")

    def __init__(self, extent_id: int, replica: common_pb2.Replica) -> None:
        self.extent_id = extent_id
        self.replica = replica
        self.end = 0  # of all blocks that were sent
        self.committed = 0  # of those that were answered
        # What does not change from one segment to the next is set once.
        self._segment = pb.Segment(extent_id=extent_id, replica=replica, eversion=EVERSION, token=TOKEN)
        self._sizes: list[int] = []

    def add_segment(self, request: pb.AppendBlockRequest, blocks: EncodedBlocks, *, no_sync: bool) -> None:
        """Append these blocks behind all that was sent, by this request. It must be sent before the next one is."""
        segment = self._segment
        segment.offset = self.end
        segment.committed = self.committed
        segment.no_sync = no_sync
        if self._sizes != blocks.block_sizes:
            self._sizes = blocks.block_sizes
            segment.block_sizes[:] = blocks.block_sizes
        self.end += blocks.size_bytes
        request.segments.append(segment)  # a copy

    def note(self, result: pb.SegmentResult) -> None:
        end = result.end
        if not 0 < end <= self.end:
            if result.HasField("error"):
                raise errors.from_message(result.error)
            raise Unexpected(f"extent {self.extent_id} ends at {end}, {self.end} bytes were sent")
        if end > self.committed:  # answers may overtake each other
            self.committed = end


class NodeCalls:
    """One channel to one node."""

    def __init__(self, address: str) -> None:
        self._channel = WireChannel(address, cluster=CLUSTER)
        self._client_id = random.getrandbits(63)
        self._call_ids = itertools.count(1)

    async def close(self) -> None:
        await self._channel.close()

    def _call_id(self) -> common_pb2.CallId:
        return common_pb2.CallId(client_id=self._client_id, call_id=next(self._call_ids))

    async def echo(self, attachment: Sequence[Buffer]) -> None:
        """Bulk bytes there, a few bytes back: an append without what a node does for it."""
        request = EchoRequest(text="echo")
        await self._channel.call(methods.DIAGNOSTICS_ECHO, request, timeout_s=TIMEOUT_S, attachment=attachment)

    # --- the writer ------------------------------------------------------------------------------------------

    async def append(self, extent: OpenExtent, blocks: EncodedBlocks, *, no_sync: bool) -> None:
        request = self._append_request()
        extent.add_segment(request, blocks, no_sync=no_sync)
        reply = await self._channel.call(
            methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=TIMEOUT_S, attachment=blocks.buffers
        )
        extent.note(reply.message.results[0])

    async def append_all(self, appends: Sequence[tuple[OpenExtent, EncodedBlocks]], *, no_sync: bool) -> None:
        """One frame for all of them."""
        request = self._append_request()
        attachment: list[Buffer] = []
        for extent, blocks in appends:
            extent.add_segment(request, blocks, no_sync=no_sync)
            attachment += blocks.buffers
        reply = await self._channel.call(
            methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=TIMEOUT_S, attachment=attachment
        )
        for (extent, _), result in zip(appends, reply.message.results[:], strict=True):
            extent.note(result)

    def _append_request(self) -> pb.AppendBlockRequest:
        request = pb.AppendBlockRequest()
        request.call.client_id = self._client_id
        request.call.call_id = next(self._call_ids)
        return request

    # --- the reader ------------------------------------------------------------------------------------------

    async def read(
        self, extent_id: int, offset: int, *, max_bytes: int, max_blocks: int = 0
    ) -> Reply[pb.ReadBlockReply]:
        request = pb.ReadBlockRequest(extent_id=extent_id, offset=offset, max_blocks=max_blocks, max_bytes=max_bytes)
        return await self._channel.call(
            methods.EXTENT_NODE_READ_BLOCK, request, timeout_s=TIMEOUT_S, reply_bytes_max=max_bytes + READ_REPLY_BYTES
        )

    def begin_read(
        self, extent_id: int, offset: int, *, max_bytes: int, on_head: Callable[[pb.ReadBlockReply], None]
    ) -> asyncio.Future[Reply[pb.ReadBlockReply]]:
        """As `read`; `on_head` hears where the answer ends, as soon as that is known and once at most."""
        future: asyncio.Future[Reply[pb.ReadBlockReply]] = asyncio.get_running_loop().create_future()

        def on_done(reply: Reply[pb.ReadBlockReply] | None, error: BaseException | None) -> None:
            if reply is not None:
                future.set_result(reply)
            else:
                assert error is not None
                future.set_exception(error)

        self._channel.begin(
            methods.EXTENT_NODE_READ_BLOCK,
            pb.ReadBlockRequest(extent_id=extent_id, offset=offset, max_bytes=max_bytes),
            on_done,
            timeout_s=TIMEOUT_S,
            reply_bytes_max=max_bytes + READ_REPLY_BYTES,
            on_head=on_head,
        )
        return future

    # --- the manager -----------------------------------------------------------------------------------------

    async def create(self, *, extent_bytes_max: int) -> OpenExtent:
        extent_id = next(_extent_ids)
        request = pb.CreateExtentRequest(
            call=self._call_id(),
            leader=LEADER,
            extent_id=extent_id,
            eversion=EVERSION,
            extent_bytes_max=extent_bytes_max,
        )
        reply = await self._channel.call(methods.EXTENT_NODE_CREATE_EXTENT, request, timeout_s=TIMEOUT_S)
        return OpenExtent(extent_id, reply.message.replica)

    async def seal(self, extent: OpenExtent) -> None:
        request = pb.SealExtentRequest(
            call=self._call_id(),
            leader=LEADER,
            extent_id=extent.extent_id,
            replica=extent.replica,
            seal=common_pb2.Seal(length=extent.end, eversion=EVERSION + 1),
        )
        reply = await self._channel.call(methods.EXTENT_NODE_SEAL_EXTENT, request, timeout_s=SEAL_TIMEOUT_S)
        if not reply.message.confirmed:
            raise Unexpected(f"extent {extent.extent_id} is not sealed: {reply.message.length} of {extent.end} bytes")

    async def delete(self, extent: OpenExtent) -> None:
        """Its bytes go to the node's trash, from where `NodeProcess.empty_trash` takes them."""
        request = pb.DeleteExtentRequest(
            call=self._call_id(),
            leader=LEADER,
            extent_id=extent.extent_id,
            replica=extent.replica,
            eversion=EVERSION,
        )
        await self._channel.call(methods.EXTENT_NODE_DELETE_EXTENT, request, timeout_s=TIMEOUT_S)
