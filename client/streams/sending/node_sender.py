"""One sender for each node: its frames carry what all writers of this client have for that node.

A lane is one writer's way to one replica; it has what a frame is made of, and the sender asks it when there is room
for a frame. So nothing is queued here, and what gathers while frames are in flight goes with the next one.

Invariants: a frame is cut at about `frame_bytes`, or on the loop's next turn: an idle writer waits for nothing, a busy
            one fills its frames; at most `frames_in_flight_max` are in flight to a node;
            segments of one lane leave in the order in which the lane gave them, and each is answered or failed once;
            lanes take turns, so that a busy stream does not keep the others of the client waiting;
            the lanes of an extent are asked once for all of them if each would give the same, as when every append is
            awaited: what is placed and encoded for one replica is not so again for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import methodcaller
from typing import Protocol

from neve.client.streams.options import ClientOptions
from neve.client.streams.sending.append_frame import Attachments, Frame, InStep, Told
from neve.client.streams.sending.segment_codec import join_segment
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Channel
from neve.rpc.wire.deadlines import Deadlines

IDLE_BUCKETS_PER_S = 1000  # their timers, too, are one for all writers


class SegmentSource(Told, Protocol):
    """What a sender wants of a lane."""

    @property
    def sender(self) -> NodeSender: ...

    @property
    def ready(self) -> bool:
        """Whether it may be asked for segments now."""

    @property
    def template(self) -> bytes:
        """Of its segments: all but their place."""

    def wake(self) -> None:
        """Say so to the sender, if there is something to send."""

    def take(self, frame: Frame, bytes_max: int) -> bool | None:
        """Add the next segment, of about so many bytes, to the frame: whether there is more behind it. None: there is
        nothing that fits now."""

    def take_for_all(self, lanes: Sequence[SegmentSource], frames: list[Frame | None]) -> tuple[InStep, bytes] | None:
        """The next segment, and its place, for all lanes of its extent at once, if it is small and the same for all.
        The lanes are those, and will send it with these frames."""

    @property
    def has_more(self) -> bool: ...


class Idler(Protocol):
    """A writer that may have nothing to send, and something to tell."""

    def on_turn_over(self) -> None:
        """Those who heard of its last acknowledgement have had their turn."""

    def on_idle(self) -> None:
        """The time that it asked for is over."""


class NodeSenders:
    """The senders of one client, by address. One turn of the loop serves all that have something to send."""

    def __init__(self, channels: ChannelPool, options: ClientOptions) -> None:
        self._channels = channels
        self._options = options
        self._senders: dict[str, NodeSender] = {}
        self._woken: list[Sequence[SegmentSource]] = []  # whose lanes have something to send
        self.filling: dict[NodeSender, None] = {}  # have a frame that may not be full
        self._due: dict[NodeSender, None] = {}
        self.attachments = Attachments()
        self._maybe_idle: list[Idler] = []  # had nothing to do when they said so
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        tell = methodcaller("on_idle")  # of whoever it is: `Idler.on_idle` itself does nothing
        self.when_idle: Deadlines[Idler] = Deadlines(self._loop, tell, buckets_per_s=IDLE_BUCKETS_PER_S)

    def to(self, address: str) -> NodeSender:
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = NodeSender(self, self._channels.channel(address), self._options)
        return sender

    def schedule(self, sender: NodeSender) -> None:
        self._due[sender] = None
        self._ask_for_a_turn()

    def wake(self, lanes: Sequence[SegmentSource], *, hurry: bool) -> None:
        """The lanes to all replicas of an extent have something to send. `hurry`: one append, whose caller awaits it
        and has nothing more. It need not wait for the loop's next turn, unless others are likely to append in this
        one. They are if frames are in flight, or if the last one took several appends: then a frame for all of them is
        worth more than the turn."""
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
        """Send the next segment of all these lanes to quiet nodes, the first one before the others' frames are made:
        its node wakes up meanwhile. False: nothing was sent, they have more, or not the same, or must wait."""
        if not lanes or len(lanes) > self._options.frames_in_flight_max:  # two may have one sender
            return False
        for lane in lanes:
            if not lane.ready:
                return False
        frames = [Frame(lane.sender, self._options) for lane in lanes]
        self._scheduled = True  # what is woken by this, because it failed at once, has its turn later
        try:
            segment = lanes[0].take_for_all(lanes, [*frames])
            if segment is None:
                return False
            part, place = segment
            (batch,) = part.taken.batches
            blocks = len(batch.block_sizes)
            for lane, frame in zip(lanes, frames, strict=True):
                frame.add_in_step(part, join_segment(lane.template, place), batch, blocks)
                lane.sender.send(frame)
        except Exception as failure:  # noqa: BLE001 - its writer ends by it, and the others go on
            lanes[0].broken(failure)
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
        """Lanes that have waited come first, then those that were woken; what does not fill a frame leaves at last."""
        self._scheduled = True  # what is woken by this has its turn below
        try:
            if self._due:
                self._pump()
            woken, self._woken = self._woken, []
            for lanes in woken:
                try:
                    if not self._take_together(lanes):
                        for lane in lanes:
                            lane.wake()
                except Exception as failure:  # noqa: BLE001 - its writer ends by it, and the others go on
                    lanes[0].broken(failure)
            if self._due:
                self._pump()
        finally:
            self._scheduled = False
            if self._due or self._woken:  # by what failed at once, when those who are woken had had their turn
                self._ask_for_a_turn()
        self._send_filled()

    def _pump(self) -> None:
        due, self._due = list(self._due), {}
        while due:  # a frame for each in turn: all nodes begin with the first streams while the others' are framed
            due = [sender for sender in due if sender.pump()]

    def _take_together(self, lanes: Sequence[SegmentSource]) -> bool:
        """Put the next segment of all these lanes into their nodes' frames. False: one of them has something else to
        send, or must wait for its turn, so that each has to be asked by itself."""
        frames: list[Frame] = []
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
            if frame.add_in_step(part, join_segment(lane.template, place), batch, blocks):
                is_full = True
        if is_full:  # not before all replicas have theirs: what fails at once takes lanes away
            for lane in lanes:
                lane.sender.send_if_full()
        return True

    def _send_filled(self) -> None:
        filling, self.filling = self.filling, {}
        for sender in filling:
            sender.send_filled()
        self.attachments.clear()

    def note_idle(self, idler: Idler) -> None:
        """All that it had is acknowledged. Most callers append again when they hear of it. Only those who have nothing
        to do after that need a timer: `on_turn_over` sees to it."""
        self._maybe_idle.append(idler)
        if len(self._maybe_idle) == 1:
            self._loop.call_soon(self._loop.call_soon, self._tell_idle)  # behind all who are woken in this turn

    def _tell_idle(self) -> None:
        idlers, self._maybe_idle = self._maybe_idle, []
        for idler in idlers:
            idler.on_turn_over()

    def close(self) -> None:
        self._maybe_idle.clear()
        self.when_idle.close()
        for sender in self._senders.values():
            sender.close()


class NodeSender:
    """Frames to one node."""

    def __init__(self, senders: NodeSenders, channel: Channel, options: ClientOptions) -> None:
        self._senders = senders
        self._channel = channel
        self._options = options
        self.ready_lanes: dict[SegmentSource, None] = {}  # lanes with something to send, in turn
        self._frames: dict[Frame, None] = {}  # in flight
        self.filling: Frame | None = None  # not sent yet: there may be more for it in this turn
        self._last_blocks = 0  # of the frame that was sent last

    @property
    def is_quiet(self) -> bool:
        """One append at a time: none is in flight, the last frame had but one, and nobody has anything to send."""
        return not self._frames and self._last_blocks <= 1 and not self.ready_lanes

    @property
    def is_at_most(self) -> bool:
        """No more frames may be in flight."""
        return len(self._frames) >= self._options.frames_in_flight_max

    def wake(self, lane: SegmentSource) -> None:
        """The lane has something to send."""
        self.ready_lanes[lane] = None
        if not self.is_at_most:
            self._senders.schedule(self)

    def forget(self, lane: SegmentSource) -> None:
        """The lane has nothing to send any more. Its segments in flight are still answered."""
        self.ready_lanes.pop(lane, None)

    def pump(self) -> bool:
        """Fill a frame, if there is something to send and room for it, and send it if it is full: whether there may be
        more."""
        if not self.ready_lanes or (self.filling is None and self.is_at_most):
            return False
        frame = self.filling or self.begin_frame()
        self._fill(frame)
        if not frame.parts:
            return False
        if self.ready_lanes or frame.is_full:
            self.send_filled()
        return bool(self.ready_lanes)

    def frame_to_join(self) -> Frame | None:
        """Where a lane may put its segment now. None: lanes have to wait for their turn."""
        if self.ready_lanes:
            return None
        return self.filling or (None if self.is_at_most else self.begin_frame())

    def begin_frame(self) -> Frame:
        """For what there is to send in this turn."""
        self._senders.filling[self] = None
        self.filling = frame = Frame(self, self._options)
        return frame

    def send_if_full(self) -> None:
        if self.filling is not None and self.filling.is_full:
            self.send_filled()

    def send_filled(self) -> None:
        frame, self.filling = self.filling, None
        if frame is not None and frame.parts:
            self.send(frame)

    def send(self, frame: Frame) -> None:
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

    def _fill(self, frame: Frame) -> None:
        """Add what lanes have, until it is large enough."""
        ready = self.ready_lanes
        while ready and not frame.is_full:
            lane = next(iter(ready))
            try:
                more = lane.take(frame, frame.bytes_max - frame.size_bytes)
            except Exception as failure:  # noqa: BLE001 - its writer ends by it, and the others go on
                del ready[lane]
                lane.broken(failure)
                continue
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
        if self.ready_lanes:
            self._senders.schedule(self)
