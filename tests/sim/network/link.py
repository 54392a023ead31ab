"""One direction of a simulated TCP connection: bytes arrive late, in order, or not at all.

Invariants: frames of a pipe arrive in the order in which they were sent; what follows a lost frame never arrives;
            nothing arrives through a partition or at a paused host; it waits there, and arrives in order afterwards;
            every delay and loss is drawn from the network's rng, in the order of sending.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.sim.network.frame import Frame, Kind

# Draws the seconds that a frame of so many bytes takes.
Delay = Callable[[random.Random, int], float]

# No network holds a frame for longer and then delivers it: a slow link to a far host is not slow for ever once healed.
DELAY_S_MAX = 20.0

# Timers of a loop may run this much early.
_CLOCK_RESOLUTION_S = 1e-6


def exponential_delay(*, min_s: float, mean_s: float, bytes_per_s: float = 1e9) -> Delay:
    """A fixed part, an exponential tail, and the time that the bytes take: a network at moderate load."""

    def draw(rng: random.Random, size_bytes: int) -> float:
        return min_s + rng.expovariate(1 / mean_s) + size_bytes / bytes_per_s

    return draw


def fixed_delay(delay_s: float) -> Delay:
    return lambda _rng, _size_bytes: delay_s


@dataclass(slots=True)
class Link:
    """The conditions from one host to another, one way. Changing them affects what is sent from then on."""

    delay: Delay
    slow_factor: float = 1.0
    drop_probability: float = 0.0
    on_chance: Callable[[], None] = lambda: None  # told of a frame that is lost by it
    drops_due: deque[Callable[[], None]] = field(default_factory=deque)  # frames lost for certain from now on, and told
    blocked: bool = False
    on_blocked: Callable[[], None] = lambda: None  # told of each frame that finds it blocked

    def draw_delay_s(self, rng: random.Random, size_bytes: int) -> float:
        return min(self.delay(rng, size_bytes) * self.slow_factor, DELAY_S_MAX)

    def draw_loss(self, rng: random.Random) -> bool:
        if self.drops_due:
            self.drops_due.popleft()()
            return True
        # No draw at 0, so that a story without losses does not change when losses are added to the code.
        if self.drop_probability > 0 and rng.random() < self.drop_probability:
            self.on_chance()
            return True
        return False


# Told of each frame: "send", "drop" or "deliver", and on which pipe. It looks on: what it changes it changes later.
Watcher = Callable[[str, "Pipe", Frame], None]


class Conditions(Protocol):
    """What a pipe asks of its network."""

    rng: random.Random
    watcher: Watcher | None

    def link(self, source: str, target: str) -> Link: ...

    def is_paused(self, host: str) -> bool: ...

    def note(self, line: str) -> None: ...


@dataclass(slots=True)
class _InFlight:
    frame: Frame
    due_s: float | None  # None: its host was paused before it left


class Pipe:
    """Frames from `source` to `target`, first in, first out."""

    def __init__(
        self, conditions: Conditions, name: str, *, source: str, target: str, deliver: Callable[[Frame], None]
    ) -> None:
        self.source = source
        self.target = target
        self.lost = False  # a frame was lost: the rest is stuck behind it
        self._conditions = conditions
        self.name = name  # of its connection
        self._deliver = deliver
        self._queue: deque[_InFlight] = deque()
        self._last_due_s = 0.0
        self._shut = False
        self._timer: asyncio.TimerHandle | None = None

    def send(self, frame: Frame, *, extra_s: float = 0.0) -> None:
        if self._shut:
            return
        self._note("send", frame)
        if self._link().blocked:
            self._link().on_blocked()
        if frame.kind is not Kind.END and not self.lost and self._link().draw_loss(self._conditions.rng):
            self.lost = True
        if self.lost:
            self._note("drop", frame)
            return
        paused = self._conditions.is_paused(self.source)
        if paused:
            self._queue.append(_InFlight(frame, None))
        else:
            now_s = asyncio.get_running_loop().time()
            self._queue.append(_InFlight(frame, self._draw_due_s(frame, earliest_s=now_s + extra_s)))
        self.pump()

    def pump(self) -> None:
        """Deliver what is due; called again by a timer, or by whoever removes what is in the way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue and not self.is_stalled():
            head = self._queue[0]
            if head.due_s is None:
                return
            if head.due_s > loop.time() + _CLOCK_RESOLUTION_S:
                self._timer = loop.call_at(head.due_s, self.pump)
                return
            self._queue.popleft()
            self._note("deliver", head.frame)
            self._deliver(head.frame)

    def is_stalled(self) -> bool:
        return self._link().blocked or self._conditions.is_paused(self.target)

    def is_empty(self) -> bool:
        return not self._queue

    def depart(self) -> None:
        """The sending host runs again: what it had wanted to send leaves now."""
        now_s = asyncio.get_running_loop().time()
        for item in self._queue:
            if item.due_s is None:
                item.due_s = self._draw_due_s(item.frame, earliest_s=now_s)
        self.pump()

    def catch_up(self) -> None:
        """A partition has healed, or the receiving host runs again: what has waited arrives, bit by bit."""
        self._spread(asyncio.get_running_loop().time())
        self.pump()

    def cut(self, *, late_s: float) -> None:
        """Lose a random tail of what is on the way; the rest arrives, but `late_s` later than it would have."""
        departed = [item for item in self._queue if item.due_s is not None]
        kept = departed[: self._conditions.rng.randint(0, len(departed))]
        for item in [*self._queue][len(kept) :]:
            self._note("drop", item.frame)
        self._queue = deque(kept)
        self._spread(asyncio.get_running_loop().time() + late_s)
        self.pump()

    def shut(self) -> None:
        """Nobody receives any more."""
        for item in self._queue:
            self._note("drop", item.frame)
        self._queue.clear()
        self._shut = True
        self.pump()

    def _draw_due_s(self, frame: Frame, *, earliest_s: float) -> float:
        delay_s = self._link().draw_delay_s(self._conditions.rng, frame.size_bytes())
        if frame.kind is Kind.END:
            earliest_s = max(earliest_s, self._last_due_s)
        self._last_due_s = max(self._last_due_s, earliest_s + delay_s)
        return self._last_due_s

    def _spread(self, from_s: float) -> None:
        """Put drawn gaps between what would arrive at once.

        Else a request and the cancellation behind it would always arrive together, and the handler never begin. Gaps
        of a slow link add up: the last frame, too, arrives within what a network may take.
        """
        limit_s = from_s + DELAY_S_MAX
        for item in self._queue:
            if item.due_s is None:
                break
            gap_s = self._link().draw_delay_s(self._conditions.rng, item.frame.size_bytes())
            earliest_s = max(from_s, item.due_s)
            item.due_s = from_s = max(earliest_s, min(earliest_s + gap_s, limit_s))
            self._last_due_s = max(self._last_due_s, from_s)

    def _link(self) -> Link:
        return self._conditions.link(self.source, self.target)

    def _note(self, event: str, frame: Frame) -> None:
        self._conditions.note(f"{event} {self.name} {self.source}>{self.target} {frame.fingerprint()}")
        if self._conditions.watcher is not None:
            self._conditions.watcher(event, self, frame)
