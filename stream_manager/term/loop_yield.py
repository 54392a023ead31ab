"""Yielding to the event loop during work over very many records, so that calls and the lease are served in between.

Invariants: work runs for at most `SLICE_S` between two yields, or for `STEPS_MAX` steps if time stands still, as in the
            simulator;
            records may change during a yield, so the work iterates over a copy of the ids.
Note:       `tests.bench.metadata_scan` measures for how long the loop is blocked.
"""

from __future__ import annotations

import asyncio

SLICE_S = 0.005
STEPS_MAX = 2_000
STEPS_MIN = 50  # between two reads of the clock


class LoopYield:
    """Says when work must yield to the event loop, and yields."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until_s = self._clock() + SLICE_S
        self._steps = 0

    def is_due(self) -> bool:
        """Count a step, and say whether it is time to `pause`."""
        self._steps += 1
        if self._steps % STEPS_MIN:
            return False
        return self._steps >= STEPS_MAX or self._clock() >= self._until_s

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._steps = 0
        self._until_s = self._clock() + SLICE_S
