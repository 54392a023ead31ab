"""Descriptions of streams, extents and nodes for replies, made from a state."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from neve.proto import common_pb2, field_tables
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.fields import sized, varint
from neve.rpc.service import Encoded
from neve.stream_manager.metadata.records import (
    EXTENT_FIELDS,
    STREAM_FIELDS,
    Extent,
    NodeEntry,
    ReplicaAt,
    Stream,
    incarnation_bytes,
    place_bytes,
)
from neve.stream_manager.metadata.state import State

LOCATIONS_MAX = 8192

_stream_bytes = field_tables.encoder(STREAM_FIELDS, "shown")
_extent_bytes = field_tables.encoder(EXTENT_FIELDS, "shown", given="located")


def stream_info(stream: Stream) -> sm.StreamInfo:
    return sm.StreamInfo.FromString(_stream_bytes(stream))


def extent_info(state: State, extent: Extent, *, with_streams: bool = False) -> sm.ExtentInfo:
    info = sm.ExtentInfo.FromString(_extent_info_bytes(state, extent))
    if with_streams:
        info.stream_ids.extend(state.streams_of(extent.extent_id))
    return info


def alloc_reply(
    state: State, stream: Stream, sealed: Extent, tail: Extent | None
) -> Encoded[sm.StreamAllocExtentReply]:
    parts = [b"\x0a", sized(_stream_bytes(stream)), b"\x12", sized(_extent_info_bytes(state, sealed))]
    if tail is not None:
        parts += (b"\x1a", sized(_extent_info_bytes(state, tail)))
    if sealed.all_took_part or sealed.all_confirmed:
        parts.append(b"\x20\x01")
    return Encoded(sm.StreamAllocExtentReply, b"".join(parts))


def create_reply(state: State, stream: Stream, tail: Extent | None) -> Encoded[sm.CreateStreamReply]:
    parts = [b"\x0a", sized(_stream_bytes(stream))]
    if tail is not None:
        parts += (b"\x12", sized(_extent_info_bytes(state, tail)))
    return Encoded(sm.CreateStreamReply, b"".join(parts))


def _extent_info_bytes(state: State, extent: Extent) -> bytes:
    located = [_located(state.nodes, replica, replica.node_id in extent.confirmed) for replica in extent.replicas]
    return _extent_bytes(extent, located)


def _located(nodes: Mapping[int, NodeEntry], replica: ReplicaAt, confirmed: bool) -> bytes:
    """An encoded `ExtentReplica`: the replica, its node's addresses, and whether it has confirmed the seal."""
    node = nodes.get(replica.node_id)
    addresses = (node.wire_address, node.grpc_address) if node is not None else ("", "")
    before, after = _around_incarnation(replica.node_id, replica.disk_uuid, *addresses, confirmed)
    return before + incarnation_bytes(replica.incarnation) + after


@functools.lru_cache(maxsize=LOCATIONS_MAX)
def _around_incarnation(
    node_id: int, disk_uuid: str, wire_address: str, grpc_address: str, confirmed: bool
) -> tuple[bytes, bytes]:
    """The bytes before and after the incarnation. They are the same for all replicas on a disk."""
    place = place_bytes(node_id, disk_uuid)
    after = b"\x12" + sized(wire_address.encode()) if wire_address else b""
    if grpc_address:
        after += b"\x22" + sized(grpc_address.encode())
    if confirmed:
        after += b"\x18\x01"
    return b"\x0a" + varint(len(place) + 8) + place, after


def node_record(node: NodeEntry) -> sm.NodeRecord:
    """A node's description from metadata, which is all that a follower has. The leader adds load and heartbeat age."""
    return sm.NodeRecord(
        node_id=node.node_id,
        wire_address=node.wire_address,
        grpc_address=node.grpc_address,
        location=sm.NodeLocation(region=node.region, rack=node.rack, zone=node.zone, labels=dict(node.labels)),
        disks=[
            en.DiskInfo(disk_uuid=disk.disk_uuid, state=disk.state, capacity_bytes=disk.capacity_bytes)
            for disk in node.disks
        ],
        mode=node.mode,
        health=node.health,
        version=common_pb2.Version(protocol=node.protocol, build=node.build),
    )
