"""Builders for tests of the node's decisions: one replica of 100 bytes, and requests that fit it."""

from __future__ import annotations

import uuid
from typing import Any

from neve.extent_node.core import Refuse, ReplicaState
from neve.extent_node.disk.attributes import Meta, Seal
from neve.proto import blocks, common_pb2

DISK = str(uuid.UUID(int=0xD15C))
META = Meta(
    extent_id=42,
    eversion=5,
    incarnation=0xABC,
    stream_id=7,
    created_ms=1_700_000_000_000,
    extent_bytes_max=1000,
    node_id=3,
    disk_uuid=DISK,
)
DIGEST = bytes(range(32))
LENGTH = 100
TOKEN = 10


def replica(**changes: Any) -> ReplicaState:
    """An open replica of 100 durable bytes that has seen token 10. A `seal` makes it consistent with itself."""
    state = ReplicaState(META, length=LENGTH, token=TOKEN, durable_end=LENGTH, journaled_end=LENGTH)
    for name, value in changes.items():
        setattr(state, name, value)
    state.validate()
    return state


def sealed_replica(length: int = LENGTH, **changes: Any) -> ReplicaState:
    seal = Seal(length=length, eversion=6, digest=DIGEST)
    fields = {"seal": seal, "fenced": True, "length": length, "durable_end": length, "journaled_end": length}
    return replica(**(fields | changes))


RIGHT = common_pb2.Replica(node_id=META.node_id, disk_uuid=DISK, incarnation=META.incarnation)
ANY = common_pb2.Replica()
WRONG = {
    "node": common_pb2.Replica(node_id=4, disk_uuid=DISK, incarnation=META.incarnation),
    "disk": common_pb2.Replica(node_id=3, disk_uuid=str(uuid.UUID(int=1)), incarnation=META.incarnation),
    "incarnation": common_pb2.Replica(node_id=3, disk_uuid=DISK, incarnation=0xDEF),
}


def told_by(decision: Refuse) -> type:
    """What kind of refusal it is. Whoever gets it acts on its facts: they are of this replica and this request, and
    complete."""
    facts = decision.error.facts()
    assert facts.get("extent_id", META.extent_id) == META.extent_id, facts
    assert all(value is not None for value in (*facts.values(), decision.error.detail)), facts
    versions = [value for name, value in facts.items() if name.startswith(("eversion", "token"))]
    assert len(set(versions)) == len(versions), f"it is refused since they differ: {facts}"
    return type(decision.error)


def body_of(size_bytes: int, *, seed: int = 0) -> tuple[bytes, list[int]]:
    """Two blocks of that size together, and their sizes."""
    first = blocks.encode_block(bytes([seed % 256]) * 2)
    second = blocks.encode_block(bytes([seed % 256]) * (size_bytes - len(first) - blocks.HEADER_BYTES))
    return first + second, [len(first), len(second)]
