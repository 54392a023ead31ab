"""What every transport knows of a method: its name, its stable number and its two message types.

`proto/methods.py` (generated) has one `Method` for each rpc of the .proto files, and a protocol class for each
service, so that a type checker sees which request goes with which reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

Req = TypeVar("Req", bound=Message)
Rep = TypeVar("Rep", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Rep]):
    """One rpc. `handler` is the name of the servicer's method that answers it."""

    service: str  # "neve.ExtentNode"
    name: str  # "AppendBlock"
    handler: str  # "append_block"
    method_id: int
    request: type[Req]
    reply: type[Rep]

    @property
    def path(self) -> str:
        """The method's name in gRPC and in messages to people."""
        return f"/{self.service}/{self.name}"
