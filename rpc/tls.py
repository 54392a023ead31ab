"""TLS with files that may be replaced at any time: certificates are reloaded without a restart.

Invariants: a new connection uses the present files; an open connection keeps those with which it began;
            if files are half written or do not fit together, the last good set stays in use, and a warning is logged;
            with `ca` set on a server, clients must show a certificate of that authority (mutual TLS).
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for TLS. A server needs `cert` and `key`; a client needs `ca`, and both others if TLS is mutual."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""  # the name that a client expects in the server's certificate; empty: the host of the address

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key go together; only one of them is set")

    def paths(self) -> list[Path]:
        return [path for path in (self.ca, self.cert, self.key) if path is not None]


class Reloading(Generic[T]):
    """A value that is made from files, and made again when they change."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], T]) -> None:
        self._files = files
        self._make = make
        self._stamp = self._read_stamp()
        self._value = make(files)  # if the first set is bad, the ssl module's error stops the start

    def current(self) -> T:
        """The value for the present files, or the last good value."""
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._value = self._make(self._files)
                self._stamp = stamp
                log.info("tls_reloaded cert=%s", self._files.cert)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            log.error("tls_reload_failed cert=%s error=%s: the last good files stay in use", self._files.cert, error)
        return self._value

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        stats = [os.stat(path) for path in self._files.paths()]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    if files.cert is None or files.key is None:
        raise ValueError("tls: a server needs cert and key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    if files.ca is not None:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    if files.ca is None:
        raise ValueError("tls: a client needs ca, the authority that signed the servers' certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(files.ca)
    if files.cert is not None and files.key is not None:
        context.load_cert_chain(files.cert, files.key)
    return context
