"""Authentication of callers by token, the same on both network transports.

Invariants: tokens are compared in constant time and are never logged;
            if a token file cannot be read or parsed, the last good set stays in use and a warning is logged.
Not here:   the rights of a principal (authorisation.py).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from pathlib import Path
from typing import Protocol

from neve.proto.errors import Unauthenticated

log = logging.getLogger(__name__)

ANONYMOUS = "anonymous"


class Authenticator(Protocol):
    def authenticate(self, token: str) -> str:
        """The principal for this token; raises Unauthenticated."""
        ...


class AllowAll:
    """No authentication: for tests and single machines, where loopback is the boundary."""

    def authenticate(self, token: str) -> str:
        return ANONYMOUS


class TokenFile:
    """Tokens from a file with lines `principal token`, which is read again when it changes.

    Blank lines and lines that begin with # are skipped. Only hashes are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._principals: dict[bytes, str] = {}
        self._load()

    def authenticate(self, token: str) -> str:
        if self._changed():
            try:
                self._load()
            except (OSError, ValueError) as error:
                log.error("token_file_unreadable path=%s error=%s: the last good tokens stay", self._path, error)
        digest = hashlib.sha256(token.encode()).digest()
        found = ""
        for known, principal in self._principals.items():  # all of them, so that the time reveals nothing
            if hmac.compare_digest(known, digest):
                found = principal
        if not found:
            raise Unauthenticated(detail="no token was given" if not token else "the token is not known here")
        return found

    def _changed(self) -> bool:
        try:
            return self._read_stamp() != self._stamp
        except OSError:
            return True

    def _read_stamp(self) -> tuple[int, int, int]:
        stat = os.stat(self._path)
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self) -> None:
        stamp = self._read_stamp()
        principals: dict[bytes, str] = {}
        for number, line in enumerate(self._path.read_text().splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2:
                raise ValueError(f"{self._path}, line {number}: expected `principal token`")
            principals[hashlib.sha256(words[1].encode()).digest()] = words[0]
        self._principals = principals
        self._stamp = stamp
