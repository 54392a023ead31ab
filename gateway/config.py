"""The configuration of a gateway: a TOML file, and `--set key=value` over it.

cluster = "main"
managers = ["10.0.0.1:3701"]                # partition managers
[listen]
http = "10.0.0.1:3950"
status = "127.0.0.1:3951"                   # /metrics, /health, /ready; empty: none
token_file = "/etc/neve/gateway-tokens"     # lines of `principal token`; without it everybody is welcome
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neve.rpc import config
from neve.rpc.limits import MIB
from neve.rpc.logs import Logging
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.sockets import split_listen_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Table [listen]. An address is host:port; port 0 takes a free one."""

    http: str = "127.0.0.1:3950"
    status: str = ""
    token_file: Path | None = None
    tls: TlsFiles | None = None  # of the HTTP port: cert and key; with ca, clients must show a certificate

    def __post_init__(self) -> None:
        for address in filter(None, (self.http, self.status)):
            split_listen_address(address)
        if not self.http:
            raise ValueError("http must not be empty")
        if self.tls is not None and self.tls.cert is None:
            raise ValueError("tls needs cert and key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Table [limits]."""

    connections_max: int = 1000  # with what each may hold (two parts of a value), the bound of the memory
    buffer_bytes_max: int = 64 * MIB  # of values that are on their way to servers
    part_bytes: int = 1 * MIB  # of a value that is streamed through
    list_keys_max: int = 10_000  # in one answer
    list_bytes_max: int = 4 * MIB  # of keys in one answer, as they are written there
    idle_timeout_s: float = 30.0  # without a byte of a body, in either direction
    operation_timeout_s: float = 30.0  # of one operation of the cluster

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    cluster: str
    managers: list[str]
    listen: Listen = field(default_factory=Listen)
    token: str = ""  # what the gateway shows to managers and servers
    tls: TlsFiles | None = None  # of the connections to them
    limits: Limits = field(default_factory=Limits)
    log: Logging = field(default_factory=Logging)
    drain_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.managers:
            raise ValueError("managers must name at least one address")


def load(path: Path | None, assignments: Sequence[str] = ()) -> GatewayConfig:
    """InvalidArgument names what is wrong."""
    return config.load(GatewayConfig, path, assignments)
