"""Sends frames to nodes. There is one sender for each node; its frames carry segments of all writers of the client.

A lane connects one writer with one replica. The sender takes segments from lanes when it has room for a frame, so it
queues nothing itself, and appends that gather while frames are in flight go into the next frame.

Invariants: a frame is sent at about `frame_bytes` or on the next turn of the loop, so an idle writer waits for nothing
            and a busy one fills its frames; at most `frames_in_flight_max` frames are in flight to a node;
            segments of one lane are sent in the order in which the lane returned them, and each is answered or failed
            once;
            lanes take turns, so a busy stream does not block the client's other streams;
            when all lanes of an extent would send the same segment, as when a caller awaits each append, it is taken,
            placed and encoded once for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import methodcaller
from typing import Protocol

from neve.client.streams.options import ClientOptions
from neve.client.streams.sending.append_frame import AppendFrame, Attachments, SegmentListener, SharedSegment
from neve.client.streams.sending.segment_codec import join_segment
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Channel
from neve.rpc.wire.deadlines import Deadlines

IDLE_BUCKETS_PER_S = 1000  # resolution of the idle timers, which all writers share


class SegmentSource(SegmentListener, Protocol):
    """A lane, as the source of segments for a sender."""

    @property
    def sender(self) -> NodeSender: ...

    @property
    def ready(self) -> bool:
        """Whether segments may be taken now."""

    @property
    def template(self) -> bytes:
        """The encoded fields of its segments, without the place."""

    def wake(self) -> None:
        """Register with the sender, if there is something to send."""

    def take(self, frame: AppendFrame, bytes_max: int) -> bool | None:
        """Add the next segment, of about `bytes_max` bytes, to the frame. Returns whether there is more after it.

        Returns None if there is nothing that fits now.
        """

    def take_for_all(
        self, lanes: Sequence[SegmentSource], frames: list[AppendFrame | None]
    ) -> tuple[SharedSegment, bytes] | None:
        """Return the next segment and its encoded place, shared by all lanes of the extent.

        None unless the segment is small and the same for all. `lanes[i]` will send it with `frames[i]`.
        """

    @property
    def has_more(self) -> bool: ...


class IdleListener(Protocol):
    """A writer that publishes `committed` when it is idle."""

    def on_turn_over(self) -> None:
        """The callers of the writer's last acknowledged appends have run."""

    def on_idle(self) -> None:
        """The time that the writer had set is over."""


class NodeSenders:
    """The senders of one client, by address. One callback of the loop serves all that have something to send."""

    def __init__(self, channels: ChannelPool, options: ClientOptions) -> None:
        self._channels = channels
        self._options = options
        self._senders: dict[str, NodeSender] = {}
        self._woken: list[Sequence[SegmentSource]] = []  # lanes with something to send, by extent
        self.filling: dict[NodeSender, None] = {}  # senders with a frame that may not be full
        self._due: dict[NodeSender, None] = {}  # senders to pump on the next turn
        self.attachments = Attachments()
        self._newly_idle: list[IdleListener] = []  # writers that have just become idle
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        tell = methodcaller("on_idle")  # looked up on each writer: `IdleListener.on_idle` itself does nothing
        self.when_idle: Deadlines[IdleListener] = Deadlines(self._loop, tell, buckets_per_s=IDLE_BUCKETS_PER_S)

    def to(self, address: str) -> NodeSender:
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = NodeSender(self, self._channels.channel(address), self._options)
        return sender

    def schedule(self, sender: NodeSender) -> None:
        self._due[sender] = None
        self._ask_for_a_turn()

    def wake(self, lanes: Sequence[SegmentSource], *, hurry: bool) -> None:
        """The lanes of an extent have something to send.

        `hurry`: it is a single append whose caller awaits it. It is sent at once unless others are likely to append in
        this turn of the loop: if frames are in flight, or if the last frame had several appends. Then one frame for all
        of them saves more than the turn costs.
        """
        if hurry and not self._scheduled:
            for lane in lanes:
                if not lane.sender.is_quiet:
                    break
            else:
                if not self._send_alone(lanes):
                    self._woken.append(lanes)
                    self._run()
                return
        self._woken.append(lanes)
        self._ask_for_a_turn()

    def _send_alone(self, lanes: Sequence[SegmentSource]) -> bool:
        """Send the next segment of these lanes at once, to quiet nodes. False if nothing was sent.

        That happens if they have more to send, have different segments, or must wait. The first frame is sent before
        the others are made, so that its node wakes up meanwhile.
        """
        if not lanes or len(lanes) > self._options.frames_in_flight_max:  # two lanes may have one sender
            return False
        for lane in lanes:
            if not lane.ready:
                return False
        frames = [AppendFrame(lane.sender, self._options) for lane in lanes]
        self._scheduled = True  # lanes woken by an immediate failure are served later
        try:
            segment = lanes[0].take_for_all(lanes, [*frames])
            if segment is None:
                return False
            part, place = segment
            (batch,) = part.taken.batches
            blocks = len(batch.block_sizes)
            for lane, frame in zip(lanes, frames, strict=True):
                frame.add_shared(part, join_segment(lane.template, place), batch, blocks)
                lane.sender.send(frame)
        except Exception as failure:  # noqa: BLE001 - ends this lane's writer, not the others
            lanes[0].on_bug(failure)
        finally:
            self._scheduled = False
            if self._due or self._woken:
                self._ask_for_a_turn()
        self.attachments.clear()
        return True

    def _ask_for_a_turn(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Serve lanes that have waited, then woken ones; finally send the frames that are not full."""
        self._scheduled = True  # lanes woken from here on are served below
        try:
            if self._due:
                self._pump()
            woken, self._woken = self._woken, []
            for lanes in woken:
                try:
                    if not self._take_together(lanes):
                        for lane in lanes:
                            lane.wake()
                except Exception as failure:  # noqa: BLE001 - ends this lane's writer, not the others
                    lanes[0].on_bug(failure)
            if self._due:
                self._pump()
        finally:
            self._scheduled = False
            if self._due or self._woken:  # woken by an immediate failure, after the woken lanes were served
                self._ask_for_a_turn()
        self._send_filled()

    def _pump(self) -> None:
        due, self._due = list(self._due), {}
        while due:  # one frame for each node in turn, so that all nodes can start while later streams are framed
            due = [sender for sender in due if sender.pump()]

    def _take_together(self, lanes: Sequence[SegmentSource]) -> bool:
        """Add the next segment of these lanes to their nodes' frames, as a shared segment.

        False if a lane has something else to send or must wait for its turn; then each lane is served on its own.
        """
        frames: list[AppendFrame] = []
        for lane in lanes:
            sender = lane.sender
            frame = sender.filling
            if frame is None or sender.ready_lanes:
                frame = sender.frame_to_join()
            if frame is None or not lane.ready:
                return False
            frames.append(frame)
        segment = lanes[0].take_for_all(lanes, [*frames]) if lanes else None
        if segment is None:
            return False
        part, place = segment
        (batch,) = part.taken.batches
        blocks = len(batch.block_sizes)
        is_full = False
        for lane, frame in zip(lanes, frames, strict=True):
            if frame.add_shared(part, join_segment(lane.template, place), batch, blocks):
                is_full = True
        if is_full:  # after all lanes have added theirs: an immediate failure removes lanes
            for lane in lanes:
                lane.sender.send_if_full()
        return True

    def _send_filled(self) -> None:
        filling, self.filling = self.filling, {}
        for sender in filling:
            sender.send_filled()
        self.attachments.clear()

    def note_idle(self, idler: IdleListener) -> None:
        """All appends of a writer are acknowledged. Most callers append again when they see that.

        `on_turn_over` runs after them, so that only writers which stay idle need a timer.
        """
        self._newly_idle.append(idler)
        if len(self._newly_idle) == 1:
            self._loop.call_soon(self._loop.call_soon, self._notify_idle)  # behind all callbacks of this turn

    def _notify_idle(self) -> None:
        idlers, self._newly_idle = self._newly_idle, []
        for idler in idlers:
            idler.on_turn_over()

    def close(self) -> None:
        self._newly_idle.clear()
        self.when_idle.close()
        for sender in self._senders.values():
            sender.close()


class NodeSender:
    """Sends frames to one node."""

    def __init__(self, senders: NodeSenders, channel: Channel, options: ClientOptions) -> None:
        self._senders = senders
        self._channel = channel
        self._options = options
        self.ready_lanes: dict[SegmentSource, None] = {}  # lanes with something to send, in order of their turns
        self._frames: dict[AppendFrame, None] = {}  # in flight
        self.filling: AppendFrame | None = None  # not sent yet, because more may join it in this turn
        self._last_blocks = 0  # of the last frame sent

    @property
    def is_quiet(self) -> bool:
        """Whether appends come one at a time: none in flight, at most one in the last frame, and no lane is ready."""
        return not self._frames and self._last_blocks <= 1 and not self.ready_lanes

    @property
    def is_saturated(self) -> bool:
        """Whether no more frames may be in flight."""
        return len(self._frames) >= self._options.frames_in_flight_max

    def wake(self, lane: SegmentSource) -> None:
        """The lane has something to send."""
        self.ready_lanes[lane] = None
        if not self.is_saturated:
            self._senders.schedule(self)

    def forget(self, lane: SegmentSource) -> None:
        """The lane has nothing more to send. Its segments in flight are still answered."""
        self.ready_lanes.pop(lane, None)

    def pump(self) -> bool:
        """Fill a frame and send it if it is full. Returns whether there may be more to send.

        Does nothing if no lane is ready or too many frames are in flight.
        """
        if not self.ready_lanes or (self.filling is None and self.is_saturated):
            return False
        frame = self.filling or self.begin_frame()
        self._fill(frame)
        if not frame.parts:
            return False
        if self.ready_lanes or frame.is_full:
            self.send_filled()
        return bool(self.ready_lanes)

    def frame_to_join(self) -> AppendFrame | None:
        """Return the frame that a lane may add to now. None: lanes have to wait for their turn."""
        if self.ready_lanes:
            return None
        return self.filling or (None if self.is_saturated else self.begin_frame())

    def begin_frame(self) -> AppendFrame:
        """Start a frame for what there is to send in this turn."""
        self._senders.filling[self] = None
        self.filling = frame = AppendFrame(self, self._options)
        return frame

    def send_if_full(self) -> None:
        if self.filling is not None and self.filling.is_full:
            self.send_filled()

    def send_filled(self) -> None:
        frame, self.filling = self.filling, None
        if frame is not None and frame.parts:
            self.send(frame)

    def send(self, frame: AppendFrame) -> None:
        self._last_blocks = frame.blocks
        self._frames[frame] = None
        try:
            frame.send(self._channel, self._senders.attachments, self._options.append_timeout_s)
        except BaseException:
            self._frames.pop(frame, None)  # it is not in flight
            raise

    def close(self) -> None:
        self.ready_lanes.clear()
        for frame in list(self._frames):
            frame.cancel()

    def _fill(self, frame: AppendFrame) -> None:
        """Add segments of ready lanes until the frame is full."""
        ready = self.ready_lanes
        while ready and not frame.is_full:
            lane = next(iter(ready))
            try:
                more = lane.take(frame, frame.bytes_max - frame.size_bytes)
            except Exception as failure:  # noqa: BLE001 - ends this lane's writer, not the others
                del ready[lane]
                lane.on_bug(failure)
                continue
            if more is None:
                if lane.has_more:
                    break  # its segment does not fit: it is the first one of the next frame
                del ready[lane]
                continue
            del ready[lane]
            if more:
                ready[lane] = None  # behind the others

    def on_frame_done(self, frame: AppendFrame) -> None:
        self._frames.pop(frame, None)
        if self.ready_lanes:
            self._senders.schedule(self)
