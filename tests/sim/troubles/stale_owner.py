"""An owner who was replaced long ago, and never hears of it: a process that does not look at its lock any more.

It sends an append with an older token to replicas that have promised a newer one, or are fenced, where it would fit.
Every one must refuse it, also after it lost its power (rules 4 and 14; scenarios T8, T11 to T13). wire_watch.py judges
the answers.

Invariants: it never uses a token that a replica may still accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from neve.proto.blocks import encode_block
from neve.proto.errors import NeveError
from neve.stream_manager.metadata.records import Extent
from tests.sim import raw
from tests.sim.checks.wire_watch import Promise
from tests.sim.processes.node import SimNode
from tests.sim.troubles.troubles import Kind, Scene

EXTENTS_MAX = 4


class Ghost:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._visits = 0

    def kinds(self) -> Sequence[Kind]:
        return (Kind("append of a deposed owner", self._haunt_one, sharp=True),)

    def _haunt_one(self) -> bool:
        nodes = [node for node in self._scene.cluster.nodes.values() if node.serving]
        return bool(nodes) and self.haunt(self._scene.pick(nodes, lambda node: node.host))

    def haunt(self, node: SimNode) -> bool:
        """Whether there is something to be tried on it."""
        promises = self._scene.cluster.wire.promises_of(node.host)
        state = next((m.term.state for m in self._scene.cluster.managers.values() if m.term is not None), None)
        known = {} if state is None else state.extents
        promised = [
            (extent_id, promise)
            for extent_id, promise in promises
            if promise.token > 1 and extent_id in known and known[extent_id].seal is None
        ]
        for extent_id, promise in promised[-EXTENTS_MAX:]:
            self._scene.spawn(self._append(node, known[extent_id], promise))
        if promised:
            self._scene.say(f"a deposed owner appends to {node.host}")
        return bool(promised)

    async def _append(self, node: SimNode, extent: Extent, promise: Promise) -> None:
        self._visits += 1
        try:
            await raw.append(
                self._scene.cluster,
                node.node_id,
                extent,
                promise.length,
                [encode_block(b"of a deposed owner")],
                token=promise.token - 1,
                host=f"ghost{self._visits}",
            )
        except NeveError as error:
            self._scene.say(f"the deposed owner fails: {type(error).__name__}")
