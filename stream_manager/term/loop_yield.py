"""Work over very many records, in slices: the loop, and with it the lease, gets its turn between them.

Invariants: a slice takes `SLICE_S`, or `STEPS_MAX` steps where time stands still (in the simulator), whichever is less;
            what is iterated may change meanwhile: whoever works in slices goes over a copy of the ids.
Note:       `tests.bench.metadata_scan` measures how long the loop is held up.
"""

from __future__ import annotations

import asyncio

SLICE_S = 0.005
STEPS_MAX = 2_000
STEPS_MIN = 50  # between two looks at the clock


class Slices:
    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until_s = self._clock() + SLICE_S
        self._steps = 0

    def over(self) -> bool:
        """Called at every step: whether it is time to `rest`."""
        self._steps += 1
        if self._steps % STEPS_MIN:
            return False
        return self._steps >= STEPS_MAX or self._clock() >= self._until_s

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._steps = 0
        self._until_s = self._clock() + SLICE_S
