"""Whose bits were taken back, so that no answer to an order sent before sets them again (rule 20). No I/O, no clock.

Events are numbered: whoever sends an order remembers the number of the last one, and asks when the answer has come.

Invariants: bounded: the oldest are forgotten, and an order as old as one of those is not believed about anybody. It is
            sent again: a refusal costs one round, a wrong bit sends readers to a replica that is known to be bad.
"""

from __future__ import annotations

EVENTS_MAX = 10_000  # far above what is condemned while one order is on its way


class Condemned:
    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self.number = 0  # of the last event
        self._events_max = events_max
        self._forgotten = 0  # the last event that is not remembered any more
        self._numbers: dict[tuple[int, int], int] = {}  # (extent, node) → its last event, the oldest first

    def note(self, extent_id: int, node_id: int) -> None:
        self.number += 1
        self._numbers.pop((extent_id, node_id), None)
        self._numbers[extent_id, node_id] = self.number
        if len(self._numbers) > self._events_max:
            self._forgotten = self._numbers.pop(next(iter(self._numbers)))

    def since(self, number: int, extent_id: int, node_id: int) -> bool:
        """Whether its bit was, or may have been, taken back after the event `number`."""
        return number < max(self._forgotten, self._numbers.get((extent_id, node_id), 0))
