"""The configuration of a stream manager: a TOML file, overridden by `--set key=value`.

cluster = "main"
advertise = "10.0.0.1:3401"                 # empty: where we listen
[listen]
wire = "10.0.0.1:3401"
[etcd]
endpoints = ["10.0.0.1:2379"]
[defaults]
replicas = 3
[health]
dead_after_s = 30
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.meta.etcd.config import EtcdConfig
from neve.proto.placement import DEFAULT_PLACEMENT
from neve.rpc import config
from neve.rpc.front import FrontConfig
from neve.rpc.limits import MIB
from neve.rpc.logs import Logging
from neve.stream_manager.metadata.records import EXTENT_BYTES_LIMIT, REPLICAS_MAX
from neve.stream_manager.nodes.core.health import HealthConfig

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Table [defaults]: the values for streams that do not set them."""

    replicas: int = 3
    extent_bytes_max: int = GIB
    placement: str = DEFAULT_PLACEMENT

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise ValueError(f"replicas must be 1 to {REPLICAS_MAX}, not {self.replicas}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Table [timeouts], in seconds."""

    node_call_s: float = 3.0  # create, raise, fence: a hung node delays a flow by at most this (scenario T46)
    node_seal_s: float = 60.0  # a node reads and verifies up to 2 GiB
    wait_confirmed_s: float = 60.0

    def __post_init__(self) -> None:
        config.check_above_zero(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Table [limits]: bounds for requests, and for the work in flight."""

    extent_bytes_min: int = MIB  # smaller extents are more metadata than data; tests use them
    requests_in_flight_max: int = 10_000

    def __post_init__(self) -> None:
        config.check_above_zero(self)
        if not 1 <= self.extent_bytes_min <= EXTENT_BYTES_LIMIT:
            raise ValueError(f"extent_bytes_min must be 1 to {EXTENT_BYTES_LIMIT}, not {self.extent_bytes_min}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Table [placing]."""

    # A disk with less gets no new replicas; nodes have thresholds of their own (scenario T44)
    free_bytes_min: int = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Table [recovery]: replacing lost replicas, and asking for missing confirmations (protocol rules 20 and 22)."""

    delay_s: float = 30.0  # after a death, because of rolling restarts; a second loss ends it
    unread_delay_s: float = 30.0  # after this a tail without owner that cannot be read to its end is sealed
    tasks_max: int = 64
    tasks_per_node_max: int = 4  # in which a node takes part as target or as first source
    bytes_per_s_max: int = 500 * MIB  # of all copies together
    copy_bytes_per_s_max: int = 100 * MIB  # of one copy
    poll_s: float = 1.0
    retry_delay_s: float = 5.0
    retry_delay_s_max: float = 120.0
    attempts_max: int = 3  # at one node; then another one is chosen
    reconcile_max: int = 64  # extents that are asked for confirmations at a time

    def __post_init__(self) -> None:
        config.check_above_zero(self, but=("delay_s",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """Table [collecting]: deleting replicas that are not in metadata (protocol rule 24)."""

    grace_s: float = 3600.0  # an extent is linked within half of it after its creation, or never
    extra_replica_grace_s: float = 600.0  # for a replica that metadata does not list: its node may be listed again
    interval_s: float = 30.0

    def __post_init__(self) -> None:
        config.check_above_zero(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    cluster: str
    etcd: EtcdConfig = field(default_factory=lambda: EtcdConfig(endpoints=("127.0.0.1:2379",)))
    listen: FrontConfig = field(default_factory=FrontConfig)
    advertise: str = ""  # the address for nodes and clients; empty: the listening address
    advertise_etcd: list[str] = field(default_factory=list)  # the addresses for clients; empty: the endpoints above
    node_token: str = ""  # the manager's token for calls to nodes
    lease_ttl_s: int = 5
    log: Logging = field(default_factory=Logging)
    defaults: Defaults = field(default_factory=Defaults)
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    health: HealthConfig = field(default_factory=HealthConfig)
    placing: Placing = field(default_factory=Placing)
    recovery: Recovery = field(default_factory=Recovery)
    collecting: Collecting = field(default_factory=Collecting)
    topology: str = ""  # file:PATH, script:PATH or python:MODULE:FUNCTION, from addresses to /region/rack: topology.py
    drain_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.cluster or not all(c.isalnum() or c in "-_." for c in self.cluster):
            raise ValueError(f"cluster must be letters, digits, '-', '_' and '.', not {self.cluster!r}")
        if self.lease_ttl_s < 2:
            raise ValueError("lease_ttl_s must be at least 2: three keep-alives must fit into it")
        if self.topology and not self.topology.startswith(("file:", "script:", "python:")):
            raise ValueError(f"topology must be file:…, script:… or python:…, not {self.topology!r}")
        least, wanted = self.limits.extent_bytes_min, self.defaults.extent_bytes_max
        if not least <= wanted <= EXTENT_BYTES_LIMIT:
            raise ValueError(f"defaults.extent_bytes_max must be {least} to {EXTENT_BYTES_LIMIT} bytes, not {wanted}")


def load(path: Path | None, assignments: Sequence[str] = ()) -> ManagerConfig:
    """Read and check the configuration. InvalidArgument says what is wrong."""
    return config.load(ManagerConfig, path, assignments)
