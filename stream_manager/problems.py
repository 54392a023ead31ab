"""What holds single extents up, in words, and when to try again: for drains, for `neve status`, and against storms.

Invariants: bounded: the oldest goes when there are too many, and comes back if it still is one;
            a problem is told once in the log for each new text, however often it is met.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from neve.stream_manager.core_recovery import retry_delay_s

log = logging.getLogger(__name__)

PROBLEMS_MAX = 10_000


@dataclass(slots=True)
class Problem:
    text: str
    times: int
    retry_s: float


class Problems:
    def __init__(self, *, retry_delay_s: float, retry_delay_s_max: float) -> None:
        self._first_s = retry_delay_s
        self._max_s = retry_delay_s_max
        self._problems: dict[int, Problem] = {}  # by extent id

    def note(self, extent_id: int, text: str, now_s: float) -> None:
        """It did not work: not again before a while, which doubles each time."""
        before = self._problems.pop(extent_id, None)
        times = before.times + 1 if before is not None else 0
        delay_s = retry_delay_s(times, first_s=self._first_s, max_s=self._max_s)
        if len(self._problems) >= PROBLEMS_MAX:
            del self._problems[next(iter(self._problems))]
        self._problems[extent_id] = Problem(text, times, now_s + delay_s)
        if before is None or before.text != text:
            log.warning("extent_held_up extent_id=%d problem=%s", extent_id, text)

    def due(self, extent_id: int, now_s: float) -> bool:
        """Whether to try (again)."""
        problem = self._problems.get(extent_id)
        return problem is None or now_s >= problem.retry_s

    def overdue(self, now_s: float) -> list[int]:
        """Extents whose time to try again has come; nobody may have had to."""
        return [extent_id for extent_id, problem in self._problems.items() if now_s >= problem.retry_s]

    def solved(self, extent_id: int) -> None:
        self._problems.pop(extent_id, None)

    def text(self, extent_id: int) -> str:
        problem = self._problems.get(extent_id)
        return problem.text if problem is not None else ""
