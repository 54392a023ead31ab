"""The values that users of the key-value client see, and the limits of keys and values.

Invariants: all of them are immutable; a key or value that no server would accept is refused here, with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import InvalidArgument, ProtocolViolation, TooLarge

KEY_BYTES_MAX = 4096
VALUE_BYTES_MAX = 32 << 20  # of one put; put_stream accepts more
BATCH_OPERATIONS_MAX = 10_000
TTL_MS_MAX = 2**53
VERSION_MAX = 2**64 - 1
_SHOWN_CHARS_MAX = 120


class ObjectInfo(NamedTuple):
    """An object's metadata. `version` grows with every change of its key; conditions compare it."""

    key: bytes
    version: int
    size_bytes: int
    modified_ms: int  # since the epoch
    expires_ms: int  # 0: never
    crc32c: int  # of the whole value


new_info = tuple.__new__  # new_info(ObjectInfo, (key, …)) costs a third of ObjectInfo(...); called for every put


class Object(NamedTuple):
    """An object, or the requested part of it."""

    info: ObjectInfo
    value: bytes


class Put(NamedTuple):
    """A put in a batch."""

    key: bytes
    value: Buffer
    ttl_s: float | None = None
    if_absent: bool = False
    if_version: int | None = None


class Delete(NamedTuple):
    """A delete in a batch."""

    key: bytes
    if_version: int | None = None


def info_from(message: ps.ObjectInfo, key: bytes) -> ObjectInfo:
    return ObjectInfo(
        key, message.version, message.size_bytes, message.modified_ms, message.expires_ms, message.value_crc32c
    )


def show_key(key: bytes) -> str:
    """Format a key for people: printable text as it is, anything else as a Python literal."""
    try:
        text = key.decode()
        shown = text if text.isprintable() else repr(key)
    except UnicodeDecodeError:
        shown = repr(key)
    return shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}… ({len(key)} bytes)"


def checked_key(key: Buffer) -> bytes:
    """Return the key as bytes. Raises InvalidArgument or TooLarge if it is not a valid key."""
    if type(key) is not bytes:
        if not isinstance(key, (bytes, bytearray, memoryview)):
            raise InvalidArgument(what="key", detail=f"a key must be bytes, not {type(key).__name__}; use key.encode()")
        key = bytes(key)
    if not key:
        raise InvalidArgument(what="key", detail="it is empty; a key has 1 to 4096 bytes")
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(what="key", size_bytes=len(key), limit_bytes=KEY_BYTES_MAX)
    return key


def checked_value(value: Buffer) -> Buffer:
    """Return the value. Raises InvalidArgument if it is not plain bytes, and TooLarge above 32 MiB."""
    if type(value) is not bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(what="value", detail=f"a value must be bytes, not {type(value).__name__}")
        if isinstance(value, memoryview) and (value.ndim != 1 or value.format != "B" or not value.contiguous):
            raise InvalidArgument(what="value", detail="a memoryview must be contiguous, of single bytes")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(
            what="value", size_bytes=len(value), limit_bytes=VALUE_BYTES_MAX, detail="use put_stream for larger values"
        )
    return value


def checked_object(info: ObjectInfo, value: bytes) -> Object:
    """Return the object. Raises ProtocolViolation if its bytes do not match the checksum made by the writing client."""
    if crc32c(value) != info.crc32c:
        detail = f"the value of {show_key(info.key)} does not have the checksum that it was put with"
        raise ProtocolViolation(detail=detail)
    return Object(info, value)


def checked_ttl_ms(ttl_s: float | None) -> int:
    """Return the time to live in milliseconds; 0: unlimited."""
    if ttl_s is None:
        return 0
    if not 0 < ttl_s <= TTL_MS_MAX / 1000:
        raise InvalidArgument(what="ttl_s", detail=f"{ttl_s} is not above 0; omit it for an unlimited time")
    return max(1, round(ttl_s * 1000))


def condition(*, if_absent: bool = False, if_version: int | None = None) -> ps.Condition | None:
    """Return the condition of a write; None: unconditional."""
    if if_version is None:
        return ps.Condition(absent=True) if if_absent else None
    if if_absent:
        raise InvalidArgument(what="if_version", detail="it cannot be met together with if_absent")
    if not 1 <= if_version <= VERSION_MAX:
        raise InvalidArgument(what="if_version", detail=f"{if_version} is not a version: expected a number above 0")
    return ps.Condition(version=if_version)
