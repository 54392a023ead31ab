"""Seals open extents that have lost a replica or are on a node being drained, so that idle streams regain redundancy.

Design.md, section 8, has the reasons.

Invariants: they are sealed by protocol rules 17 to 20 without an owner's word: an extent that cannot be sealed safely
            stays open, and the reason is kept for operators (scenario T41);
            a dead node's open extents wait as long as its sealed ones; a second loss ends the wait;
            at most `AT_A_TIME` at once, and each with a growing delay between tries.
Note:       A writer gets its next extent when it asks for one. Then recovery.py takes care of the sealed extent.
"""

from __future__ import annotations

import asyncio
import logging

from neve.proto.errors import NeveError, NotLeader
from neve.stream_manager.nodes.core import recovery as core_recovery
from neve.stream_manager.nodes.core.recovery import Trouble
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.streams.seal_tail import seal_open_extent
from neve.stream_manager.term.context import LeaderContext
from neve.stream_manager.term.hold_ups import Problems
from neve.stream_manager.term.loop_yield import LoopYield

log = logging.getLogger(__name__)

AT_A_TIME = 16


class OpenExtents:
    def __init__(self, ctx: LeaderContext, recovery: Recovery, problems: Problems) -> None:
        self._ctx = ctx
        self._recovery = recovery
        self._problems = problems
        self._held_up: dict[int, None] = {}  # extents whose last try to seal failed

    async def run_once(self, now_s: float) -> None:
        trouble = self._recovery.trouble(now_s)
        self._forget_solved(trouble)
        chosen = await self._choose(trouble, now_s)
        await asyncio.gather(*(self._seal(extent_id, now_s) for extent_id in chosen))

    async def _choose(self, trouble: Trouble, now_s: float) -> list[int]:
        """Some extents whose delay has passed."""
        chosen: list[int] = []
        loop_yield = LoopYield()
        for extent_id in self._in_trouble(trouble):
            if loop_yield.is_due():
                await loop_yield.pause()
            if self._due(extent_id, trouble, now_s):
                chosen.append(extent_id)
                if len(chosen) == AT_A_TIME:
                    break
        return chosen

    def _forget_solved(self, trouble: Trouble) -> None:
        """Forget extents that are sealed by now, or have all their replicas again."""
        state = self._ctx.state
        for extent_id in [*self._held_up]:
            extent = state.extents.get(extent_id)
            if extent is None or extent.seal is not None or core_recovery.worst_loss(extent, trouble) is None:
                del self._held_up[extent_id]
                self._problems.solved(extent_id)

    def _in_trouble(self, trouble: Trouble) -> list[int]:
        """Open extents that may have lost a replica, without examining all others."""
        state, troubled = self._ctx.state, trouble.nodes()
        opened = state.open_extents
        found = dict.fromkeys(extent_id for extent_id, _ in trouble.bad if extent_id in opened)
        if sum(len(state.extents_on(node_id)) for node_id in troubled) < len(opened):
            for node_id in troubled:
                found.update(dict.fromkeys(extent_id for extent_id in state.extents_on(node_id) if extent_id in opened))
        elif troubled:
            found.update(opened)  # each is examined once
        return list(found)

    def _due(self, extent_id: int, trouble: Trouble, now_s: float) -> bool:
        extent = self._ctx.state.extents.get(extent_id)
        if extent is None or not self._problems.due(extent_id, now_s):
            return False
        loss = core_recovery.worst_loss(extent, trouble)
        return loss is not None and loss.due_s <= now_s and bool(self._ctx.state.streams_of(extent_id))

    async def _seal(self, extent_id: int, now_s: float) -> None:
        try:
            await seal_open_extent(self._ctx, extent_id)
        except NotLeader:
            raise
        except NeveError as error:
            self._problems.note(extent_id, f"open, and cannot be sealed: {error}", now_s)
            self._held_up[extent_id] = None
            return
        self._held_up.pop(extent_id, None)
        self._problems.solved(extent_id)
