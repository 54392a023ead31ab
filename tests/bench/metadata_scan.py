"""How long the loop is held up while a leader over many extents looks for what to recover, when all nodes have died.

    python -m tests.bench.metadata_scan [extents]

A process of its own: the state is made in memory as a manager would load it, all of its nodes are dead, and the passes
that look at extents run one by one, beside a task that only takes turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from neve.meta.core_retry import Delays
from neve.meta.txn import KeyValue
from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager.config import Recovery as RecoveryConfig
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.nodes.registry import Registry
from neve.stream_manager.streams import reads
from neve.stream_manager.streams.open_extents import OpenExtents
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems
from tests.bench.metadata_rows import fill as metadata_fill

EXTENTS = 1_000_000
ROOT = b"/bench/"


async def longest_turn_s(work: Awaitable[Any]) -> tuple[float, float]:
    """(the longest time in which others got no turn, all of it)"""
    longest_s = 0.0
    done = False

    async def take_turns() -> None:
        nonlocal longest_s
        before_s = time.perf_counter()
        while not done:
            await asyncio.sleep(0)
            now_s = time.perf_counter()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s

    taking = asyncio.create_task(take_turns())
    begun_s = time.perf_counter()
    await work
    took_s = time.perf_counter() - begun_s
    done = True
    await taking
    return longest_s, took_s


def loaded(extents: int) -> State:
    state = State(ROOT)
    for put in metadata_fill.puts(ROOT, extents):
        state.put_key(KeyValue(put.key, put.value, 1, 1, 1))
    for node in list(state.nodes.values()):
        state._set(NODE, node.node_id, replace(node, health=sm.NODE_HEALTH_DEAD))
    return state


async def run(extents: int) -> None:
    state = loaded(extents)
    config = SimpleNamespace(recovery=RecoveryConfig())
    loop = asyncio.get_running_loop()
    ctx = cast(LeaderContext, SimpleNamespace(state=state, config=config, clock=loop.time))
    registry = cast(
        Registry,
        SimpleNamespace(
            give_up_s=lambda node, now_s, delay_s: now_s,
            status=lambda node_id: SimpleNamespace(gone_disks_since_s=()),
        ),
    )
    problems = Problems(Delays(1.0, 60.0))
    recovery = Recovery(ctx, registry, problems)
    opened = OpenExtents(ctx, recovery, problems)
    trouble = recovery.trouble(loop.time())
    cases: dict[str, Callable[[], Awaitable[Any]]] = {
        "recovery's scan": lambda: recovery._scan(trouble, 1000),
        "the look at open extents": lambda: opened._choose(trouble, -1.0),
        "the status of the cluster": lambda: reads.count_lacking(state),
    }
    for name, work in cases.items():
        longest_s, took_s = await longest_turn_s(work())
        print(f"{name}, {extents:,} extents: {took_s:.2f} s, the longest turn {1000 * longest_s:.1f} ms")


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else EXTENTS))
