"""A frame: one AppendBlock with segments of many streams, and who is told what became of each.

A segment is a lane's alone, or one that all lanes of an extent have sent at once (`InStep`): it is one object in the
frames of all its nodes, and while all goes well it costs a number that is counted down. The last answer tells one lane,
for all of them.

Invariants: each segment is answered or failed once for each lane that sent it;
            `all_have` is told when every frame that carries the segment was answered as taken, and not before;
            what fails on behalf of one lane ends its writer, and keeps nobody else's answers back;
            once a frame that carries it is answered in another way, or fails, each lane is told by itself: first those
            whose frames were answered as taken, so that whoever judges the failure knows what every replica has said.
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

CRC_JOIN_BYTES_MIN = 64 << 10  # to read a smaller batch again takes less than to join its CRC to the others

# Extents that one frame carries appends for. With more, nodes wait for the client: 512 streams had 31,100 and 34,900
# appends/s with 256, in turns, and 34,600 and 36,900 with 128; with 64 and 103 it was less again.
SEGMENTS_MAX = 128

REPLY_BYTES = 1024
REPLY_BYTES_PER_SEGMENT = 512  # with an error's words

BRIEF = pb.AppendBlockRequest(brief=True).SerializeToString()  # behind the segments

# What a lane gave: batches, or `committed` alone.
Sent = Taken | int


class Told(Protocol):
    """A lane: what it is told of its segments."""

    def has(self, taken: Sent) -> None:
        """The replica has all of the segment."""

    def all_have(self, part: InStep) -> None:
        """So has every replica of the extent. One of its lanes is told."""

    def fall_apart(self) -> None:
        """`InStep.fall_apart` for all that the lanes of the extent have in step."""

    def answered(self, taken: Sent, result: pb.SegmentResult) -> None: ...

    def failed(self, taken: Sent, error: NeveError) -> None: ...

    def broken(self, failure: Exception) -> None:
        """A bug was met on its behalf: its writer is over. Others, who share frames with it, are not."""


class FrameSender(Protocol):
    def ended(self, frame: Frame) -> None: ...


class InStep:
    """A segment that all lanes of an extent have sent, `lanes[i]` with `frames[i]`."""

    __slots__ = ("frames", "lanes", "taken", "unanswered")

    def __init__(self, lanes: Sequence[Told], frames: list[Frame | None], taken: Taken) -> None:
        self.lanes = lanes
        self.frames = frames  # None: its lane is told already
        self.taken = taken
        self.unanswered = len(frames)  # how many of them; 0 or less: the lanes are told one by one

    def fall_apart(self) -> None:
        """Each lane is told by itself from now on; those whose frames were answered as taken, now."""
        self.unanswered = 0
        for lane, frame in zip(self.lanes, self.frames, strict=True):
            if frame is not None and frame.all_taken:
                lane.has(self.taken)

    def lane_of(self, frame: Frame) -> Told:
        """Who is to be told of this frame, by itself. If two replicas have one address, the frame has the segment of
        each of them, in their order."""
        if self.unanswered > 0:
            self.lanes[0].fall_apart()
        number = self.frames.index(frame)
        self.frames[number] = None
        return self.lanes[number]


class Frame:
    """Put together by lanes, then in flight."""

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
        self.parts: list[InStep | tuple[Told, Sent]] = []  # one a segment
        self.size_bytes = 0
        self.blocks = 0
        self.all_taken = False  # the node has answered so

    def add(self, lane: Told, what: Sent, segment: bytes, batches: Sequence[Batch]) -> None:
        """`segment` is from segment_codec.py, and `batches` are its blocks."""
        self.parts.append((lane, what))
        self._segments.append(segment)
        for batch in batches:
            self._batches.append(batch)
            self.size_bytes += batch.size_bytes
            self.blocks += len(batch.block_sizes)

    def add_in_step(self, part: InStep, segment: bytes, batch: Batch, blocks: int) -> bool:
        """The same for one of the lanes that have this in step, a batch of so many. Whether the frame is full now."""
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
        self._sender.ended(self)
        parts, self.parts = self.parts, []  # they have this frame, too: a cycle would wait for the garbage collector
        if reply is not None:
            if reply.message.all_taken:
                self._on_all_taken(parts)
                return
            results = reply.message.results
            if len(results) == len(parts):
                for part, result in zip(parts, results, strict=True):
                    try:
                        lane, taken = self._apart(part)
                        lane.answered(taken, result)
                    except Exception as failure:  # noqa: BLE001 - its writer ends by it
                        _first_lane(part).broken(failure)
                return
        reason = _failure_of(error)
        for part in parts:
            try:
                lane, taken = self._apart(part)
                lane.failed(taken, reason)
            except Exception as failure:  # noqa: BLE001 - its writer ends by it
                _first_lane(part).broken(failure)

    def _on_all_taken(self, parts: Sequence[InStep | tuple[Told, Sent]]) -> None:
        self.all_taken = True
        for part in parts:
            try:
                if type(part) is InStep:  # one look for each append: not a call
                    part.unanswered -= 1
                    if not part.unanswered:
                        part.lanes[0].all_have(part)
                    elif part.unanswered < 0:
                        part.lane_of(self).has(part.taken)
                else:
                    assert isinstance(part, tuple)
                    lane, taken = part
                    lane.has(taken)
            except Exception as failure:  # noqa: BLE001 - its writer ends by it
                _first_lane(part).broken(failure)

    def _apart(self, part: InStep | tuple[Told, Sent]) -> tuple[Told, Sent]:
        return (part.lane_of(self), part.taken) if isinstance(part, InStep) else part


def _first_lane(part: InStep | tuple[Told, Sent]) -> Told:
    """One of the writer's whose segment it is."""
    return part.lanes[0] if isinstance(part, InStep) else part[0]


class Attachments:
    """Of frames that are sent in a row: for lanes in step they have the same batches, joined and checked once."""

    __slots__ = ("_attachment", "_batches")

    def __init__(self) -> None:
        self._batches: Sequence[Batch] = ()
        self._attachment: tuple[Sequence[Buffer], int] = (), 0

    def of(self, batches: Sequence[Batch]) -> tuple[Sequence[Buffer], int]:
        """They must not change until `clear`."""
        if batches != self._batches:  # batches are equal if they are the same one
            self._batches, self._attachment = batches, attachment_of(batches)
        return self._attachment

    def clear(self) -> None:
        """The row is over: nothing is kept."""
        self._batches, self._attachment = (), ((), 0)


def attachment_of(batches: Sequence[Batch]) -> tuple[Sequence[Buffer], int]:
    """All their bytes, and the CRC32C of them. Each batch computes its own once, for all replicas."""
    if len(batches) == 1:
        return batches[0].buffers, batches[0].crc32c
    buffers = [buffer for batch in batches for buffer in batch.buffers]
    if buffers and max(map(len, buffers)) <= JOIN_BYTES_MAX:
        joined = b"".join(buffers)  # as the connection would, and one CRC takes less than one for each
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
        return Internal(detail="the node answered with another number of results than there were segments")
    log.error("append_failed", exc_info=error)
    return Internal(detail=f"{type(error).__name__}: {error}")
