"""One direction of a simulated TCP connection: bytes arrive late, in order, or not at all.

Invariants: bytes arrive in the order in which they were sent; what follows a lost segment never arrives;
            nothing arrives through a partition or at a frozen host; it waits there, and arrives in order afterwards;
            every delay and loss is drawn from the network's rng, in the order of sending;
            nothing arrives from inside of a call of the sender: the loop delivers it.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from neve.rpc.service import Buffer
from neve.rpc.wire.frame import Kind
from tests.sim.network.frames import Frame, FrameDecoder
from tests.sim.network.link import DELAY_S_MAX, Link

# Timers of a loop may run this much early.
_CLOCK_RESOLUTION_S = 1e-6

# Of no process: the network itself.
NOBODY = contextvars.Context()


class Mark(Enum):
    """What TCP sends besides bytes."""

    CONNECT = "connect"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    END = "end"  # the sender has closed the connection
    RESET = "reset"  # the connection is broken


Segment = Buffer | Mark

# Called for each frame, "send" or "deliver", with its pipe. A watcher only looks on: what it changes it changes later.
Watcher = Callable[[str, "Pipe", Frame], None]


class Conditions(Protocol):
    """What a pipe asks of its network."""

    rng: random.Random
    watcher: Watcher | None
    ragged: bool

    def link(self, source: str, target: str) -> Link: ...

    def is_paused(self, host: str) -> bool: ...

    def is_frozen(self, host: str) -> bool: ...

    def note(self, line: str) -> None: ...


@dataclass(slots=True)
class _InFlight:
    segment: Segment
    due_s: float | None  # None: its host was paused before it left


class Pipe:
    """Segments from `source` to `target`, first in, first out. `receive` gets those that have arrived together."""

    def __init__(
        self,
        conditions: Conditions,
        name: str,
        *,
        source: str,
        target: str,
        receive: Callable[[list[Segment]], None],
        decoder: FrameDecoder,
    ) -> None:
        self.source = source
        self.target = target
        self.name = name  # of its connection
        self.lost = False  # a segment was lost: the rest is stuck behind it
        self.unread_bytes = 0  # sent, and not read by the process at the other end
        self.on_room: Callable[[], None] = lambda: None  # called when there is less that is not read
        self._context = NOBODY  # of the receiving process, once there is one
        self._conditions = conditions
        self._receive = receive
        self._decoder = decoder
        self._frames: deque[tuple[int, Frame]] = deque()  # written and not read, each with the offset of its end
        self._offset = 0  # of the first byte that is not read
        self._queue: deque[_InFlight] = deque()
        self._last_due_s = 0.0
        self._shut = False
        self._timer: asyncio.TimerHandle | None = None

    # --- the sender's end ------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """The sending process has handed these bytes to its transport; `send` carries them, now or later."""
        if self._shut:
            return
        meant = False
        for end, frame in self._decoder.feed(data):
            self._frames.append((end, frame))
            self._note("send", frame)
            meant |= frame.kind != Kind.BEAT
        if meant and self._link().blocked:
            self._link().on_blocked()

    def send(self, segment: Segment, *, extra_s: float = 0.0) -> None:
        if self._shut:
            return
        if not isinstance(segment, Mark):
            self.unread_bytes += len(segment)
        may_be_lost = not isinstance(segment, Mark) or segment is Mark.CONNECT
        if self.lost:
            return
        if may_be_lost and self._link().draw_loss(self._conditions.rng):
            self.lost = True
            self._conditions.note(f"lose {self.name} {self.source}>{self.target}")
            if isinstance(segment, Mark) or not self._conditions.ragged:
                return
            segment = memoryview(segment)[: self._conditions.rng.randrange(len(segment))]
            if not segment:
                return
        if self._conditions.is_paused(self.source):
            self._queue.append(_InFlight(segment, None))
        else:
            earliest_s = asyncio.get_running_loop().time() + extra_s
            self._queue.append(_InFlight(segment, self._draw_due_s(segment, earliest_s=earliest_s)))
        self._wait()

    def depart(self) -> None:
        """The sending host runs again: what it had wanted to send leaves now."""
        now_s = asyncio.get_running_loop().time()
        for item in self._queue:
            if item.due_s is None:
                item.due_s = self._draw_due_s(item.segment, earliest_s=now_s)
        self._wait()

    # --- the receiver's end ----------------------------------------------------------------------------------

    def read(self, count: int) -> None:
        """The receiving process is about to read so many bytes."""
        self.unread_bytes -= count
        self._offset += count
        frames = self._frames
        while frames and frames[0][0] <= self._offset:
            frame = frames.popleft()[1]
            self._decoder.delivered(frame)
            self._note("deliver", frame)
        self.on_room()

    def deliver_in(self, context: contextvars.Context) -> None:
        """There is a receiving process now."""
        self._context = context
        self._cancel_timer()
        self._wait()

    def shut(self) -> None:
        """Nobody receives any more."""
        self._queue.clear()
        self._frames.clear()
        self._shut = True
        self._cancel_timer()

    # --- on the way ------------------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        return not self._queue

    def catch_up(self) -> None:
        """A partition has healed, or the receiving host runs again: what has waited arrives, bit by bit."""
        self._spread(asyncio.get_running_loop().time())
        self._cancel_timer()
        self._wait()

    def cut(self, *, late_s: float) -> None:
        """Lose a random tail of what is on the way; the rest arrives, but `late_s` later than it would have."""
        departed = [item for item in self._queue if item.due_s is not None]
        self._queue = deque(departed[: self._conditions.rng.randint(0, len(departed))])
        self._spread(asyncio.get_running_loop().time() + late_s)
        self._cancel_timer()
        self._wait()

    def _wait(self) -> None:
        """Until the next segment is due."""
        if self._timer is not None or not self._queue or self._is_stalled():
            return
        due_s = self._queue[0].due_s
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._timer = None
        queue = self._queue
        arrived: list[Segment] = []
        if not self._is_stalled():
            now_s = asyncio.get_running_loop().time() + _CLOCK_RESOLUTION_S
            while queue and (due_s := queue[0].due_s) is not None and due_s <= now_s:
                arrived.append(queue.popleft().segment)
        self._wait()
        if arrived:
            self._receive(arrived)

    def _is_stalled(self) -> bool:
        return self._link().blocked or self._conditions.is_frozen(self.target)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _draw_due_s(self, segment: Segment, *, earliest_s: float) -> float:
        delay_s = self._link().draw_delay_s(self._conditions.rng, _size_bytes(segment))
        if segment is Mark.END:
            earliest_s = max(earliest_s, self._last_due_s)
        self._last_due_s = max(self._last_due_s, earliest_s + delay_s)
        return self._last_due_s

    def _spread(self, from_s: float) -> None:
        """Put drawn gaps between what would arrive at once.

        Else a request and the cancellation behind it would always arrive together, and the handler never begin. Gaps
        of a slow link add up: the last segment, too, arrives within what a network may take.
        """
        limit_s = from_s + DELAY_S_MAX
        for item in self._queue:
            if item.due_s is None:
                break
            gap_s = self._link().draw_delay_s(self._conditions.rng, _size_bytes(item.segment))
            earliest_s = max(from_s, item.due_s)
            item.due_s = from_s = max(earliest_s, min(earliest_s + gap_s, limit_s))
            self._last_due_s = max(self._last_due_s, from_s)

    def _link(self) -> Link:
        return self._conditions.link(self.source, self.target)

    def _note(self, event: str, frame: Frame) -> None:
        self._conditions.note(f"{event} {self.name} {self.source}>{self.target} {frame.fingerprint()}")
        if self._conditions.watcher is not None:
            self._conditions.watcher(event, self, frame)


def _size_bytes(segment: Segment) -> int:
    return 0 if isinstance(segment, Mark) else len(segment)
