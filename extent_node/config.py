"""The settings of an extent node: a TOML file, and `--set key=value` over it.

cluster = "main"
disks = [                                    # a folder, or better: a folder and the uuid of its disk
    {folder = "/data/disk1", uuid = "6d0c3f0e-6f2b-4a57-9d0e-2f6d3f1f8a11"},
    "/data/disk2",
]
journal = "/data/journal"
managers = ["10.0.0.1:3401"]                # without any, `node_id` must be given
[listen]
wire = "10.0.0.7:3501"
[store]
dirty_bytes_hard = "1 GiB"
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.extent_node.store.config import DiskConfig, StoreConfig
from neve.proto.errors import InvalidArgument
from neve.rpc import config
from neve.rpc.front import FrontConfig
from neve.rpc.limits import MIB
from neve.rpc.logs import Logging
from neve.rpc.wire.sockets import split_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The node's place, for placement."""

    region: str = ""
    rack: str = ""
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskEntry:
    """A disk of the node.

    With its uuid, another disk in the folder, or none, is refused by name: the node starts without it and never formats
    the folder. `neve inspect FOLDER` and the node's log show the uuid.
    """

    folder: Path
    uuid: str = ""

    def __post_init__(self) -> None:
        if self.uuid:
            try:
                canonical = str(uuid.UUID(self.uuid))
            except ValueError:
                raise ValueError(f"{self.uuid!r} is not a uuid") from None
            object.__setattr__(self, "uuid", canonical)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The settings of a node apart from its store's."""

    cluster: str
    disks: list[DiskEntry]
    journal: Path
    node_id: int = 0  # 0: from the disks' labels, or from the manager
    managers: list[str] = field(default_factory=list)
    manager_token: str = ""  # sent to the managers and to other nodes
    # Whether a node formats its folders automatically if all of them are empty. The default is yes, unless `node_id` is
    # set. A node without a configured id gets a new one from the manager, which expects no replicas of it. With a
    # configured id, empty folders may be a device that was wiped or is not mounted. If they were formatted, the node
    # would report "never existed" for replicas that it had. So the operator must confirm it, by this key or by
    # --format-disk.
    format_empty_disks: bool | None = None
    listen: FrontConfig = field(default_factory=FrontConfig)
    advertise_wire: str = ""  # the address for others; empty: the listening address
    advertise_grpc: str = ""
    location: Location = field(default_factory=Location)
    log: Logging = field(default_factory=Logging)

    threads: int = 16  # for blocking calls: fsync, reads of cold ranges, verification
    # fdatasyncs that run in the kernel's own workers at a time, which costs less than a thread does. Further ones run
    # in threads; 0: all of them.
    kernel_syncs_max: int = 16
    heartbeat_s: float = 1.0  # until the manager sets another interval
    report_interval_s: float = 60.0
    copies_max: int = 4
    copy_bytes_per_s_max: int = 200 * MIB
    scrub_bytes_per_s: int = 20 * MIB  # 0: no scrubbing
    drain_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.cluster:
            raise ValueError("cluster must not be empty")
        if not self.disks:
            raise ValueError("disks must name at least one folder")
        if len({disk.folder.resolve() for disk in self.disks}) < len(self.disks):
            raise ValueError("disks names a folder twice")
        uuids = [disk.uuid for disk in self.disks if disk.uuid]
        if len(set(uuids)) < len(uuids):
            raise ValueError("disks names a uuid twice")
        if not self.managers and not self.node_id:
            raise ValueError("either managers or node_id is needed: without a manager, a node's id must be configured")
        for name in ("threads", "heartbeat_s", "report_interval_s", "copies_max", "copy_bytes_per_s_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.kernel_syncs_max < 0:
            raise ValueError("kernel_syncs_max must not be below 0")
        for address in self.managers:
            try:
                split_address(address)
            except InvalidArgument as error:
                raise ValueError(f"managers: {error.detail}") from error

    @property
    def formats_automatically(self) -> bool:
        return not self.node_id if self.format_empty_disks is None else self.format_empty_disks


def load(path: Path | None, assignments: Sequence[str] = ()) -> tuple[NodeConfig, StoreConfig]:
    """The node's configuration and its store's; InvalidArgument names the error. The store has no node id yet."""
    table = config.read_table(path, assignments)
    store_table = table.pop("store", {})
    if isinstance(table.get("disks"), list):  # a folder alone stands for a table
        table["disks"] = [{"folder": disk} if isinstance(disk, str) else disk for disk in table["disks"]]
    node = config.build(NodeConfig, table)
    if not isinstance(store_table, dict):
        raise InvalidArgument(what="config key store", detail=f"must be a table, not {store_table!r}")
    for key in ("cluster", "node_id", "disks", "journal_folder"):
        if key in store_table:
            raise InvalidArgument(what=f"config key store.{key}", detail="is set at the top of the file, not here")
    identity = {
        "cluster": node.cluster,
        "node_id": node.node_id,
        "disks": [{"folder": str(disk.folder), "expected_uuid": disk.uuid} for disk in node.disks],
        "journal_folder": str(node.journal),
    }
    store = config.build(StoreConfig, {**store_table, **identity}, "store")
    marks = store.marks
    if not 0 < marks.low <= marks.high <= 1:  # a share above 1 is no limit, which only tests need
        detail = f"0 < low <= high <= 1 must hold, not low {marks.low} and high {marks.high}"
        raise InvalidArgument(what="config table [store.marks]", detail=detail)
    return node, store


__all__ = ["DiskConfig", "DiskEntry", "Location", "NodeConfig", "load"]
