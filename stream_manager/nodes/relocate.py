"""Updates nodes' locations regularly: the topology resolver's answers may change without a new registration.

Invariants: a resolver that hangs or fails delays nothing else, least of all a node's death (scenario T43);
            a node that the resolver does not know keeps its location; a move is a guarded transaction.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import NodeEntry
from neve.stream_manager.nodes.core.health import NEVER_S
from neve.stream_manager.placement.topology import Place, Topology
from neve.stream_manager.term.context import LeaderContext

log = logging.getLogger(__name__)

INTERVAL_S = 60.0  # between two updates


class Relocation:
    def __init__(self, ctx: LeaderContext, topology: Topology) -> None:
        self._ctx = ctx
        self._topology = topology
        self._due_s = ctx.clock() + INTERVAL_S

    def reload(self) -> None:
        """Resolve every node again in the next pass."""
        self._topology.reload()
        self._due_s = NEVER_S

    async def run_once(self, now_s: float) -> None:
        if now_s < self._due_s:
            return
        self._due_s = now_s + INTERVAL_S
        for node in list(self._ctx.state.nodes.values()):
            place = await self._topology.locate(node.wire_address)
            if place is not None and place != (node.region, node.rack):
                await self._move(node, place)

    async def _move(self, node: NodeEntry, place: Place) -> None:
        ctx = self._ctx
        async with ctx.locks.hold(nodes=[node.node_id]):
            now = ctx.state.nodes.get(node.node_id)
            if now is None or now.wire_address != node.wire_address:
                return
            changes = ctx.changes()
            changes.put(NODE, now, replace(now, region=place.region, rack=place.rack))
            await ctx.commit(changes)
        log.info("node_moved node_id=%d place=/%s/%s", node.node_id, place.region, place.rack)
