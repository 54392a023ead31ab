"""Carrying a plan out: owners are asked in turn, and a call that fails is told beside what was done."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from neve.pipeline import gc
from neve.pipeline.core.gc import DELETE, KEEP, Plan, PlanRow
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotLeader


def test_a_call_that_fails_hides_nothing_of_what_was_done() -> None:
    asked: list[tuple[int, int]] = []

    async def delete_extents(extents: list[tuple[int, int]], *, revision: int) -> sm.DeleteExtentsReply:
        assert revision == 40
        asked.extend(extents)
        if len(asked) == 2 * gc.PROPOSED_AT_A_TIME:
            raise NotLeader(detail="a fail-over that takes long")
        return sm.DeleteExtentsReply(deleted=[extent_id for extent_id, _ in extents])

    many = 2 * gc.PROPOSED_AT_A_TIME + 1
    rows = [PlanRow(DELETE, extent_id, "nobody", eversion=3) for extent_id in range(1, many + 1)]
    link: Any = SimpleNamespace(admin=SimpleNamespace(delete_extents=delete_extents))
    done = asyncio.run(gc.apply(link, Plan(40, [*rows, PlanRow(KEEP, 9_999, "young")])))
    assert asked == [(extent_id, 3) for extent_id in range(1, many + 1)]
    assert done["deleted"] == [*range(1, gc.PROPOSED_AT_A_TIME + 1), many]
    assert (done["kept"], done["reclaimed"]) == ([], [])
    [told] = done["failed"]
    assert "1000 extents from 1001 on" in told
