"""The conditions between two simulated hosts: how long a segment takes, and whether it arrives."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

# Draws the seconds that a segment of so many bytes takes.
Delay = Callable[[random.Random, int], float]

# No network holds a segment for longer and then delivers it: a slow link that has healed is not slow for ever.
DELAY_S_MAX = 20.0


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
    on_chance: Callable[[], None] = lambda: None  # called for each segment that is lost by it
    drops_due: deque[Callable[[], None]] = field(default_factory=deque)  # one for each segment that is to be lost
    blocked: bool = False
    on_blocked: Callable[[], None] = lambda: None  # called for each segment that is sent while it is blocked

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
