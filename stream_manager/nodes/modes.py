"""Operators' orders about nodes: read-only, maintenance, drain, decommission; and what keeps an order from finishing.

    NORMAL ⇄ READ_ONLY ⇄ MAINTENANCE (until a time) ⇄ DRAINING ─→ DECOMMISSIONED, permanently

Decommissioning a node that has replicas drains it first. The node is DRAINING with the reason `decommission`, and
becomes DECOMMISSIONED once no extent has a replica there. Until then `hold_ups` lists the extents that are still there
and why (scenario T41).

Invariants: a node is decommissioned only in a transaction after which metadata lists nothing on it;
            a decommission under way ends only by finishing or by `neve resume`: no other order replaces it;
            a mode is changed by a guarded transaction, and once per call (protocol rule 26).
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError, NotFound, NotLeader
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import Extent, NodeEntry
from neve.stream_manager.nodes.core.recovery import sources_for
from neve.stream_manager.nodes.recovery import Recovery
from neve.stream_manager.term.context import LeaderContext, Mutation

log = logging.getLogger(__name__)

DECOMMISSION = "decommission"
MAINTENANCE_S_MAX = 30 * 24 * 3600
HOLD_UPS_MAX = 20  # extents that are listed; the others are counted


class NodeModes:
    def __init__(self, ctx: LeaderContext, recovery: Recovery) -> None:
        self._ctx = ctx
        self._recovery = recovery

    async def set_mode(self, request: sm.SetNodeModeRequest, mutation: Mutation) -> NodeEntry:
        ctx, node_id = self._ctx, request.node_id
        _check(request)
        async with ctx.locks.hold(nodes=[node_id]):
            old = ctx.state.nodes.get(node_id)
            if old is None:
                raise NotFound(kind="node", name=str(node_id))
            if mutation.replayed is not None:
                return old
            if old.mode == sm.NODE_MODE_DECOMMISSIONED and request.mode != sm.NODE_MODE_DECOMMISSIONED:
                raise InvalidArgument(what="mode", detail=f"node {node_id} was decommissioned, which is permanent")
            if _is_leaving(old) and request.mode not in (sm.NODE_MODE_NORMAL, sm.NODE_MODE_DECOMMISSIONED):
                detail = f"node {node_id} is being decommissioned; to cancel that, run `neve resume {node_id}`"
                raise InvalidArgument(what="mode", detail=detail)
            until_ms = 0
            if request.mode == sm.NODE_MODE_MAINTENANCE:
                until_ms = ctx.wall_ms() + 1000 * request.maintenance_s
            mode, reason = request.mode, ""
            if mode == sm.NODE_MODE_DECOMMISSIONED and ctx.state.extents_on(node_id):
                mode, reason = sm.NODE_MODE_DRAINING, DECOMMISSION
            new = replace(old, mode=mode, mode_until_ms=until_ms, mode_reason=reason)
            changes = ctx.changes()
            changes.put(NODE, old, new)
            mutation.record(changes, node_id=node_id)
            await ctx.commit(changes)
            log.info("node_mode_set node_id=%d mode=%s by=%s", node_id, sm.NodeMode.Name(mode), mutation.principal)
            return ctx.state.nodes[node_id]

    async def run_once(self, now_s: float) -> None:
        """Finish decommissions whose node is empty."""
        for node in list(self._ctx.state.nodes.values()):
            if not _is_leaving(node) or self._ctx.state.extents_on(node.node_id):
                continue
            try:
                await self._decommission(node)
            except NotLeader:
                raise
            except NeveError as error:
                log.warning("node_not_decommissioned node_id=%d error=%s", node.node_id, error)

    async def _decommission(self, node: NodeEntry) -> None:
        ctx = self._ctx
        async with ctx.locks.hold(nodes=[node.node_id]):
            # Nothing new is placed on a draining node. An extent for which it was chosen just before, and which is
            # linked later, is still moved away, decommissioned or not.
            if ctx.state.nodes.get(node.node_id) != node or ctx.state.extents_on(node.node_id):
                return
            if any(
                task.target is not None and task.target.node_id == node.node_id for task in ctx.state.tasks.values()
            ):
                return  # recovery's next pass moves it
            changes = ctx.changes()
            changes.put(NODE, node, replace(node, mode=sm.NODE_MODE_DECOMMISSIONED))
            await ctx.commit(changes)
        log.info("node_decommissioned node_id=%d", node.node_id)

    # --- hold-ups --------------------------------------------------------------------------------------------

    def hold_ups(self, node: NodeEntry) -> list[str]:
        """One line for each of the first extents that are still on a draining node.

        Empty if the node does not drain.
        """
        if node.mode != sm.NODE_MODE_DRAINING:
            return []
        state = self._ctx.state
        held = state.extents_on(node.node_id)
        lines = [self._hold_up(state.extents[extent_id]) for extent_id in itertools.islice(held, HOLD_UPS_MAX)]
        if len(held) > HOLD_UPS_MAX:
            lines.append(f"and {len(held) - HOLD_UPS_MAX} other extents")
        return lines

    def _hold_up(self, extent: Extent) -> str:
        extent_id = extent.extent_id
        problem = self._recovery.problems.text(extent_id)
        name = f"extent {extent_id}"
        if extent.seal is None:
            streams = ", ".join(map(str, self._ctx.state.streams_of(extent_id)))
            return f"{name} of stream {streams} is open: {problem or 'it is going to be sealed'}"
        task = self._ctx.state.tasks.get(extent_id)
        if task is not None and task.target is not None:
            error = f" (attempt {task.attempts + 1}; {task.last_error})" if task.last_error else ""
            return f"{name} is being copied to node {task.target.node_id}{error}"
        if problem:
            return f"{name}: {problem}"
        trouble = self._recovery.trouble(self._ctx.clock())
        if not sources_for(extent, None, trouble):
            return f"{name}: no confirmed replica can be reached to copy from"
        return f"{name} is waiting to be copied"


def _is_leaving(node: NodeEntry) -> bool:
    """Whether the node is to be decommissioned when it is empty."""
    return node.mode == sm.NODE_MODE_DRAINING and node.mode_reason == DECOMMISSION


def _check(request: sm.SetNodeModeRequest) -> None:
    if request.mode not in sm.NodeMode.values() or request.mode == sm.NODE_MODE_UNSPECIFIED:
        raise InvalidArgument(what="mode", detail="it must be one of NORMAL, READ_ONLY, MAINTENANCE, DRAINING, …")
    if request.mode == sm.NODE_MODE_MAINTENANCE:
        if not 1 <= request.maintenance_s <= MAINTENANCE_S_MAX:
            detail = f"{request.maintenance_s}: 1 to {MAINTENANCE_S_MAX} seconds, after which the node counts as lost"
            raise InvalidArgument(what="maintenance_s", detail=detail)
    elif request.maintenance_s:
        raise InvalidArgument(what="maintenance_s", detail="only allowed with MAINTENANCE")
