"""Metadata of a large cluster, written straight into etcd: streams of sealed extents, as managers leave them.

Invariants: the records are those that a manager writes, encoded by its own codec: one that loads them cannot tell;
            nothing but the cluster's own keys is written.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import uuid
from collections.abc import Iterator, Sequence

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import TXN_OPS_MAX, Put
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.record_kinds import NAME, NODE, Name
from neve.stream_manager.metadata.records import (
    Disk,
    Extent,
    ExtentSeal,
    NodeEntry,
    ReplicaAt,
    Stream,
    extent_bytes,
    stream_bytes,
)
from tests.bench.node_rows.process import CLUSTER

NODES = 100
DISKS_PER_NODE = 4
REPLICAS = 3
EXTENTS_PER_STREAM = 100
GIB = 1 << 30
DIGEST_BYTES = 32
CREATED_MS = 1_700_000_000_000

_drawn = random.Random(0)  # incarnations and digests, which take as much memory as they do for real

WRITERS = 8  # transactions in flight

POLICY = StreamPolicy(replicas=REPLICAS, extent_bytes_max=GIB)


@functools.cache
def disk_uuid(node_id: int, disk: int = 0) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{node_id}/{disk}"))


def nodes() -> Iterator[NodeEntry]:
    for node_id in range(1, NODES + 1):
        disks = (
            Disk(disk_uuid(node_id, disk), en.DiskInfo.WRITABLE, capacity_bytes=1 << 42)
            for disk in range(DISKS_PER_NODE)
        )
        yield NodeEntry(
            node_id=node_id,
            wire_address=f"10.0.{node_id >> 8}.{node_id & 255}:3501",
            rack=f"r{node_id % 10}",
            disks=tuple(disks),
            health=sm.NODE_HEALTH_ALIVE,
            process_id=node_id,
        )


def stream_of(stream_id: int, extents: int) -> tuple[Stream, list[Extent]]:
    """A stream whose extents have the ids behind its own; the last one is open."""
    extent_ids = tuple(range(stream_id + 1, stream_id + 1 + extents))
    stream = Stream(
        stream_id=stream_id,
        name=f"bench/{stream_id}",
        lock=f"stream/{stream_id:016x}",
        extent_ids=extent_ids,
        sealed=False,
        policy=POLICY,
        labels=(("tenant", f"t{stream_id % 1000}"),),
        version=extents,
        created_ms=CREATED_MS,
    )
    return stream, [extent_of(extent_id, stream_id, is_open=extent_id == extent_ids[-1]) for extent_id in extent_ids]


def extent_of(extent_id: int, stream_id: int, *, is_open: bool) -> Extent:
    node_ids = tuple((extent_id * 7 + step * 37) % NODES + 1 for step in range(REPLICAS))
    replicas = tuple(
        ReplicaAt(node_id, disk_uuid(node_id, extent_id % DISKS_PER_NODE), incarnation=_drawn.getrandbits(63) + 1)
        for node_id in node_ids
    )
    return Extent(
        extent_id=extent_id,
        eversion=1 if is_open else 2,
        replicas=replicas,
        extent_bytes_max=GIB,
        created_ms=CREATED_MS + extent_id,
        stream_id=stream_id,
        seal=None if is_open else ExtentSeal(GIB - extent_id % 1000, 2, _drawn.randbytes(DIGEST_BYTES)),
        confirmed=() if is_open else node_ids,
        all_took_part=not is_open,
    )


def puts(root: bytes, extents: int) -> Iterator[Put]:
    """All keys of a cluster with so many extents."""
    for node in nodes():
        yield Put(root + r.NODES + r.id_text(node.node_id), NODE.encode(node))
    next_id, left = 1, extents
    while left:
        count = min(left, EXTENTS_PER_STREAM)
        stream, made = stream_of(next_id, count)
        yield Put(root + r.STREAMS + r.id_text(stream.stream_id), stream_bytes(stream))
        yield Put(root + r.NAMES + stream.name.encode(), NAME.encode(Name(stream.name, stream.stream_id)))
        for extent in made:
            yield Put(root + r.EXTENTS + r.id_text(extent.extent_id), extent_bytes(extent))
        next_id += count + 1
        left -= count
    yield Put(root + r.IDS, str(next_id).encode())


async def fill(*, endpoints: Sequence[str], extents: int) -> float:
    """Write them in large transactions; returns how many keys."""
    source = puts(r.root_of(CLUSTER), extents)
    written = 0

    async def write(store: EtcdStore) -> None:
        nonlocal written
        while batch := list(itertools.islice(source, TXN_OPS_MAX)):
            await store.txn((), batch)
            written += len(batch)

    async with await EtcdStore.connect(EtcdConfig(tuple(endpoints))) as store:
        await asyncio.gather(*(write(store) for _ in range(WRITERS)))
    return written
