"""When a partition server looks for garbage among old objects."""

from __future__ import annotations

import asyncio
import gc

from neve.partition_server import python_gc as garbage
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.python_gc import LATEST_S, SMALL_BYTES, SOON_S, Collections


def test_old_objects_are_looked_at_when_memtables_are_small_or_late() -> None:
    async def story() -> None:
        memory = MemoryBudget(1 << 30)
        collections = Collections(memory)
        now_s = asyncio.get_running_loop().time()
        assert not collections.is_due(now_s + SOON_S - 1)
        assert collections.is_due(now_s + SOON_S + 1)
        memory.share().add(SMALL_BYTES + 1)
        assert not collections.is_due(now_s + SOON_S + 1)
        assert collections.is_due(now_s + LATEST_S + 1)
        before_s = asyncio.get_running_loop().time()
        collections.collect()
        assert not collections.is_due(before_s + LATEST_S - 1)

    asyncio.run(story())


def test_young_garbage_is_found_and_old_objects_are_left_alone() -> None:
    before = gc.get_threshold()
    try:
        garbage.tune()
        old = gc.get_stats()[2]["collections"]
        young = gc.get_stats()[1]["collections"]
        kept = [[number] for number in range(200_000)]
        assert gc.get_stats()[1]["collections"] > young
        assert gc.get_stats()[2]["collections"] == old
        assert len(kept) == 200_000
    finally:
        gc.set_threshold(*before)
