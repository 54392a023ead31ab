"""What travels on a simulated connection: bytes, as on the real one.

Invariant:  nothing but bytes and numbers crosses, so that the two sides never share an object: a sender that changes a
            message or a buffer after sending it cannot be seen by the receiver.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import DecodeError, Message

from neve.proto.errors import InvalidArgument, ProtocolViolation
from neve.proto.method import Rep
from neve.rpc.grpc_message import PAYLOAD, check_sizes, has_payload, require_payload
from neve.rpc.limits import Limits
from neve.rpc.service import Buffer


class Kind(Enum):
    """The kinds of the wire (docs/formats/wire.md), and the end of a TCP connection."""

    HELLO = "hello"
    WELCOME = "welcome"
    REFUSED = "refused"  # the handshake's other answer; carries an Error
    REQUEST = "request"
    REPLY = "reply"
    ERROR = "error"
    CANCEL = "cancel"
    GOAWAY = "goaway"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    kind: Kind
    call_id: int = 0
    method_id: int = 0
    timeout_s: float = 0.0  # of a request: how long the caller will wait from now on
    message: bytes = b""
    attachment: bytes = b""

    def size_bytes(self) -> int:
        return len(self.message) + len(self.attachment)

    def fingerprint(self) -> str:
        """For the trace: the same in every process that sent the same bytes."""
        crc = zlib.crc32(self.attachment, zlib.crc32(self.message))
        return f"{self.kind.value} call={self.call_id} method={self.method_id:#06x} {self.size_bytes()} B {crc:08x}"


def pack(message: Message, attachment: Sequence[Buffer], *, limits: Limits, what: str) -> tuple[bytes, bytes]:
    """Message and attachment as fresh bytes. Refuses what a network transport would refuse, or would carry wrongly."""
    kind = type(message)
    if has_payload(kind) and getattr(message, PAYLOAD):
        raise InvalidArgument(what=PAYLOAD, detail=f"{what}: bulk bytes go into the attachment")
    joined = b"".join(attachment)
    if joined:
        require_payload(kind)
    # Deterministic, or the order of a map's entries would make traces differ between processes.
    data = message.SerializeToString(deterministic=True)
    check_sizes(limits, what, message_bytes=len(data), attachment_bytes=len(joined))
    return data, joined


def unpack(kind: type[Rep], data: bytes) -> Rep:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(detail=f"not a {kind.DESCRIPTOR.full_name}: {error}") from None
