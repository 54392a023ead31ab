"""What can be set about an extent node: a TOML file, and `--set key=value` over it.

cluster = "main"
disks = ["/data/disk1", "/data/disk2"]      # empty folders become disks of this node
journal = "/data/journal"
managers = ["10.0.0.1:3401"]                # without any, `node_id` must be given
[listen]
wire = "10.0.0.7:3501"
[store]
dirty_bytes_hard = "1 GiB"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.extent_node.store_config import DiskConfig, StoreConfig
from neve.proto.errors import InvalidArgument
from neve.rpc import config
from neve.rpc.front import FrontConfig
from neve.rpc.limits import MIB
from neve.rpc.wire.sockets import split_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the node stands, for placement."""

    region: str = ""
    rack: str = ""
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    json: bool = False
    level: str = "INFO"

    def __post_init__(self) -> None:
        if self.level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"level must be DEBUG, INFO, WARNING or ERROR, not {self.level!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    cluster: str
    disks: list[Path]
    journal: Path
    node_id: int = 0  # 0: as the disks say, or as the manager gives
    managers: list[str] = field(default_factory=list)
    manager_token: str = ""  # what this node shows to the managers and to other nodes
    format_empty_disks: bool = True
    listen: FrontConfig = field(default_factory=FrontConfig)
    advertise_wire: str = ""  # what others dial; empty: where we listen
    advertise_grpc: str = ""
    location: Location = field(default_factory=Location)
    log: Logging = field(default_factory=Logging)

    threads: int = 16  # for what blocks: fsync, reads of cold ranges, verification
    heartbeat_s: float = 1.0  # until the manager says otherwise
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
        if len({disk.resolve() for disk in self.disks}) < len(self.disks):
            raise ValueError("disks names a folder twice")
        if not self.managers and not self.node_id:
            raise ValueError("either managers or node_id is needed: a node without a manager must be told its id")
        for name in ("threads", "heartbeat_s", "report_interval_s", "copies_max", "copy_bytes_per_s_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for address in self.managers:
            try:
                split_address(address)
            except InvalidArgument as error:
                raise ValueError(f"managers: {error.detail}") from error


def load(path: Path | None, assignments: Sequence[str] = ()) -> tuple[NodeConfig, StoreConfig]:
    """The node's configuration and its store's; InvalidArgument names what is wrong. The store has no node id yet."""
    table = config.read_table(path, assignments)
    store_table = table.pop("store", {})
    node = config.build(NodeConfig, table)
    if not isinstance(store_table, dict):
        raise InvalidArgument(what="config key store", detail=f"must be a table, not {store_table!r}")
    for key in ("cluster", "node_id", "disks", "journal_folder"):
        if key in store_table:
            raise InvalidArgument(what=f"config key store.{key}", detail="is not set here but at the top of the file")
    identity = {
        "cluster": node.cluster,
        "node_id": node.node_id,
        "disks": [{"folder": str(disk)} for disk in node.disks],
        "journal_folder": str(node.journal),
    }
    return node, config.build(StoreConfig, {**store_table, **identity}, "store")


__all__ = ["DiskConfig", "Location", "NodeConfig", "load"]
