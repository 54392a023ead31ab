"""Authorisation: the rights of principals. Every server asks an `Authoriser` before it executes a call.

Invariants: an authoriser decides at once: it neither waits nor changes anything;
            it sees the original request, so that a rule may depend on the names in it.
Not here:   the identity of the caller (auth.py).
"""

from __future__ import annotations

from typing import Protocol

from google.protobuf.message import Message


class Authoriser(Protocol):
    def authorise(self, principal: str, method: str, request: Message) -> None:
        """Raise PermissionDenied unless `principal` may make this call of `method`, such as "CreateStream"."""
        ...


class PermitAll:
    """No rules: every principal may make every call."""

    def authorise(self, principal: str, method: str, request: Message) -> None:
        pass
