"""A lane from one writer to one replica of its tail: makes segments of the core's batches and handles their results.

Invariants: a lane belongs to one extent. It is closed when that extent is being sealed, and then ignores late answers;
            a failed replica is tried again after growing pauses, as often as the core allows;
            `committed`, the end of what readers may see, goes with every segment, or alone when there is none.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Protocol

from neve.client.streams.core.batch import Batch
from neve.client.streams.core.writer import Verdict, WriterCore
from neve.client.streams.options import ClientOptions
from neve.client.streams.sending.append_frame import AppendFrame, Sent, SharedSegment
from neve.client.streams.sending.node_sender import NodeSender, SegmentSource
from neve.client.streams.sending.segment_codec import PlaceEncoder, encode_committed, encode_place, join_segment
from neve.proto import errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

PUBLISH_ATTEMPTS_MAX = 3


class LaneOwner(Protocol):
    """The writer's tail, as the receiver of a lane's events."""

    def on_acknowledged(self, batches: list[Batch]) -> None: ...

    def on_replica_failed(self, lane: ReplicaLane, verdict: Verdict, error: NeveError) -> None:
        """The replica needs the verdict REPLACE, SEALED or STOP."""

    def on_published(self) -> None:
        """A replica has received `committed`, or the lane has given up sending it alone."""


class ReplicaLane:
    """The way from one writer to one replica of its tail.

    `template` has the fields of a segment except its place, which `places` encodes for all lanes of the extent. All
    lanes of an extent also share the list of shared segments that not every replica has answered for.
    """

    __slots__ = (
        "_closed",
        "_core",
        "_options",
        "_owner",
        "_pause",
        "_places",
        "_publish_attempts",
        "_publish_due",
        "_rng",
        "_shared_segments",
        "node_id",
        "published",
        "ready",
        "replica",
        "resends",
        "sender",
        "template",
    )

    def __init__(
        self,
        owner: LaneOwner,
        core: WriterCore,
        sender: NodeSender,
        template: pb.Segment,
        places: PlaceEncoder,
        shared_segments: list[SharedSegment],
        *,
        replica: int,
        published: int,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self._owner = owner
        self._core = core
        self.sender = sender
        self.template = template.SerializeToString()
        self._places = places
        self._shared_segments = shared_segments
        self._options = options
        self._rng = rng
        self.replica = replica  # its index among the tail's replicas
        self.node_id = template.replica.node_id
        self.published = published  # the highest `committed` that the replica has certainly received
        self.resends = 0
        self._publish_due = False
        self._publish_attempts = 0
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self.ready = True  # neither closed nor pausing

    def wake(self) -> None:
        """There is something to send."""
        if self.ready:
            self.sender.wake(self)

    def publish_committed(self) -> None:
        """Send `committed` if the replica lacks it, in a segment of its own if necessary."""
        if self.published < self._core.committed and not self._closed:
            self._publish_due = True
            self.wake()

    def republish_committed(self) -> None:
        """Send `committed` again: a node that restarted has forgotten it."""
        self.published = self._publish_attempts = 0
        self.publish_committed()

    def close(self) -> None:
        self._closed = True
        self.ready = False
        self.sender.forget(self)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    # --- what to send ----------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        return self.ready and (self._publish_due or self._core.has_more(self.replica))

    def take_for_all(
        self, lanes: Sequence[SegmentSource], frames: list[AppendFrame | None]
    ) -> tuple[SharedSegment, bytes] | None:
        core = self._core
        taken = core.take_for_all()
        if taken is None:
            return None
        part = SharedSegment(lanes, frames, taken)
        self._shared_segments.append(part)
        return part, encode_place(taken.offset, core.committed, taken.batches[0].block_sizes)

    def take(self, frame: AppendFrame, bytes_max: int) -> bool | None:
        if not self.ready:
            return None
        core = self._core
        taken = core.take(self.replica, bytes_max, at_least_one=not frame.parts)
        if taken is not None:
            self._publish_due = False
            batches = taken.batches
            frame.add(self, taken, join_segment(self.template, self._places.encode(batches, core.committed)), batches)
            return taken.more
        if core.full and core.is_drained:
            # Not directly: the sender is in the middle of a frame, and a roll removes its lanes.
            asyncio.get_running_loop().call_soon(self._owner.on_acknowledged, [])
        if not self._publish_due or core.has_more(self.replica):
            return None
        self._publish_due = False
        frame.add(self, core.committed, join_segment(self.template, encode_committed(core.committed)), ())
        return False

    # --- answers ---------------------------------------------------------------------------------------------

    def on_taken(self, taken: Sent) -> None:
        if self._closed:
            return
        if isinstance(taken, int):
            self._publish_attempts = 0
            self.published = max(self.published, taken)
            self._owner.on_published()
            return
        core = self._core
        acknowledged = core.on_answer(self.replica, taken)
        if acknowledged or core.full:
            self._owner.on_acknowledged(acknowledged)

    def on_taken_by_all(self, part: SharedSegment) -> None:
        if self._closed:  # then all lanes of the extent are closed
            return
        self._shared_segments.remove(part)
        core = self._core
        acknowledged = core.on_all_answered(part.taken)
        if acknowledged or core.full:
            self._owner.on_acknowledged(acknowledged)

    def split_up(self) -> None:
        parts = self._shared_segments.copy()
        self._shared_segments.clear()
        for part in parts:
            part.split_up()

    def on_result(self, taken: Sent, result: pb.SegmentResult) -> None:
        if self._closed:
            return
        if result.HasField("error"):
            error = errors.from_message(result.error)
            self._on_failure(taken, error, length=result.length if result.HasField("length") else None)
        elif not isinstance(taken, int) and result.end != taken.end:
            detail = f"the node answered {result.end} for a segment that ends at {taken.end}"
            self._on_failure(taken, errors.Internal(detail=detail), length=result.length)
        else:
            self.on_taken(taken)

    def on_failed(self, taken: Sent, error: NeveError) -> None:
        if not self._closed:
            self._on_failure(taken, error, length=None)

    def on_bug(self, failure: Exception) -> None:
        log.error("lane_broken node_id=%d", self.node_id, exc_info=failure)
        if not self._closed:
            error = errors.Internal(detail=f"{type(failure).__name__}: {failure}")
            self._owner.on_replica_failed(self, Verdict.STOP, error)

    def _on_failure(self, taken: Sent, error: NeveError, *, length: int | None) -> None:
        if isinstance(taken, int):
            # Nothing is lost, readers only see less for a while. The next append detects a replica that has failed.
            self._publish_attempts += 1
            if self._publish_attempts < PUBLISH_ATTEMPTS_MAX:
                self._publish_due = True
                self._pause_after(self._publish_attempts)
            else:
                self._owner.on_published()
            return
        if self._shared_segments:
            self.split_up()  # the core must know what each replica has answered for,
            if self._closed:  # which may complete an acknowledgement that rolls or ends the writer
                return
        verdict = self._core.on_failure(self.replica, taken, error, length=length)
        if verdict is Verdict.RESEND:
            self.resends += 1
            self.wake()
        elif verdict is Verdict.RETRY:
            self.resends += 1
            self._pause_after(self._core.failures(self.replica))
        elif verdict is not Verdict.NONE:
            self._owner.on_replica_failed(self, verdict, error)

    def _pause_after(self, failures: int) -> None:
        if self._pause is not None:
            return
        delay_s = self._options.append_retry_delay_s * 2 ** (failures - 1) * self._rng.uniform(0.5, 1.0)
        self.ready = False
        self.sender.forget(self)
        self._pause = asyncio.get_running_loop().call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self.ready = True
        self.wake()
