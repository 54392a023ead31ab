"""One read of some blocks. It asks the best replica first, a second one when that is slow, the next one on a failure.

Invariants: the first useful reply wins, and the other calls are cancelled;
            an empty reply does not count as a failure, since another replica may have more;
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
SPECULATIVE_DELAY_S_MIN = 0.005  # before a second replica is asked too
HEADERS_SHARE = 128  # requests are larger than their payload by 1/128, the headers of 1 KiB blocks
SLOW_BUCKETS_PER_S = 1000  # resolution of the timers for slow reads
SMALL_BYTES_MAX = 64 << 10

_OFFSET_TAG = varint(pb.ReadBlockRequest.OFFSET_FIELD_NUMBER << 3)


def with_headers(payload_bytes: int) -> int:
    """Return how much to request for this much payload.

    A node sends only whole blocks with their headers. Without room for headers, it would send one of two 1 MiB blocks,
    which costs half as much again for each byte.
    """
    return payload_bytes + payload_bytes // HEADERS_SHARE


class Won(NamedTuple):
    """A reply and the replica that sent it."""

    replica: Replica
    reply: pb.ReadBlockReply
    payload: memoryview


class ReadPlan:
    """A read request without its offset, shared by all reads of an extent that have one size.

    `next_max_bytes`: how much the reader will request after it.
    """

    __slots__ = ("_requests", "extent", "max_blocks", "max_bytes", "next_max_bytes", "size")

    def __init__(self, extent: Extent, *, max_bytes: int, max_blocks: int, next_max_bytes: int) -> None:
        self.extent = extent
        self.max_bytes = max_bytes
        self.max_blocks = max_blocks
        self.next_max_bytes = next_max_bytes
        self.size: Size = "small" if max_bytes <= SMALL_BYTES_MAX else "large"
        self._requests: dict[int, bytes] = {}  # without their offsets, by node id

    def request(self, replica: Replica, offset: int) -> bytes:
        """Return an encoded ReadBlockRequest. Joining cached bytes is cheaper than building the message."""
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
    """A running read. `future` gets its outcome; cancelling it ends the race."""

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
        self._empty: Won | None = None  # a reply without blocks
        self._error: NeveError | None = None
        self._slow = slow  # starts the second replica; a timer for each race took a fifth of a small read
        self._slow_bucket = 0
        self.future: asyncio.Future[Won] = self._loop.create_future()
        self.future.add_done_callback(self._on_future_done)
        self._ask_next()
        if self._replicas and not self.future.done():
            delay_s = max(SPECULATIVE_DELAY_S_MIN, history.tail_s[plan.size].value)
            self._slow_bucket = slow.add(self, self._loop.time() + delay_s)

    def _ask_next(self) -> None:
        """Ask one more replica. If none is left and no call is running, the race is over."""
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
                on_head=self._on_reply_head if self._on_head is not None else None,
            )
            if replica.node_id in self._calls:
                self._calls[replica.node_id] = call
            return
        if not self._calls and not self.future.done():
            if self._empty is not None:
                self.future.set_result(self._empty)
            else:
                self.future.set_exception(self._error or ReplicaMissing(extent_id=self._plan.extent.id))

    def _on_reply_head(self, reply: pb.ReadBlockReply) -> None:
        """The head of a reply has arrived. It will probably win, so its consumer can fetch what follows."""
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
                self._on_reply_head(reply.message)  # a reply that came in one piece had no separate head
                self.future.set_result(won)
                return
            if self._empty is None or reply.message.sealed:
                self._empty = won
        elif isinstance(error, NeveError):
            if isinstance(error, RequestError):  # the request is wrong, so every replica would refuse it
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
        length = self._plan.extent.length  # from metadata; None while open
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
