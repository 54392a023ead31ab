"""Control of Python's cyclic garbage collector, so that it never blocks the loop for long.

Memtables have a hundred thousand entries or more, all alive and none in a cycle, and traversing all of them takes a
tenth of a second or more. Young objects are collected often, some thousand at a time, in about a millisecond. Old ones
are collected when memtables are small, and otherwise rarely: old cycles that die are rare here (a closed connection, a
partition that was given up).

Invariants: only `Collections` collects old objects, at least once every LATEST_S.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time

from neve.partition_server.engine.memory import MemoryBudget
from neve.rpc.limits import MIB

log = logging.getLogger(__name__)

# Objects made and not freed before the young are looked at; every so many times together with those that survived one
# look; the old never by themselves.
THRESHOLDS = (2_000, 3, 1_000_000_000)

LOOK_S = 60.0
SOON_S = 600.0  # between two collections, if memtables are small then
LATEST_S = 7200.0
SMALL_BYTES = 4 * MIB  # in memtables: some thousand entries


def tune() -> None:
    gc.set_threshold(*THRESHOLDS)


class Collections:
    """Runs the collections of old objects in a process."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.is_due(self._loop.time()):
                self.collect()

    def is_due(self, now_s: float) -> bool:
        waited_s = now_s - self._last_s
        return waited_s >= LATEST_S or (waited_s >= SOON_S and self._memory.used_bytes <= SMALL_BYTES)

    def collect(self) -> None:
        self._last_s = self._loop.time()
        begun_s = time.perf_counter()
        found = gc.collect()
        log.info("garbage_collected objects=%d seconds=%.3f", found, time.perf_counter() - begun_s)
