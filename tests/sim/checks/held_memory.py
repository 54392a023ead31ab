"""How much a process may hold in memory when nobody asks for anything: whatever is not named here must be empty.

Each name has what bounds it: nodes, streams, extents, hosts, remembered calls, or a number. Nothing may grow with the
number of calls, retries or failures: a table with an entry for each of those is a leak, and is found by a story.

    too_much(NODE, counts, node.store, ...)      what there is too much of, in words

Invariants: what is new in the product must be empty at the end of a story, or be named here with its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neve.rpc.wire.buffers import POOL_BYTES_MAX, STREAM_CHUNK_BYTES
from neve.rpc.wire.deadlines import BUCKETS_SWEEP_MIN
from tests.sim.checks.memory import held_by

Bounds = Mapping[str, str | int]  # by name: a field of Counts, or how many
LANES = 2  # connections from one process to another: calls, and the bytes of copies


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a cluster: what there is, and what there ever was."""

    hosts: int  # connections that a process may have: LANES for each process that runs
    nodes: int
    disks: int  # that metadata knows
    streams: int  # there are
    extents: int  # there are, in streams
    streams_made: int
    extents_made: int  # or ordered made, whether or not they became a part of a stream
    calls: int  # whose answers are stored

    def bound(self, what: str | int) -> int:
        return what if isinstance(what, int) else int(getattr(self, what))


# Attributes that count what is under way, or say that something is: 0, or False.
NUMBERS = (
    "Batcher._in_flight",
    "Batcher._pumping",
    "Batcher._queued_items",
    "Budget.used_bytes",
    "Committer._dispatch_scheduled",
    "Committer._syncing",
    "JournalRounds.running",
    "LeaderContext.seals_in_flight",
    "NodeSenders._scheduled",
    "Pipeline.in_flight",
    "Reader._followers",
    "Replica.closing",
    "Replica.pins",
    "SealedFile.pins",
    "Share.used_bytes",
    "StoreState._orders",
    "TurnLock.held",
    "ByteBudget.held_bytes",
    "ClientConnection.inflight_bytes",
    "ServerConnection._unsettled_bytes",
    "ServerConnection.request_bytes",
    "WireServer.request_bytes",
)

_DEADLINES = {"Deadlines._buckets": BUCKETS_SWEEP_MIN, "Deadlines._timers": BUCKETS_SWEEP_MIN}  # of calls that are over
_CHUNKS = {  # receive buffers, to be used again
    "ChunkPool._by_size": 8,
    "ChunkPool._by_size[]": 256,
    "ChunkPool._by_size[][]": POOL_BYTES_MAX,
    "ChunkPool._stream": STREAM_CHUNK_BYTES,
}
_STOPPED_WIRE = {**_CHUNKS, "WireServer.routes": 100}

CONNECTED: Bounds = {
    **_DEADLINES,
    **_CHUNKS,
    "ChannelPool._channels": "hosts",
    "WireServer._acceptors": 1,
    "WireServer._listeners": 1,
    "WireServer.connections": "hosts",
    "WireServer.routes": 100,
}

NODE: Bounds = {
    **CONNECTED,
    "Copier._tasks": "extents_made",  # and no more than FINISHED_MAX
    "DirtyBytes._counted": "extents_made",  # until the next checkpoint
    "Inventory._ids_sorted": "extents",
    "Journal._filled": 8,
    "Journal._ready": 8,
    "Journal._set_aside": 8,
    "Segment.holders": "extents_made",
    "Segment.stranded": 8,
    "SealedFile._warm": 8,  # a byte for each part of a file
    "SealedFiles._open": "extents_made",  # how many is looked at with their descriptors
    "Storage._daemons": 3,
    "StoreState._tasks": 3,
    "StoreState.disks": 8,
    "StoreState.quarantined": "extents_made",
    "StoreState.refused": 8,
    "StoreState.refused_disks": 8,
    "StoreState.replicas": "extents",
    "StoreState.tombstones": "extents_made",
    "WireManagerLink._managers": 8,
    "_Task.used": 8,  # sources of a copy
    "_Task.reported": 8,
}

FOLLOWING: Bounds = {
    "HeldLeases._leases": 1,
    "Latch._callbacks": 8,
    "Manager._tasks": 3,
    "MemoryClient.watches": 8,
    "Roster._candidates": 8,
    "State._dead": "nodes",
    "State._extent_order": "extents",
    "State._extents_on": "nodes",
    "State._extents_on[]": "extents",
    "State._listeners": 16,
    "State._listeners[]": 8,
    "State._replica_listeners": 8,
    "State._stream_order": "streams",
    "State._streams_of": "extents",
    "State._streams_of[]": "streams",
    "State._tables": 16,
    "State._tables[]": "extents",
    "State.extents": "extents",
    "State.names": "streams",
    "State.nodes": "nodes",
    "State.open_extents": "streams",
    "State.streams": "streams",
    "StateFollower._ranges": 16,
}

MANAGER: Bounds = {
    **CONNECTED,
    **FOLLOWING,
    "Allocator._prepared": "streams",
    "Allocator._prepared_ids": "streams",
    "Batcher._lanes": 8,
    "Candidates._changed": "nodes",
    "Candidates._kept": "nodes",
    "Collector._odd": "nodes",
    "Collector._odd[]": "extents_made",
    "RevokedConfirmations._numbers": "extents_made",
    "Ensembles._chosen": 16,
    "Ensembles._chosen[]": 24,  # choices ahead
    "Ensembles._chosen[][]": 8,
    "FailureHistory._failures": "nodes",
    "NodeStatus.copies": "extents_made",
    "NodeStatus.disks": 8,
    "NodeStatus.gone_disks_since_s": 8,
    "OwnerChecks._seen": "streams_made",
    "Registry._statuses": "nodes",
    "Registry._up_until_s": "nodes",
    "ReplayCache._by_client": "calls",
    "ReplayCache._by_client[]": "calls",
    "ReplayCache._in_streams": "extents_made",
    "TermTasks._tasks": 16,
}

# Closed: what is left goes with it. Senders and what was heard of nodes and extents are not let go one by one.
CLIENT: Bounds = {
    "Catalog._extents": "extents_made",
    "ExtentReader._reported": 1000,  # bad replicas: told of once
    "ManagerLink._managers": 8,
    "NodeHistory._failed_s": "nodes",
    "NodeSenders._senders": "nodes",
    "ReadPlan._requests": 8,  # of the last plan, by replica
    "SourceHistory._nodes": "nodes",
    "SourceHistory._orders": "extents_made",
    "SourceHistory._orders[][]": 8,
    "SourceHistory.tail_s": 8,
}

_REGIONS: Bounds = {
    "Follower._ranges": 16,
    "PartitionManagerConfig.stream_managers": 8,
    "PartitionServerConfig.partition_managers": 8,
    "PartitionServerConfig.stream_managers": 8,
    "RegionMap._by_id": "streams",
    "RegionMap._starts": "streams",
    "RegionMap.regions": "streams",
}

# Stopped: the same, of the partition layer's processes.
STOPPED_SERVER: Bounds = {
    **CLIENT,
    **_REGIONS,
    "Block._columns": 16,
    "Block.keys": 1000,
    "BlockCache._blocks": 10_000,  # bounded by its bytes
    "Host._regions": "streams_made",
    "Host._starts": "streams_made",
    **_STOPPED_WIRE,
}
STOPPED_MANAGER: Bounds = {**CLIENT, **_REGIONS, **_STOPPED_WIRE, "Manager._tasks": 2, "Roster._candidates": 8}
KEY_VALUE: Bounds = {
    **_REGIONS,
    "Dispatcher._puts": 8,  # servers
    "Dispatcher._reads": 8,
    "Dispatcher._writes": 8,
    "ManagerLink._managers": 8,
}


# Of modules, whatever the processes: caches that are emptied when they are full.
CACHES = (
    "neve.proto.fields.VARINTS",
    "neve.stream_manager.metadata.records._shared_values",
)


def too_much(bounds: Bounds, counts: Counts, *roots: object) -> list[str]:
    held = held_by(*roots, numbers=NUMBERS)
    return [f"{size} {name}" for name, size in sorted(held.items()) if size > counts.bound(bounds.get(name, 0))]
