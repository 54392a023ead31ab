"""New extents as bytes: the body of the record and the fixed part of the description, made in one pass over replicas.

Invariants: the same bytes as `record_codec.new_body` and `describe.fixed_info` give: a test compares;
            what is kept of a replica's place counts only while no node has changed.
Neighbours: roll.py, which makes both for every extent that it links.
"""

from __future__ import annotations

import struct

from neve.proto.fields import VARINTS
from neve.stream_manager import describe
from neve.stream_manager import record_codec as codec
from neve.stream_manager.records import Extent
from neve.stream_manager.state import State

PLACES_MAX = 10_000

_incarnation = struct.Struct("<Q").pack


class Places:
    """Of one term."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._nodes: object = None  # `State.nodes_as_of` of what is kept
        # By node and disk: a replica in a record before its incarnation, in a description before and behind it.
        self._around: dict[tuple[int, str], tuple[bytes, bytes, bytes]] = {}

    def new_extent(self, extent: Extent, number: bytes, stream_number: bytes) -> tuple[bytes, bytes, object]:
        """Body and fixed part, and which nodes the latter speaks of. `number` and `stream_number` are the encoded ids
        of the extent and of its stream."""
        nodes = self._state.nodes_as_of
        if nodes is not self._nodes or len(self._around) > PLACES_MAX:
            self._around.clear()
            self._nodes = nodes
        _, _, replicas, extent_bytes_max, created_ms, *_ = extent
        size, time, known = VARINTS[extent_bytes_max], VARINTS[created_ms], self._around.get
        body = [b"\x08\x01\x10", number, b"\x40", size, b"\x48", time, b"\x50", stream_number]
        info = [b"\x08", number, b"\x28", size, b"\x30", time]
        for node_id, disk_uuid, incarnation in replicas:
            around = known((node_id, disk_uuid))
            if around is None:
                around = self._add(node_id, disk_uuid)
            in_record, before, behind = around
            making = _incarnation(incarnation)
            body += (in_record, making)
            info += (before, making, behind)
        return b"".join(body), b"".join(info), nodes

    def _add(self, node_id: int, disk_uuid: str) -> tuple[bytes, bytes, bytes]:
        before, behind = describe.around_replica(self._state, node_id, disk_uuid, is_confirmed=False)
        found = self._around[node_id, disk_uuid] = (codec.place_in_record(node_id, disk_uuid), before, behind)
        return found
