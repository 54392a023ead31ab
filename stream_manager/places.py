"""New extents as bytes: the body of the record and the fixed part of the description, made in one pass over replicas.

Invariants: the same bytes as `record_codec.new_body` and `describe.fixed_info` give: a test compares;
            what is kept of a replica's place counts only while no node has changed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from neve.proto.fields import VARINTS
from neve.stream_manager import describe
from neve.stream_manager import record_codec as codec
from neve.stream_manager.records import Extent, ReplicaAt
from neve.stream_manager.state import State

PLACES_MAX = 10_000

_incarnation = struct.Struct("<Q").pack

# Of three replicas: what packs those parts of a record that stand before their incarnations, and the parts; the same of
# a description, with what stands behind the last one.
_Pack = Callable[..., bytes]
_Three = tuple[_Pack, bytes, bytes, bytes, _Pack, bytes, bytes, bytes, bytes]


class Places:
    """Of one term."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._nodes: object = None  # `State.nodes_as_of` of what is kept
        # By node and disk: a replica in a record before its incarnation, in a description before and behind it.
        self._around: dict[tuple[int, str], tuple[bytes, bytes, bytes]] = {}
        self._threes: dict[tuple[int, str, int, str, int, str], _Three] = {}

    def new_extent(self, extent: Extent, number: bytes, stream_number: bytes) -> tuple[bytes, bytes, object]:
        """Body and fixed part, and which nodes the latter speaks of. `number` and `stream_number` are the encoded ids
        of the extent and of its stream."""
        nodes = self._state.nodes_as_of
        if nodes is not self._nodes or len(self._around) > PLACES_MAX or len(self._threes) > PLACES_MAX:
            self._around.clear()
            self._threes.clear()
            self._nodes = nodes
        replicas = extent.replicas
        size, time = VARINTS[extent.extent_bytes_max], VARINTS[extent.created_ms]
        if len(replicas) == 3:  # mostly: then all of them are packed in one go
            (node_1, disk_1, made_1), (node_2, disk_2, made_2), (node_3, disk_3, made_3) = replicas
            places = (node_1, disk_1, node_2, disk_2, node_3, disk_3)
            three = self._threes.get(places) or self._add_three(places)
            pack, first, second, third, pack_info, info_1, info_2, info_3, info_end = three
            in_body = pack(first, made_1, second, made_2, third, made_3)
            in_info = pack_info(info_1, made_1, info_2, made_2, info_3, made_3, info_end)
        else:
            in_body, in_info = self._joined(replicas)
        return (
            b"".join((b"\x08\x01\x10", number, b"\x40", size, b"\x48", time, b"\x50", stream_number, in_body)),
            b"".join((b"\x08", number, b"\x28", size, b"\x30", time, in_info)),
            nodes,
        )

    def _joined(self, replicas: Iterable[ReplicaAt]) -> tuple[bytes, bytes]:
        body: list[bytes] = []
        info: list[bytes] = []
        for node_id, disk_uuid, incarnation in replicas:
            in_record, before, behind = self._one(node_id, disk_uuid)
            making = _incarnation(incarnation)
            body += (in_record, making)
            info += (before, making, behind)
        return b"".join(body), b"".join(info)

    def _one(self, node_id: int, disk_uuid: str) -> tuple[bytes, bytes, bytes]:
        found = self._around.get((node_id, disk_uuid))
        if found is None:
            before, behind = describe.around_replica(self._state, node_id, disk_uuid, is_confirmed=False)
            found = self._around[node_id, disk_uuid] = (codec.place_in_record(node_id, disk_uuid), before, behind)
        return found

    def _add_three(self, places: tuple[int, str, int, str, int, str]) -> _Three:
        node_1, disk_1, node_2, disk_2, node_3, disk_3 = places
        first, second, third = self._one(node_1, disk_1), self._one(node_2, disk_2), self._one(node_3, disk_3)
        records = (first[0], second[0], third[0])
        infos = (first[1], first[2] + second[1], second[2] + third[1], third[2])
        pack = struct.Struct("<" + "".join(f"{len(part)}sQ" for part in records)).pack
        pack_info = struct.Struct("<" + "Q".join(f"{len(part)}s" for part in infos)).pack
        found = self._threes[places] = (pack, *records, pack_info, *infos)
        return found
