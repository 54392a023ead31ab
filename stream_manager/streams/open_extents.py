"""Seals open extents that have lost a replica or stand on a node that is being emptied, so that idle streams regain
their redundancy, too (design.md, section 8).

Invariants: only by the seal of rules 17 to 20, without an owner's word: what it cannot decide safely stays open, and
            the reason is kept for people (T41);
            a dead node's extents wait as long as its sealed ones do; a second loss ends the wait;
            at most `AT_A_TIME` at once, and each with a growing delay between two tries.
Note:       The writer, if there is one, gets its next extent when it asks; the sealed extent then is recovery.py's.
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
from neve.stream_manager.term.loop_yield import Slices

log = logging.getLogger(__name__)

AT_A_TIME = 16


class OpenExtents:
    def __init__(self, ctx: LeaderContext, recovery: Recovery, problems: Problems) -> None:
        self._ctx = ctx
        self._recovery = recovery
        self._problems = problems
        self._held_up: dict[int, None] = {}  # extents that could not be sealed when that was tried last

    async def run_once(self, now_s: float) -> None:
        trouble = self._recovery.trouble(now_s)
        self._forget_well(trouble)
        chosen = await self._chosen(trouble, now_s)
        await asyncio.gather(*(self._seal(extent_id, now_s) for extent_id in chosen))

    async def _chosen(self, trouble: Trouble, now_s: float) -> list[int]:
        """Some whose time has come."""
        chosen: list[int] = []
        slices = Slices()
        for extent_id in self._in_trouble(trouble):
            if slices.over():
                await slices.rest()
            if self._due(extent_id, trouble, now_s):
                chosen.append(extent_id)
                if len(chosen) == AT_A_TIME:
                    break
        return chosen

    def _forget_well(self, trouble: Trouble) -> None:
        """Those that somebody else has sealed, or that have all their replicas again."""
        state = self._ctx.state
        for extent_id in [*self._held_up]:
            extent = state.extents.get(extent_id)
            if extent is None or extent.seal is not None or core_recovery.worst_loss(extent, trouble) is None:
                del self._held_up[extent_id]
                self._problems.solved(extent_id)

    def _in_trouble(self, trouble: Trouble) -> list[int]:
        """Open extents that may have lost a replica, without a look at all the others."""
        state, troubled = self._ctx.state, trouble.nodes()
        opened = state.open_extents
        found = dict.fromkeys(extent_id for extent_id, _ in trouble.bad if extent_id in opened)
        if sum(len(state.extents_on(node_id)) for node_id in troubled) < len(opened):
            for node_id in troubled:
                found.update(dict.fromkeys(extent_id for extent_id in state.extents_on(node_id) if extent_id in opened))
        elif troubled:
            found.update(opened)  # each is looked at, once
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
