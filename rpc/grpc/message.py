"""Conversion between a message with an attachment and one gRPC message, which has the attachment as field `payload`.

Invariants: `payload` is field 15 and of type bytes wherever it exists (proto/common.proto);
            servicers and callers never see it set: on every transport they get the attachment beside the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from neve.proto.errors import InvalidArgument, ProtocolViolation, TooLarge
from neve.proto.method import Rep
from neve.rpc.limits import Limits
from neve.rpc.service import EMPTY, Buffer, attachment_bytes

PAYLOAD = "payload"
PAYLOAD_NUMBER = 15
_LENGTH_DELIMITED = 2
_PAYLOAD_TAG = bytes([PAYLOAD_NUMBER << 3 | _LENGTH_DELIMITED])

# The size of the payload's tag and length, added to the sizes of message and attachment.
FRAMING_BYTES_MAX = 16


def has_payload(kind: type[Message]) -> bool:
    """Whether messages of this type can carry an attachment."""
    field = kind.DESCRIPTOR.fields_by_name.get(PAYLOAD)
    return field is not None and field.number == PAYLOAD_NUMBER and field.type == FieldDescriptor.TYPE_BYTES


def require_payload(kind: type[Message]) -> None:
    if not has_payload(kind):
        name = kind.DESCRIPTOR.full_name
        raise InvalidArgument(what="attachment", detail=f"{name} has no field `{PAYLOAD}` to carry it in")


def check_sizes(limits: Limits, what: str, *, message_bytes: int, attachment_bytes: int) -> None:
    """Refuse a message that the other side would refuse. `what` is "request of" or "reply of" a method."""
    if message_bytes > limits.message_bytes_max:
        raise TooLarge(what=what, size_bytes=message_bytes, limit_bytes=limits.message_bytes_max)
    if attachment_bytes > limits.attachment_bytes_max:
        what = f"attachment of {what}"
        raise TooLarge(what=what, size_bytes=attachment_bytes, limit_bytes=limits.attachment_bytes_max)


def encode(message: Message, attachment: Sequence[Buffer]) -> bytes:
    """The message with the attachment as its payload.

    The field is appended to the serialised message instead of set in the message. Every parser accepts that; it copies
    the bulk once instead of three times and does not change the caller's message.
    """
    data = message.SerializeToString()
    size_bytes = attachment_bytes(attachment)
    if not size_bytes:
        return data
    require_payload(type(message))
    return b"".join((data, _PAYLOAD_TAG, _varint(size_bytes), *attachment))


def decode(kind: type[Rep], data: bytes) -> tuple[Rep, memoryview]:
    """The message without its payload, and the payload as an attachment. Raises ProtocolViolation for invalid bytes."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(detail=f"not a {kind.DESCRIPTOR.full_name}: {error}") from None
    if not has_payload(kind):
        return message, EMPTY
    payload: bytes = getattr(message, PAYLOAD)
    message.ClearField(PAYLOAD)
    return message, memoryview(payload)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
