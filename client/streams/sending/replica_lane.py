"""One writer's way to one replica of its tail: makes segments of what the core gives, and tells what became of them.

Invariants: a lane belongs to one extent: when that is being sealed the lane is closed, and late answers say nothing;
            a replica that failed is asked again after a pause that grows, so often as the core allows;
            what readers may see (`committed`) goes with every segment, and alone when there is none.
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
from neve.client.streams.sending.append_frame import Frame, InStep, Sent
from neve.client.streams.sending.node_sender import NodeSender, SegmentSource
from neve.client.streams.sending.segment_codec import PlaceEncoder, encode_committed, encode_place, join_segment
from neve.proto import errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

TELL_ATTEMPTS_MAX = 3


class LaneOwner(Protocol):
    """What a lane tells its writer."""

    def on_acknowledged(self, batches: list[Batch]) -> None: ...

    def on_trouble(self, lane: Lane, verdict: Verdict, error: NeveError) -> None:
        """REPLACE, SEALED or STOP."""

    def on_told(self) -> None:
        """A replica knows how far readers may go."""


class Lane:
    """`template` has all of a segment but its place, which `places` encodes for all lanes of the extent. They share
    `in_step`, too: what they have sent in step, and not every replica has answered for."""

    __slots__ = (
        "_closed",
        "_core",
        "_in_step",
        "_options",
        "_owner",
        "_pause",
        "_places",
        "_rng",
        "_tell",
        "_tell_attempts",
        "node_id",
        "ready",
        "replica",
        "resends",
        "sender",
        "template",
        "told",
    )

    def __init__(
        self,
        owner: LaneOwner,
        core: WriterCore,
        sender: NodeSender,
        template: pb.Segment,
        places: PlaceEncoder,
        in_step: list[InStep],
        *,
        replica: int,
        told: int,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self._owner = owner
        self._core = core
        self.sender = sender
        self.template = template.SerializeToString()
        self._places = places
        self._in_step = in_step
        self._options = options
        self._rng = rng
        self.replica = replica  # its number among the tail's
        self.node_id = template.replica.node_id
        self.told = told  # the highest `committed` that the replica has certainly heard
        self.resends = 0
        self._tell = False
        self._tell_attempts = 0
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self.ready = True  # neither closed nor in a pause

    def wake(self) -> None:
        """There is something to send."""
        if self.ready:
            self.sender.wake(self)

    def tell(self) -> None:
        """Tell `committed`, alone if need be."""
        if self.told < self._core.committed and not self._closed:
            self._tell = True
            self.wake()

    def tell_again(self) -> None:
        """The same, though the replica has heard it: it may have forgotten, by a restart."""
        self.told = self._tell_attempts = 0
        self.tell()

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
        return self.ready and (self._tell or self._core.has_more(self.replica))

    def take_for_all(self, lanes: Sequence[SegmentSource], frames: list[Frame | None]) -> tuple[InStep, bytes] | None:
        core = self._core
        taken = core.take_for_all()
        if taken is None:
            return None
        part = InStep(lanes, frames, taken)
        self._in_step.append(part)
        return part, encode_place(taken.offset, core.committed, taken.batches[0].block_sizes)

    def take(self, frame: Frame, bytes_max: int) -> bool | None:
        if not self.ready:
            return None
        core = self._core
        taken = core.take(self.replica, bytes_max, at_least_one=not frame.parts)
        if taken is not None:
            self._tell = False
            batches = taken.batches
            frame.add(self, taken, join_segment(self.template, self._places.encode(batches, core.committed)), batches)
            return taken.more
        if core.full and core.is_drained:
            # Not from here: the sender is in the middle of a frame, and a roll takes lanes from it.
            asyncio.get_running_loop().call_soon(self._owner.on_acknowledged, [])
        if not self._tell or core.has_more(self.replica):
            return None
        self._tell = False
        frame.add(self, core.committed, join_segment(self.template, encode_committed(core.committed)), ())
        return False

    # --- answers ---------------------------------------------------------------------------------------------

    def has(self, taken: Sent) -> None:
        if self._closed:
            return
        if isinstance(taken, int):
            self._tell_attempts = 0
            self.told = max(self.told, taken)
            self._owner.on_told()
            return
        core = self._core
        acknowledged = core.on_answer(self.replica, taken)
        if acknowledged or core.full:
            self._owner.on_acknowledged(acknowledged)

    def all_have(self, part: InStep) -> None:
        if self._closed:  # as all lanes of the extent are then
            return
        self._in_step.remove(part)
        core = self._core
        acknowledged = core.on_all_answered(part.taken)
        if acknowledged or core.full:
            self._owner.on_acknowledged(acknowledged)

    def fall_apart(self) -> None:
        parts = self._in_step.copy()
        self._in_step.clear()
        for part in parts:
            part.fall_apart()

    def answered(self, taken: Sent, result: pb.SegmentResult) -> None:
        if self._closed:
            return
        if result.HasField("error"):
            error = errors.from_message(result.error)
            self._on_failure(taken, error, length=result.length if result.HasField("length") else None)
        elif not isinstance(taken, int) and result.end != taken.end:
            detail = f"it answered {result.end} for a segment that ends at {taken.end}"
            self._on_failure(taken, errors.Internal(detail=detail), length=result.length)
        else:
            self.has(taken)

    def failed(self, taken: Sent, error: NeveError) -> None:
        if not self._closed:
            self._on_failure(taken, error, length=None)

    def broken(self, failure: Exception) -> None:
        log.error("lane_broken node_id=%d", self.node_id, exc_info=failure)
        if not self._closed:
            error = errors.Internal(detail=f"{type(failure).__name__}: {failure}")
            self._owner.on_trouble(self, Verdict.STOP, error)

    def _on_failure(self, taken: Sent, error: NeveError, *, length: int | None) -> None:
        if isinstance(taken, int):
            # Nothing is lost: readers see less for a while. What is wrong with the replica, the next append finds out.
            self._tell_attempts += 1
            if self._tell_attempts < TELL_ATTEMPTS_MAX:
                self._tell = True
                self._pause_for(self._tell_attempts)
            else:
                self._owner.on_told()
            return
        if self._in_step:
            self.fall_apart()  # the core judges by what each replica has answered for,
            if self._closed:  # which may have been the last that was missing: the writer has moved on, or is over
                return
        verdict = self._core.on_failure(self.replica, taken, error, length=length)
        if verdict is Verdict.RESEND:
            self.resends += 1
            self.wake()
        elif verdict is Verdict.RETRY:
            self.resends += 1
            self._pause_for(self._core.failures(self.replica))
        elif verdict is not Verdict.NONE:
            self._owner.on_trouble(self, verdict, error)

    def _pause_for(self, failures: int) -> None:
        if self._pause is not None:
            return
        delay_s = self._options.append_retry_delay_s * 2 ** (failures - 1) * self._rng.uniform(0.5, 1.0)
        self.ready = False
        self.sender.forget(self)
        self._pause = asyncio.get_running_loop().call_later(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self.ready = True
        self.wake()
