"""A frame: one AppendBlock call with segments of many streams, and the delivery of its results.

A segment belongs to one lane, or to all lanes of an extent that sent it at once (`SharedSegment`). A shared segment is
one object in the frames to all its nodes. While all goes well it costs one counter, which every answer decrements; the
last answer notifies one lane on behalf of all.

Invariants: each segment is answered or failed once for each lane that sent it;
            `on_taken_by_all` is called when every frame that carries the segment was taken completely, not before;
            an exception on behalf of one lane ends its writer and delays no other lane's results;
            once a frame that carries a shared segment fails or is not taken completely, each lane is notified on its
            own. Lanes whose frames were taken come first, so that the failure is judged with all known answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from neve.client.streams.core.batch import Batch
from neve.client.streams.core.writer import Taken
from neve.client.streams.options import ClientOptions
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto.blocks import JOIN_BYTES_MAX
from neve.proto.crc import Buffer, crc32c, crc32c_bytes, crc32c_shifted
from neve.proto.errors import Cancelled, Internal, NeveError
from neve.rpc.service import Begun, Channel, Reply

log = logging.getLogger(__name__)

CRC_JOIN_BYTES_MIN = 64 << 10  # reading a smaller batch again is cheaper than combining its CRC with the others

# Extents in one frame. With more, nodes wait for the client. Appends/s of 512 streams, in turns: 31,100 and 34,900 with
# 256 extents, 34,600 and 36,900 with 128; fewer again with 64 and 103.
SEGMENTS_MAX = 128

REPLY_BYTES = 1024
REPLY_BYTES_PER_SEGMENT = 512  # includes an error's text

BRIEF = pb.AppendBlockRequest(brief=True).SerializeToString()  # follows the segments

# The content of a lane's segment: batches, or `committed` alone.
Sent = Taken | int


class SegmentListener(Protocol):
    """A lane, as the receiver of its segments' results."""

    def on_taken(self, taken: Sent) -> None:
        """The replica has all of the segment."""

    def on_taken_by_all(self, part: SharedSegment) -> None:
        """Every replica of the extent has the segment. Called on one of its lanes, for all of them."""

    def split_up(self) -> None:
        """Split up all shared segments of the extent."""

    def on_result(self, taken: Sent, result: pb.SegmentResult) -> None: ...

    def on_failed(self, taken: Sent, error: NeveError) -> None: ...

    def on_bug(self, failure: Exception) -> None:
        """Handling its segment raised an exception, which is a bug: its writer ends. Other writers do not."""


class FrameSender(Protocol):
    """The sender of frames to one node."""

    def on_frame_done(self, frame: AppendFrame) -> None: ...


class SharedSegment:
    """A segment that all lanes of an extent have sent: `lanes[i]` with `frames[i]`."""

    __slots__ = ("frames", "lanes", "taken", "unanswered")

    def __init__(self, lanes: Sequence[SegmentListener], frames: list[AppendFrame | None], taken: Taken) -> None:
        self.lanes = lanes
        self.frames = frames  # None: its lane has been notified
        self.taken = taken
        self.unanswered = len(frames)  # frames without an answer; 0 or less: lanes are notified one by one

    def split_up(self) -> None:
        """Notify each lane on its own from now on, and at once those whose frames were taken completely."""
        self.unanswered = 0
        for lane, frame in zip(self.lanes, self.frames, strict=True):
            if frame is not None and frame.all_taken:
                lane.on_taken(self.taken)

    def claim_lane(self, frame: AppendFrame) -> SegmentListener:
        """Return the lane to notify of this frame's result, on its own, and mark it as notified.

        If two replicas have one address, the frame contains the segment once for each of them, in their order.
        """
        if self.unanswered > 0:
            self.lanes[0].split_up()
        number = self.frames.index(frame)
        self.frames[number] = None
        return self.lanes[number]


class AppendFrame:
    """An AppendBlock call that lanes fill and a NodeSender sends."""

    __slots__ = (
        "_batches",
        "_call",
        "_segments",
        "_segments_max",
        "_sender",
        "all_taken",
        "blocks",
        "bytes_max",
        "parts",
        "size_bytes",
    )

    def __init__(self, sender: FrameSender, options: ClientOptions) -> None:
        self._sender = sender
        self.bytes_max = options.frame_bytes
        self._segments_max = SEGMENTS_MAX
        self._call: Begun | None = None
        self._segments: list[bytes] = []
        self._batches: list[Batch] = []
        self.parts: list[SharedSegment | tuple[SegmentListener, Sent]] = []  # one for each segment
        self.size_bytes = 0
        self.blocks = 0
        self.all_taken = False  # the node has taken every segment

    def add(self, lane: SegmentListener, what: Sent, segment: bytes, batches: Sequence[Batch]) -> None:
        """Add a segment of segment_codec.py; `batches` are its blocks."""
        self.parts.append((lane, what))
        self._segments.append(segment)
        for batch in batches:
            self._batches.append(batch)
            self.size_bytes += batch.size_bytes
            self.blocks += len(batch.block_sizes)

    def add_shared(self, part: SharedSegment, segment: bytes, batch: Batch, blocks: int) -> bool:
        """Add a shared segment, which has one batch of `blocks` blocks. Returns whether the frame is full now."""
        parts = self.parts
        parts.append(part)
        self._segments.append(segment)
        self._batches.append(batch)
        self.blocks += blocks
        self.size_bytes += batch.size_bytes
        return self.size_bytes >= self.bytes_max or len(parts) >= self._segments_max

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self.bytes_max or len(self.parts) >= self._segments_max

    def send(self, channel: Channel, attachments: Attachments, timeout_s: float) -> None:
        buffers, crc = attachments.of(self._batches)
        self._call = channel.begin(
            methods.EXTENT_NODE_APPEND_BLOCK,
            b"".join((*self._segments, BRIEF)),
            self._on_done,
            timeout_s=timeout_s,
            attachment=buffers,
            attachment_crc32c=crc,
            reply_bytes_max=REPLY_BYTES + REPLY_BYTES_PER_SEGMENT * len(self.parts),
        )

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _on_done(self, reply: Reply[pb.AppendBlockReply] | None, error: BaseException | None) -> None:
        self._sender.on_frame_done(self)
        parts, self.parts = self.parts, []  # shared segments refer to this frame: a cycle would wait for the collector
        if reply is not None:
            if reply.message.all_taken:
                self._on_all_taken(parts)
                return
            results = reply.message.results
            if len(results) == len(parts):
                for part, result in zip(parts, results, strict=True):
                    try:
                        lane, taken = self._listener_and_sent(part)
                        lane.on_result(taken, result)
                    except Exception as failure:  # noqa: BLE001 - its writer ends by it
                        _any_lane(part).on_bug(failure)
                return
        reason = _failure_of(error)
        for part in parts:
            try:
                lane, taken = self._listener_and_sent(part)
                lane.on_failed(taken, reason)
            except Exception as failure:  # noqa: BLE001 - its writer ends by it
                _any_lane(part).on_bug(failure)

    def _on_all_taken(self, parts: Sequence[SharedSegment | tuple[SegmentListener, Sent]]) -> None:
        self.all_taken = True
        for part in parts:
            try:
                if type(part) is SharedSegment:  # inlined: this runs for each append
                    part.unanswered -= 1
                    if not part.unanswered:
                        part.lanes[0].on_taken_by_all(part)
                    elif part.unanswered < 0:
                        part.claim_lane(self).on_taken(part.taken)
                else:
                    assert isinstance(part, tuple)
                    lane, taken = part
                    lane.on_taken(taken)
            except Exception as failure:  # noqa: BLE001 - its writer ends by it
                _any_lane(part).on_bug(failure)

    def _listener_and_sent(self, part: SharedSegment | tuple[SegmentListener, Sent]) -> tuple[SegmentListener, Sent]:
        return (part.claim_lane(self), part.taken) if isinstance(part, SharedSegment) else part


def _any_lane(part: SharedSegment | tuple[SegmentListener, Sent]) -> SegmentListener:
    """Return a lane of the writer whose segment it is."""
    return part.lanes[0] if isinstance(part, SharedSegment) else part[0]


class Attachments:
    """The attachment of frames sent in a row, joined and checksummed once if they have the same batches."""

    __slots__ = ("_attachment", "_batches")

    def __init__(self) -> None:
        self._batches: Sequence[Batch] = ()
        self._attachment: tuple[Sequence[Buffer], int] = (), 0

    def of(self, batches: Sequence[Batch]) -> tuple[Sequence[Buffer], int]:
        """Return the bytes and CRC32C of these batches, which must not change until `clear`."""
        if batches != self._batches:  # batches compare by identity
            self._batches, self._attachment = batches, attachment_of(batches)
        return self._attachment

    def clear(self) -> None:
        """The row of frames is sent: release its bytes."""
        self._batches, self._attachment = (), ((), 0)


def attachment_of(batches: Sequence[Batch]) -> tuple[Sequence[Buffer], int]:
    """Return the bytes of all batches and their CRC32C. Each batch computes its own CRC once, for all replicas."""
    if len(batches) == 1:
        return batches[0].buffers, batches[0].crc32c
    buffers = [buffer for batch in batches for buffer in batch.buffers]
    if buffers and max(map(len, buffers)) <= JOIN_BYTES_MAX:
        joined = b"".join(buffers)  # the connection would join them too, and one CRC is cheaper than many
        return [joined], crc32c_bytes(joined)
    crc = 0
    for batch in batches:
        if batch.size_bytes < CRC_JOIN_BYTES_MIN:
            for buffer in batch.buffers:
                crc = crc32c(buffer, crc)
        else:
            crc = crc32c_shifted(crc, batch.size_bytes) ^ batch.crc32c
    return buffers, crc


def _failure_of(error: BaseException | None) -> NeveError:
    if isinstance(error, NeveError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return Cancelled(detail="the client was closed")
    if error is None:
        return Internal(detail="the node's reply has a different number of results than the frame has segments")
    log.error("append_failed", exc_info=error)
    return Internal(detail=f"{type(error).__name__}: {error}")
