"""The configuration of the connection to etcd: endpoints, TLS, credentials, limits.

Invariants: a configuration that cannot work is refused at construction, with the name of the setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from neve.proto.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files for TLS. Without `ca_file` the system's authorities are trusted. A client certificate is optional."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidArgument(what="etcd.tls", detail="cert_file and key_file go together")


_ABOVE_ZERO = ("call_timeout_s", "attempt_timeout_s", "connect_timeout_s")


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """`endpoints` are `host:port`, with or without `http://` or `https://`; a host may be a name or an address."""

    endpoints: tuple[str, ...]
    tls: EtcdTls | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    call_timeout_s: float = 5.0  # of a whole call, including all attempts
    attempt_timeout_s: float = 2.0  # of one attempt of a read: above etcd's default election timeout of 1 s
    connect_timeout_s: float = 1.0  # after this, the next endpoint is tried

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidArgument(what="etcd.endpoints", detail="at least one is needed")
        for endpoint in self.endpoints:
            if endpoint.startswith("https://") and self.tls is None:
                raise InvalidArgument(what="etcd.endpoints", detail=f"{endpoint} needs [etcd.tls]")
            address(endpoint)
        for name in _ABOVE_ZERO:
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgument(what=f"etcd.{name}", detail=f"must be above 0, not {getattr(self, name)}")
        if bool(self.user) != bool(self.password):
            raise InvalidArgument(what="etcd.user", detail="user and password go together")


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """TLS and credentials for etcd, for processes that get the endpoints from a server."""

    tls: EtcdTls | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def to(self, endpoints: Iterable[str]) -> EtcdConfig:
        return EtcdConfig(tuple(endpoints), tls=self.tls, user=self.user, password=self.password)


def address(endpoint: str) -> str:
    """The bare `host:port` of an endpoint."""
    bare = endpoint.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, _, port = bare.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgument(what="etcd.endpoints", detail=f"{endpoint!r} is not host:port")
    return bare
