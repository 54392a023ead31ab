"""Lists of what a node has: its replicas, one or a page of them, and its disks. Reads the store's state only."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from neve.extent_node import core
from neve.extent_node.disk.disk import DiskState
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.state import StoreState
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import NeveError

_DISK_STATES = {
    DiskState.WRITABLE: pb.DiskInfo.WRITABLE,
    DiskState.READ_ONLY: pb.DiskInfo.READ_ONLY,
    DiskState.OFFLINE: pb.DiskInfo.OFFLINE,
}


class Inventory:
    """Answers queries about a store's replicas and disks."""

    def __init__(self, store: StoreState) -> None:
        self._store = store
        self._ids_sorted: list[int] = []

    def describe(self, request: pb.DescribeReplicaRequest) -> pb.ReplicaInfo:
        """The replica that the request names; raises the reason if it does not exist."""
        extent_id = request.extent_id
        state = core.present(self._store.existing(extent_id), wanted=request.replica, extent_id=extent_id)
        if isinstance(state, NeveError):
            raise state
        return _info(self._store.replicas[extent_id])

    def list(self, *, after_extent_id: int, limit: int, unsealed_only: bool) -> tuple[Sequence[pb.ReplicaInfo], bool]:
        """A page of replicas by extent id, and whether there are more."""
        replicas = self._store.replicas
        if self._store.names_changed:  # sorting 100,000 ids takes 20 ms: too long for every page
            self._store.names_changed = False
            self._ids_sorted = sorted(replicas)
        chosen: list[pb.ReplicaInfo] = []
        for extent_id in self._ids_sorted[bisect.bisect_right(self._ids_sorted, after_extent_id) :]:
            replica = replicas[extent_id]
            if unsealed_only and replica.state.seal is not None:
                continue
            if len(chosen) == limit:
                return chosen, True
            chosen.append(_info(replica))
        return chosen, False

    def disks(self) -> Sequence[pb.DiskInfo]:
        """State and usage of each disk in use. Refused folders are listed as offline."""
        infos = [
            pb.DiskInfo(
                disk_uuid=disk.uuid,
                state=_DISK_STATES[disk.state],
                capacity_bytes=disk.usage.capacity_bytes,
                free_bytes=disk.usage.free_bytes,
                extents=disk.extents,
                reason=disk.reason,
            )
            for disk in self._store.disks.values()
        ]
        by_folder = {disk.folder: disk.expected_uuid for disk in self._store.config.disks}
        for folder, reason in self._store.refused:
            infos.append(
                pb.DiskInfo(
                    disk_uuid=by_folder.get(folder, ""), state=pb.DiskInfo.OFFLINE, reason=f"{folder}: {reason}"
                )
            )
        return infos


def _info(replica: Replica) -> pb.ReplicaInfo:
    info = core.replica_info(replica.state)
    if not replica.verified and replica.state.seal is None:
        info.kind = pb.LengthAnswer.UNSPECIFIED  # its bytes have not been verified since the unclean stop
    return info
