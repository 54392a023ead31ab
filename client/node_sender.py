"""One sender for each node: its frames carry what all writers of this client have for that node.

A lane is one writer's way to one replica; it has what a frame is made of, and the sender asks it when there is room
for a frame. So nothing is queued here, and what gathers while frames are in flight goes with the next one.

Invariants: a frame is cut at about `frame_bytes`, or on the loop's next turn: an idle writer waits for nothing, a busy
            one fills its frames; at most `frames_in_flight_max` are in flight to a node;
            segments of one lane leave in the order in which the lane gave them, and each is answered or failed once;
            lanes take turns, so that a busy stream does not keep the others of the client waiting.
Neighbours: lane.py implements `SegmentSource`; proto/extent_node.proto has the frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from neve.client.core_batch import Batch
from neve.client.core_writer import Taken
from neve.client.later import Later
from neve.client.options import ClientOptions
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto.crc import crc32c, crc32c_shifted
from neve.proto.errors import Cancelled, Internal, NeveError
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Begun, Channel, Reply

log = logging.getLogger(__name__)

CRC_JOIN_BYTES_MIN = 64 << 10  # to read a smaller batch again takes less than to join its CRC to the others

REPLY_BYTES = 1024
REPLY_BYTES_PER_SEGMENT = 512  # with an error's words

# What a lane gave: batches, or `committed` alone.
Sent = Taken | int


class SegmentSource(Protocol):
    """What a sender wants of a lane."""

    @property
    def sender(self) -> NodeSender: ...

    def wake(self) -> None:
        """Say so to the sender, if there is something to send."""

    def take(self, frame: Frame, bytes_max: int) -> bool | None:
        """Add the next segment, of about so many bytes, to the frame: whether there is more behind it. None: there is
        nothing that fits now."""

    @property
    def has_more(self) -> bool: ...

    def answered(self, taken: Sent, result: pb.SegmentResult) -> None: ...

    def failed(self, taken: Sent, error: NeveError) -> None: ...


class NodeSenders:
    """The senders of one client, by address. One turn of the loop serves all that have something to send."""

    def __init__(self, channels: ChannelPool, options: ClientOptions) -> None:
        self._channels = channels
        self._options = options
        self._senders: dict[str, NodeSender] = {}
        self._due: dict[NodeSender, None] = {}
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self.when_idle = Later(options.committed_idle_s)

    def to(self, address: str) -> NodeSender:
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = NodeSender(self, self._channels.channel(address), self._options)
        return sender

    def schedule(self, sender: NodeSender) -> None:
        self._due[sender] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def wake(self, lanes: Sequence[SegmentSource], *, hurry: bool) -> None:
        """The lanes have something to send. `hurry`: one append, whose caller awaits it and has nothing more. It need
        not wait for the loop's next turn, unless others are likely to append in this one. They are if frames are in
        flight, or if the last one took several appends: then a frame for all of them is worth more than the turn."""
        if self._scheduled or not hurry:
            for lane in lanes:
                lane.wake()
            return
        for lane in lanes:
            if not lane.sender.is_idle:
                break
        else:  # as below, with less ado: nobody else has anything for these nodes
            for lane in lanes:
                lane.sender.send_from(lane)
            return
        self._scheduled = True  # no turn is asked for, as yet
        try:
            for lane in lanes:
                lane.wake()
        finally:
            self._scheduled = False
        if all(sender.is_quiet for sender in self._due):
            self._run()
        else:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        due, self._due = list(self._due), {}
        while due:  # a frame for each in turn: all nodes begin with the first streams while the others' are framed
            due = [sender for sender in due if sender.pump()]

    def close(self) -> None:
        self.when_idle.close()
        for sender in self._senders.values():
            sender.close()


class NodeSender:
    """Frames to one node."""

    def __init__(self, senders: NodeSenders, channel: Channel, options: ClientOptions) -> None:
        self._senders = senders
        self._channel = channel
        self._options = options
        self._ready: dict[SegmentSource, None] = {}  # lanes with something to send, in turn
        self._frames: dict[Frame, None] = {}  # in flight
        self._last_blocks = 0  # of the frame that was sent last
        self.frames_sent = 0

    @property
    def address(self) -> str:
        return self._channel.address

    @property
    def is_quiet(self) -> bool:
        """One append at a time: none is in flight, and the last frame had but one."""
        return not self._frames and self._last_blocks <= 1 and len(self._ready) <= 1

    @property
    def is_idle(self) -> bool:
        """As quiet, and nobody has anything to send."""
        return not self._frames and self._last_blocks <= 1 and not self._ready

    def wake(self, lane: SegmentSource) -> None:
        """The lane has something to send."""
        self._ready[lane] = None
        if len(self._frames) < self._options.frames_in_flight_max:
            self._senders.schedule(self)

    def forget(self, lane: SegmentSource) -> None:
        """The lane has nothing to send any more. Its segments in flight are still answered."""
        self._ready.pop(lane, None)

    def pump(self) -> bool:
        """Send a frame, if there is something to send and room for it: whether there may be more."""
        if not self._ready or len(self._frames) >= self._options.frames_in_flight_max:
            return False
        frame = Frame(self)
        self._fill(frame)
        if not frame.parts:
            return False
        self._send(frame)
        return bool(self._ready)

    def send_from(self, lane: SegmentSource) -> None:
        """As `wake` and `pump` of an idle sender: the lane is the only one that has something to send."""
        frame = Frame(self)
        if lane.take(frame, self._options.frame_bytes):
            self._ready[lane] = None
            self._fill(frame)
        if frame.parts:
            self._send(frame)
        while self._ready and self.pump():
            pass

    def _send(self, frame: Frame) -> None:
        self.frames_sent += 1
        self._last_blocks = frame.blocks
        self._frames[frame] = None
        frame.send(self._channel, self._options.append_timeout_s)

    def close(self) -> None:
        self._ready.clear()
        for frame in list(self._frames):
            frame.cancel()

    def _fill(self, frame: Frame) -> None:
        """Add what lanes have, until it is large enough."""
        options, ready = self._options, self._ready
        while ready and frame.size_bytes < options.frame_bytes and len(frame.parts) < options.frame_segments_max:
            lane = next(iter(ready))
            more = lane.take(frame, options.frame_bytes - frame.size_bytes)
            if more is None:
                if lane.has_more:
                    break  # it does not fit any more: it is the first one of the next frame
                del ready[lane]
                continue
            del ready[lane]
            if more:
                ready[lane] = None  # behind the others

    def ended(self, frame: Frame) -> None:
        self._frames.pop(frame, None)
        if self._ready:
            self._senders.schedule(self)


class Frame:
    """One AppendBlock: put together by lanes, then in flight."""

    __slots__ = ("_batches", "_call", "_segments", "_sender", "blocks", "parts", "size_bytes")

    def __init__(self, sender: NodeSender) -> None:
        self._sender = sender
        self._call: Begun | None = None
        self._segments: list[bytes] = []
        self._batches: list[Batch] = []
        self.parts: list[tuple[SegmentSource, Sent]] = []
        self.size_bytes = 0
        self.blocks = 0

    def add(self, lane: SegmentSource, what: Sent, segment: bytes, batches: Sequence[Batch]) -> None:
        """`segment` is from segment_codec.py, and `batches` are its blocks."""
        self.parts.append((lane, what))
        self._segments.append(segment)
        for batch in batches:
            self._batches.append(batch)
            self.size_bytes += batch.size_bytes
            self.blocks += len(batch.block_sizes)

    def send(self, channel: Channel, timeout_s: float) -> None:
        batches = self._batches
        buffers = batches[0].buffers if len(batches) == 1 else [each for batch in batches for each in batch.buffers]
        self._call = channel.begin(
            methods.EXTENT_NODE_APPEND_BLOCK,
            b"".join(self._segments),
            self._on_done,
            timeout_s=timeout_s,
            attachment=buffers,
            attachment_crc32c=crc32c_of(batches),
            reply_bytes_max=REPLY_BYTES + REPLY_BYTES_PER_SEGMENT * len(self.parts),
        )

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _on_done(self, reply: Reply[pb.AppendBlockReply] | None, error: BaseException | None) -> None:
        self._sender.ended(self)
        if reply is not None:
            results = reply.message.results
            if len(results) == len(self.parts):
                for (lane, taken), result in zip(self.parts, results, strict=True):
                    lane.answered(taken, result)
                return
        failure = _failure_of(error)
        for lane, taken in self.parts:
            lane.failed(taken, failure)


def crc32c_of(batches: Sequence[Batch]) -> int:
    """Of all their bytes. Each batch computes its own once, for all replicas."""
    if not batches:
        return 0
    crc = batches[0].crc32c
    for batch in batches[1:]:
        if batch.size_bytes < CRC_JOIN_BYTES_MIN:
            for buffer in batch.buffers:
                crc = crc32c(buffer, crc)
        else:
            crc = crc32c_shifted(crc, batch.size_bytes) ^ batch.crc32c
    return crc


def _failure_of(error: BaseException | None) -> NeveError:
    if isinstance(error, NeveError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return Cancelled(detail="the client was closed")
    if error is None:
        return Internal(detail="the node answered with another number of results than there were segments")
    log.error("append_failed", exc_info=error)
    return Internal(detail=f"{type(error).__name__}: {error}")
