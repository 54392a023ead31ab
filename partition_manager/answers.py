"""Descriptions of regions and servers for replies."""

from __future__ import annotations

from collections.abc import Mapping

from neve.partition_manager.region_store import Snapshot
from neve.proto import partition_manager_pb2 as pm

PAGE_MAX = 1000  # regions in one reply


def region_message(region: pm.RegionRecord, servers: Mapping[int, pm.PartitionServerEntry]) -> pm.Region:
    entry = servers.get(region.server_id)
    return pm.Region(
        partition_id=region.partition_id,
        start=region.start,
        end=region.end,
        server_id=region.server_id,
        address=entry.wire_address if entry is not None else "",
        version=region.version,
        log_stream_id=region.log_stream_id,
        row_stream_id=region.row_stream_id,
        meta_stream_id=region.meta_stream_id,
    )


def region_now(snapshot: Snapshot, partition_id: int) -> pm.Region:
    """The region as it is now; only its id if it no longer exists."""
    if snapshot.map is None or not snapshot.map.has(partition_id):
        return pm.Region(partition_id=partition_id)
    return region_message(snapshot.map.get(partition_id), snapshot.servers)


def list_regions(snapshot: Snapshot, request: pm.ListRegionsRequest) -> pm.ListRegionsReply:
    if snapshot.map is None:
        return pm.ListRegionsReply()
    limit = min(request.limit or PAGE_MAX, PAGE_MAX)
    regions = snapshot.map.after(request.after_key)
    return pm.ListRegionsReply(
        regions=[region_message(region, snapshot.servers) for region in regions[:limit]],
        version=snapshot.map.version,
        more=len(regions) > limit,
    )
