"""One read of some blocks: the best replica first, a second one when it is slow, the next one when it fails.

Invariants: the first answer that is of use wins, and the other calls are cancelled;
            a replica that has nothing (yet) is no failure: another one may have more;
            every replica is asked at most once, so a race ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from neve.client.streams.core.reader import Size, SourceHistory
from neve.client.streams.options import ClientOptions
from neve.client.streams.types import Extent, Replica
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto.errors import Internal, NeveError, OutOfRange, ReplicaMissing, RequestError
from neve.proto.fields import varint
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Begun, Reply
from neve.rpc.wire.deadlines import Deadlines

REPLY_BYTES = 4096
SPECULATIVE_DELAY_S_MIN = 0.005  # before a second replica is asked as well
HEADERS_SHARE = 128  # of what is asked for, one part in so many: the headers of blocks of 1 KiB
SLOW_BUCKETS_PER_S = 1000  # how finely it is told which of many reads are slow
SMALL_BYTES_MAX = 64 << 10

_OFFSET_TAG = varint(pb.ReadBlockRequest.OFFSET_FIELD_NUMBER << 3)


def with_headers(payload_bytes: int) -> int:
    """What to ask for, to get so much of payload. Only whole blocks come, each with a header: without room for those,
    of two blocks of 1 MiB one would come, at half as much again for each byte."""
    return payload_bytes + payload_bytes // HEADERS_SHARE


class Won(NamedTuple):
    """An answer, and whose it is."""

    replica: Replica
    reply: pb.ReadBlockReply
    payload: memoryview


class ReadPlan:
    """What is asked for, but for the offset: the same for all reads of an extent that are of one size.
    `next_max_bytes`: what will be asked for behind it."""

    __slots__ = ("_requests", "extent", "max_blocks", "max_bytes", "next_max_bytes", "size")

    def __init__(self, extent: Extent, *, max_bytes: int, max_blocks: int, next_max_bytes: int) -> None:
        self.extent = extent
        self.max_bytes = max_bytes
        self.max_blocks = max_blocks
        self.next_max_bytes = next_max_bytes
        self.size: Size = "small" if max_bytes <= SMALL_BYTES_MAX else "large"
        self._requests: dict[int, bytes] = {}  # without their offsets, by node id

    def request(self, replica: Replica, offset: int) -> bytes:
        """A ReadBlockRequest, which takes longer to build than to join."""
        request = self._requests.get(replica.node_id)
        if request is None:
            request = self._requests[replica.node_id] = pb.ReadBlockRequest(
                extent_id=self.extent.id,
                replica=replica.message(),
                eversion=self.extent.eversion,
                max_blocks=self.max_blocks,
                max_bytes=self.max_bytes,
                next_max_bytes=self.next_max_bytes,
            ).SerializeToString()
        return request + _OFFSET_TAG + varint(offset)


class Race:
    """Runs from its making on; `future` has what came of it. Cancel the future to end it."""

    def __init__(
        self,
        channels: ChannelPool,
        replicas: Sequence[Replica],
        plan: ReadPlan,
        offset: int,
        history: SourceHistory,
        slow: Deadlines[Race],
        options: ClientOptions,
        on_head: Callable[[pb.ReadBlockReply], None] | None = None,
    ) -> None:
        self._channels = channels
        self._on_head = on_head
        self._replicas = list(reversed(replicas))
        self._plan = plan
        self._offset = offset
        self._timeout_s = options.read_timeout_s
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Begun | None] = {}  # by node id
        self._empty: Won | None = None  # an answer that brought nothing
        self._error: NeveError | None = None
        self._slow = slow  # has it until a second replica is asked: a timer for each took a fifth of a small read
        self._slow_bucket = 0
        self.future: asyncio.Future[Won] = self._loop.create_future()
        self.future.add_done_callback(self._on_future_done)
        self._ask_next()
        if self._replicas and not self.future.done():
            delay_s = max(SPECULATIVE_DELAY_S_MIN, history.tail_s[plan.size].value)
            self._slow_bucket = slow.add(self, self._loop.time() + delay_s)

    def _ask_next(self) -> None:
        """Ask one more; if there is none, and none is being asked, the race is over."""
        if self._replicas:
            replica = self._replicas.pop()
            self._calls[replica.node_id] = None
            plan = self._plan
            call = self._channels.channel(replica.address).begin(
                methods.EXTENT_NODE_READ_BLOCK,
                plan.request(replica, self._offset),
                partial(self._on_done, replica, self._loop.time()),
                timeout_s=self._timeout_s,
                reply_bytes_max=plan.max_bytes + REPLY_BYTES,
                on_head=self._heard if self._on_head is not None else None,
            )
            if replica.node_id in self._calls:
                self._calls[replica.node_id] = call
            return
        if not self._calls and not self.future.done():
            if self._empty is not None:
                self.future.set_result(self._empty)
            else:
                self.future.set_exception(self._error or ReplicaMissing(extent_id=self._plan.extent.id))

    def _heard(self, reply: pb.ReadBlockReply) -> None:
        """An answer has begun to come. It will probably win: what follows it can be asked for."""
        on_head, self._on_head = self._on_head, None
        if on_head is not None and not self.future.done() and self._is_of_use(reply):
            on_head(reply)

    def _on_done(
        self, replica: Replica, begun_s: float, reply: Reply[pb.ReadBlockReply] | None, error: BaseException | None
    ) -> None:
        self._calls.pop(replica.node_id, None)
        if self.future.done():
            return
        now_s = self._loop.time()
        if reply is not None:
            self._history.answered(replica.address, now_s - begun_s, size=self._plan.size)
            won = Won(replica, reply.message, reply.attachment)
            if self._is_of_use(reply.message):
                self._heard(reply.message)  # as of an answer that came in one piece
                self.future.set_result(won)
                return
            if self._empty is None or reply.message.sealed:
                self._empty = won
        elif isinstance(error, NeveError):
            if isinstance(error, RequestError):  # the same at every replica: it is the request that is wrong
                self.future.set_exception(error)
                return
            if not isinstance(error, OutOfRange):
                self._history.failed(replica.address, now_s)
            if self._error is None or isinstance(self._error, OutOfRange):
                self._error = error
        elif not isinstance(error, asyncio.CancelledError):
            self._error = Internal(detail=f"{type(error).__name__}: {error}")
        self._ask_next()

    def _is_of_use(self, reply: pb.ReadBlockReply) -> bool:
        if reply.blocks > 0 or reply.sealed:
            return True
        length = self._plan.extent.length  # where metadata says that it ends, if it is sealed
        return length is not None and self._offset >= length

    def on_slow(self) -> None:
        self._slow_bucket = 0
        if not self.future.done():
            self._ask_next()

    def _on_future_done(self, _: asyncio.Future[Won]) -> None:
        if self._slow_bucket:
            self._slow.remove(self, self._slow_bucket)
        self._replicas.clear()
        if self._calls:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                if call is not None:
                    call.cancel()
