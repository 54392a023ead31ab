"""A node's registration: what it must contain, and what is stored of it. No I/O.

Invariants: a registration keeps the operator's order (mode) and the leader's decision (health);
            a disk with replicas stays in the node's entry until they are elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.rpc.wire.sockets import split_address
from neve.stream_manager.metadata.records import Disk, NodeEntry, shared

DISKS_MAX = 1_000

MODE_WORDS: Mapping[int, str] = {
    sm.NODE_MODE_NORMAL: "",
    sm.NODE_MODE_READ_ONLY: "read-only by order",
    sm.NODE_MODE_MAINTENANCE: "in maintenance",
    sm.NODE_MODE_DRAINING: "draining",
    sm.NODE_MODE_DECOMMISSIONED: "decommissioned",
}


def check_registration(request: sm.RegisterNodeRequest) -> None:
    split_address(request.wire_address)
    uuids = [disk.disk_uuid for disk in request.disks]
    if len(uuids) > DISKS_MAX or len(set(uuids)) < len(uuids) or not all(uuids):
        raise InvalidArgument(what="disks", detail=f"each needs a unique uuid, and at most {DISKS_MAX} are allowed")
    if not request.process_id:
        raise InvalidArgument(what="process_id", detail="0: a node draws a random one when it starts")


def entry_of(
    request: sm.RegisterNodeRequest, old: NodeEntry | None, in_use: Sequence[Disk], *, now_ms: int
) -> NodeEntry:
    """The entry to store. Disks `in_use` are kept even if the registration does not name them: they may return."""
    reported = {disk.disk_uuid: Disk(shared(disk.disk_uuid), disk.state, disk.capacity_bytes) for disk in request.disks}
    before = {disk.disk_uuid: replace(disk, state=en.DiskInfo.OFFLINE) for disk in in_use}
    place = request.location
    base = old or NodeEntry(node_id=request.node_id, wire_address=request.wire_address, registered_ms=now_ms)
    return replace(
        base,
        wire_address=request.wire_address,
        grpc_address=request.grpc_address,
        region=place.region,
        rack=place.rack,
        zone=place.zone,
        labels=tuple(sorted(place.labels.items())),
        disks=tuple({**before, **reported}.values()),
        process_id=request.process_id,
        protocol=request.version.protocol,
        build=request.version.build,
    )
