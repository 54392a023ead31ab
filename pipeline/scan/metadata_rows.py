"""Extents and replicas as rows, from the metadata of one revision; and the files that nodes say they hold.

Invariants: all rows of a scan are of one revision; an open extent's length is how far readers may go, or null.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from neve.pipeline.core.slices import ScanExtent
from neve.pipeline.scan.connections import Link
from neve.pipeline.scan.snapshot import Snapshot
from neve.proto import extent_node_pb2 as en
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ProtocolViolation, TransportError

FILES_PER_PAGE = 1_000
PAGE_TRIES = 3
PAGE_PAUSE_S = 1.0


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
    """A row without a verdict, which the task that reads the replica adds."""
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


def file_rows(link: Link, revision: int, node_id: int, address: str) -> Iterator[dict[str, Any]]:
    """All of a node's, page by page; a page that fails is tried again, and then fails the listing as a whole (T36)."""
    request = en.ListReplicasRequest(limit=FILES_PER_PAGE)
    while True:
        reply = link.run(_page(link, address, request))
        for found in reply.replicas:
            if found.replica.node_id != node_id:  # it has moved, and another node has its address: all would be orphans
                detail = f"node {found.replica.node_id} answers at {address}, where metadata has node {node_id}"
                raise ProtocolViolation(detail=detail)
            yield {
                "revision": revision,
                "node_id": node_id,
                "disk_uuid": found.replica.disk_uuid,
                "extent_id": found.extent_id,
                "incarnation": f"{found.replica.incarnation:016x}",
                "eversion": found.eversion,
                "sealed": found.HasField("seal"),
                "length": found.length,
                "created_ms": found.created_ms,
            }
        if not reply.more:
            return
        if not reply.replicas or reply.replicas[-1].extent_id <= request.after_extent_id:
            raise ProtocolViolation(detail=f"node {node_id} lists its replicas without end")
        request.after_extent_id = reply.replicas[-1].extent_id


async def _page(link: Link, address: str, request: en.ListReplicasRequest) -> en.ListReplicasReply:
    for attempt in range(PAGE_TRIES):
        try:
            return (await link.ask_node(address, methods.EXTENT_NODE_LIST_REPLICAS, request))[0]
        except TransportError:
            if attempt + 1 == PAGE_TRIES:
                raise
            await asyncio.sleep(PAGE_PAUSE_S)
    raise AssertionError(PAGE_TRIES)
