"""The configuration of a partition manager: a TOML file, overridden by `--set key=value`.

cluster = "main"
stream_managers = ["10.0.0.1:3401"]
advertise = "10.0.0.1:3701"                 # empty: where we listen
[listen]
wire = "10.0.0.1:3701"
[etcd]
endpoints = ["10.0.0.1:2379"]
[balance]
split_bytes = "8 GiB"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.meta.etcd.config import EtcdConfig
from neve.partition_manager.core_balance import BalanceConfig
from neve.rpc import config
from neve.rpc.front import FrontConfig
from neve.rpc.logs import Logging


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Table [timeouts], in seconds."""

    prepare_split_s: float = 10.0  # for a server to have all its appends acknowledged
    prepare_merge_s: float = 60.0  # the same, and a flush of its memory
    reshape_s: float = 20.0  # for the stream manager to seal and to commit; the server's freeze bounds it, too

    def __post_init__(self) -> None:
        config.check_above_zero(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Table [limits]."""

    requests_in_flight_max: int = 1000

    def __post_init__(self) -> None:
        config.check_above_zero(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionManagerConfig:
    cluster: str
    stream_managers: list[str]
    etcd: EtcdConfig = field(default_factory=lambda: EtcdConfig(endpoints=("127.0.0.1:2379",)))
    listen: FrontConfig = field(default_factory=FrontConfig)
    advertise: str = ""  # the address for servers and clients; empty: the listening address
    token: str = ""  # the manager's token for calls to stream managers and partition servers
    lease_ttl_s: int = 5
    start_grace_s: float = 5.0  # for how long a server that a new term has not seen yet keeps its partitions
    log: Logging = field(default_factory=Logging)
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    drain_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.stream_managers:
            raise ValueError("stream_managers must name at least one address")
        if self.lease_ttl_s < 2:
            raise ValueError("lease_ttl_s must be at least 2: three keep-alives must fit into it")


def load(path: Path | None, assignments: Sequence[str] = ()) -> PartitionManagerConfig:
    """Read and check the configuration. InvalidArgument says what is wrong."""
    return config.load(PartitionManagerConfig, path, assignments)
