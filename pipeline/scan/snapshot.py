"""The metadata of one revision: streams, extents, nodes; what a whole scan or job is planned with.

Managers answer a listing page by page, each page from what they know by then. A job that deletes must not put pages of
different moments together, so all of it is read from etcd itself, at one revision.

Invariants: everything in a snapshot stood at `revision`, and nothing is left out: an error of any page is raised;
            an older revision can be read until etcd has compacted it (`Compacted`).
"""

from __future__ import annotations

from dataclasses import dataclass

from neve.client.command.options import ETCD_CA_VARIABLE
from neve.meta import keys
from neve.meta.etcd.client import EtcdStore
from neve.meta.follower import Follower
from neve.meta.regions import RegionsState
from neve.pipeline.scan.connections import Link
from neve.pipeline.scan.options import ScanOptions
from neve.proto import partition_manager_pb2 as pm
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, MetaUnavailable, NotFound, WrongCluster
from neve.stream_manager.metadata import describe
from neve.stream_manager.metadata.follower import StateFollower
from neve.stream_manager.metadata.records import Stream
from neve.stream_manager.metadata.state import State


@dataclass(frozen=True, slots=True)
class Snapshot:
    cluster: str
    state: State
    regions: RegionsState

    @property
    def revision(self) -> int:
        return self.state.revision

    def extent(self, extent_id: int) -> sm.ExtentInfo:
        return describe.extent_info(self.state, self.state.extents[extent_id], with_streams=True)

    def region(self, partition_id: int) -> pm.RegionRecord:
        stored = self.regions.regions.get(partition_id)
        if stored is None:
            raise NotFound(kind="partition", name=str(partition_id), detail=f"at revision {self.revision}")
        return stored.record

    def stream(self, key: int | str) -> Stream:
        """By id or name."""
        name = self.state.names.get(key) if isinstance(key, str) else None
        stream_id = name.stream_id if name is not None else key
        stream = self.state.streams.get(stream_id) if isinstance(stream_id, int) else None
        if stream is None:
            raise NotFound(kind="stream", name=str(key), detail=f"at revision {self.revision}")
        return stream


async def take(link: Link, options: ScanOptions) -> Snapshot:
    """Of the revision that the options name, or of the newest."""
    described = await link.describe_cluster()
    if described.cluster != options.cluster:
        raise WrongCluster(expected=described.cluster, got=options.cluster)
    if not described.meta_endpoints:
        raise MetaUnavailable(detail="the managers did not tell where the metadata store is")
    access = options.etcd()
    if access.tls is None and any(endpoint.startswith("https://") for endpoint in described.meta_endpoints):
        detail = f"{', '.join(described.meta_endpoints)} want TLS: give etcdCa, or ${ETCD_CA_VARIABLE}"
        raise InvalidArgument(what="etcdCa", detail=detail)
    store = await EtcdStore.connect(access.to(described.meta_endpoints))
    try:
        root = described.meta_root.encode()
        state = await StateFollower(store, root).read(revision=options.revision)
        regions = Follower(
            store, lambda: RegionsState(root), ranges=keys.region_ranges(root), watched=keys.region_span(root)
        )
        found = await regions.read(revision=state.revision)
    finally:
        await store.close()
    return Snapshot(described.cluster, state, found)
