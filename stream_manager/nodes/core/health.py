"""A node's health by the age of its last heartbeat: alive, suspect or dead. No I/O, no clock.

            silent for suspect_after_s          silent for dead_after_s
    ALIVE ────────────────────────────→ SUSPECT ───────────────────────→ DEAD
      ↑                                  ↑    │                            │
      └── heartbeats without a gap ──────┘    └──── any heartbeat ←────────┘
          for stabilise_s

Invariants: no node is dead because the manager is new: silence counts from the end of the grace after its election;
            a node that an earlier leader declared dead stays dead until a heartbeat arrives;
            a flapping node stays suspect: it is alive again only after stabilise_s without a gap;
            a node's time of death stands until it is stored as alive, and the node gets the time to become steady only
            once: occasional heartbeats do not postpone recovery for ever (scenario T43);
            a node in maintenance is at most suspect until the time that its operator named.

Times are seconds of one monotonic clock, which the caller passes in.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

NEVER_S = float("-inf")
STEADY_BEATS = 3  # between having been steady for long enough and being stored as alive


class Health(enum.Enum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    heartbeat_s: float = 1.0  # the interval that nodes get from the manager
    suspect_after_s: float = 5.0  # a few heartbeats may be lost
    dead_after_s: float = 30.0  # longer than a process needs to restart; recovery adds a delay of its own
    stabilise_s: float = 10.0
    leader_grace_s: float = 15.0  # longer than the longest pause between two tries of a node that has lost its manager

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.suspect_after_s < self.dead_after_s:
            raise ValueError("0 < heartbeat_s < suspect_after_s < dead_after_s must hold")
        if self.stabilise_s < 0 or self.leader_grace_s < 0:
            raise ValueError("stabilise_s and leader_grace_s must not be negative")


class NodeHealth:
    """What one term of a manager knows of one node's heartbeats."""

    __slots__ = ("_back_s", "_config", "_died_s", "_last_beat_s", "_since_s", "_state", "_steady_since_s")

    def __init__(self, config: HealthConfig, *, since_s: float, was_dead: bool = False) -> None:
        """`since_s`: when the term began, or a new node registered. `was_dead`: an earlier leader declared it dead."""
        self._config = config
        self._since_s = since_s
        self._last_beat_s = NEVER_S
        self._died_s: float | None = self._silent_since_s() if was_dead else None
        self._back_s: float | None = None  # the first heartbeat after the death
        self._steady_since_s = NEVER_S
        # Without a heartbeat in this term a node is used only if no better one is there, and is no reason for
        # recovery.
        self._state = Health.DEAD if was_dead else Health.SUSPECT

    @property
    def heard(self) -> bool:
        """Whether a heartbeat has arrived in this term."""
        return self._last_beat_s != NEVER_S

    def beat(self, now_s: float) -> None:
        """Note a heartbeat. The first of a term makes the node alive at once; after trouble that takes a while."""
        before = self.judge(now_s)
        if not self.heard and before is not Health.DEAD:
            self._state = Health.ALIVE
        elif before is Health.DEAD or (
            before is Health.SUSPECT and now_s - self._last_beat_s > self._config.suspect_after_s
        ):
            self._state = Health.SUSPECT
            self._steady_since_s = now_s
        self._last_beat_s = max(self._last_beat_s, now_s)
        if self._died_s is not None and self._back_s is None:
            self._back_s = now_s
        if self._state is Health.SUSPECT and now_s - self._steady_since_s >= self._config.stabilise_s:
            self._state = Health.ALIVE

    def judge(self, now_s: float, *, maintenance_until_s: float = NEVER_S) -> Health:
        """The state at `now_s`. The passing of time only makes it worse; only heartbeats make it better."""
        gap_s = self._gap_s(now_s)
        if gap_s > self._config.dead_after_s:
            self._state = Health.DEAD
            if self._died_s is None:
                self._died_s = self._dies_s()
        elif gap_s > self._config.suspect_after_s and self._state is Health.ALIVE:
            self._state = Health.SUSPECT
        if self._state is Health.DEAD and now_s < maintenance_until_s:
            return Health.SUSPECT
        return self._state

    def age_s(self, now_s: float) -> float:
        """Seconds since the last heartbeat; since this term began if there was none."""
        return max(0.0, now_s - max(self._last_beat_s, self._since_s))

    def dead_since_s(self) -> float:
        """When the node died, for the first time since it was last stored as alive.

        For a node that was dead before this term, that is counted from the end of the grace. For a live node it is
        when it will be dead if it stays silent.
        """
        return self._died_s if self._died_s is not None else self._dies_s()

    def stored_alive(self) -> None:
        """Note that the node is stored as alive: a later death gets a time of its own."""
        self._died_s = self._back_s = None

    def give_up_s(self, now_s: float, *, delay_s: float) -> float:
        """When recovery from its death is due: after the delay.

        A node that is back gets the time to become steady first.
        """
        due_s = self.dead_since_s() + delay_s
        if self._back_s is None or self.judge(now_s) is Health.DEAD:
            return due_s
        return max(due_s, self._back_s + self._config.stabilise_s + STEADY_BEATS * self._config.heartbeat_s)

    def _dies_s(self) -> float:
        return self._silent_since_s() + self._config.dead_after_s

    def _silent_since_s(self) -> float:
        return max(self._last_beat_s, self._since_s + self._config.leader_grace_s)

    def _gap_s(self, now_s: float) -> float:
        return now_s - self._silent_since_s()
