"""Extents and replicas as rows, from the metadata of one revision.

Invariants: all rows of a scan are of one revision; an open extent's length is how far readers may go, or null.
Neighbours: planning.py chooses extents; batches.py makes Arrow of it; replica_check.py adds what reading tells.
"""

from __future__ import annotations

from typing import Any

from neve.pipeline.core_slices import ScanExtent
from neve.pipeline.snapshot import Snapshot
from neve.proto import stream_manager_pb2 as sm


def extent_row(taken: Snapshot, extent_id: int, length: int | None) -> dict[str, Any]:
    extent = taken.state.extents[extent_id]
    return {
        "revision": taken.revision,
        "extent_id": extent_id,
        "stream_id": extent.stream_id,
        "stream_ids": list(taken.state.streams_of(extent_id)),
        "eversion": extent.eversion,
        "sealed": extent.seal is not None,
        "length": length,
        "digest": extent.seal.digest or None if extent.seal is not None else None,
        "created_ms": extent.created_ms,
        "changed_revision": extent.mod_revision,
        "node_ids": list(extent.node_ids),
        "confirmed_node_ids": list(extent.confirmed),
    }


def replica_row(
    revision: int, extent: ScanExtent, info: sm.ExtentInfo, each: sm.ExtentReplica, rack: str
) -> dict[str, Any]:
    """Without a verdict: that is for who reads it."""
    return {
        "revision": revision,
        "extent_id": extent.extent_id,
        "node_id": each.replica.node_id,
        "disk_uuid": each.replica.disk_uuid,
        "incarnation": f"{each.replica.incarnation:016x}",
        "rack": rack,
        "confirmed": each.confirmed,
        "sealed": extent.sealed,
        "length": extent.end,
        "created_ms": info.created_ms,
        "verdict": None,
        "problem_offset": None,
        "problem": None,
        "digest": None,
        "blocks": None,
        "bytes_read": None,
        "read_from": None,
    }
