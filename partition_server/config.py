"""The configuration of a partition server: a TOML file, with `--set key=value` on top.

cluster = "main"
stream_managers = ["10.0.0.1:3401"]
partition_managers = ["10.0.0.1:3701"]
server_id = 1                               # 0: the manager gives one at each start
[listen]
wire = "10.0.0.1:3801"
[engine]
memtable_bytes = "64 MiB"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.meta.etcd.config import EtcdAccess
from neve.partition_server.engine.config import EngineConfig
from neve.rpc import config
from neve.rpc.front import FrontConfig
from neve.rpc.limits import MIB
from neve.rpc.logs import Logging


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Table [serving]: how partitions are loaded, held and given up."""

    loads_at_once: int = 4  # each load reads its log as fast as it can
    load_retry_s_max: float = 2.0
    frozen_ms: int = 5000  # for a split or merge; then the partition is loaded again as the map says
    hold_s: float = 10.0  # how long a call waits for a partition that is being loaded
    held_calls_max: int = 20_000  # waiting calls of all partitions; further ones are refused
    flush_on_stop: bool = False  # makes the next load faster and the stop slower

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionServerConfig:
    cluster: str
    stream_managers: list[str]
    partition_managers: list[str]
    server_id: int = 0
    listen: FrontConfig = field(default_factory=FrontConfig)
    advertise: str = ""  # the address that clients use; empty: the one we listen on
    token: str = ""  # authenticates this server to managers and nodes
    etcd: EtcdAccess = field(default_factory=EtcdAccess)  # TLS and a user; the managers supply the endpoints
    lease_ttl_s: int = 10  # how long the partitions of a dead server stay without a server
    heartbeat_s: float = 1.0
    memory_bytes_max: int = 256 * MIB  # all memtables; at the limit, writes wait for flushes
    cache_bytes_max: int = 256 * MIB  # table blocks
    multi_reply_bytes_max: int = 4 * MIB  # values in the reply to one Multi; clients fetch the others separately
    log: Logging = field(default_factory=Logging)
    serving: Serving = field(default_factory=Serving)
    engine: EngineConfig = field(default_factory=EngineConfig)
    drain_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("stream_managers", "partition_managers"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one address")
        if self.lease_ttl_s < 2:
            raise ValueError("lease_ttl_s must be at least 2, because three keep-alives have to fit into it")
        config.check_above_zero(self, but=("server_id", "cache_bytes_max", "drain_timeout_s"))


def load(path: Path | None, assignments: Sequence[str] = ()) -> PartitionServerConfig:
    """Load the configuration. InvalidArgument names the wrong setting."""
    return config.load(PartitionServerConfig, path, assignments)
