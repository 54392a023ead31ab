"""The values that users of the key-value client see, and the bounds of keys and values.

Invariants: all are immutable; a key or a value that no server would take is refused here, naming what is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import InvalidArgument, ProtocolViolation, TooLarge

KEY_BYTES_MAX = 4096
VALUE_BYTES_MAX = 32 << 20  # at once; put_stream takes more
BATCH_OPERATIONS_MAX = 10_000
TTL_MS_MAX = 2**53
VERSION_MAX = 2**64 - 1
_SHOWN_CHARS_MAX = 120


class ObjectInfo(NamedTuple):
    """What is known of an object. `version` grows with every change of its key: what conditions compare."""

    key: bytes
    version: int
    size_bytes: int
    modified_ms: int  # since the epoch
    expires_ms: int  # 0: never
    crc32c: int  # of the whole value


new_info = tuple.__new__  # (ObjectInfo, (key, …)): a third of the cost of ObjectInfo(...), for every put


class Object(NamedTuple):
    """An object, or the part of it that was asked for."""

    info: ObjectInfo
    value: bytes


class Put(NamedTuple):
    """One operation of a batch."""

    key: bytes
    value: Buffer
    ttl_s: float | None = None
    if_absent: bool = False
    if_version: int | None = None


class Delete(NamedTuple):
    """One operation of a batch."""

    key: bytes
    if_version: int | None = None


def info_from(message: ps.ObjectInfo, key: bytes) -> ObjectInfo:
    return ObjectInfo(
        key, message.version, message.size_bytes, message.modified_ms, message.expires_ms, message.value_crc32c
    )


def show_key(key: bytes) -> str:
    """A key for people: text as it is, anything else as Python would write it."""
    try:
        text = key.decode()
        shown = text if text.isprintable() else repr(key)
    except UnicodeDecodeError:
        shown = repr(key)
    return shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}… ({len(key)} bytes)"


def checked_key(key: Buffer) -> bytes:
    """The key as bytes; InvalidArgument or TooLarge for what is none."""
    if type(key) is not bytes:
        if not isinstance(key, (bytes, bytearray, memoryview)):
            raise InvalidArgument(what="key", detail=f"a key is bytes, not {type(key).__name__}; try key.encode()")
        key = bytes(key)
    if not key:
        raise InvalidArgument(what="key", detail="it is empty; a key has 1 to 4096 bytes")
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(what="key", size_bytes=len(key), limit_bytes=KEY_BYTES_MAX)
    return key


def checked_value(value: Buffer) -> Buffer:
    """A row of bytes of at most 32 MiB."""
    if type(value) is not bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(what="value", detail=f"a value is bytes, not {type(value).__name__}")
        if isinstance(value, memoryview) and (value.ndim != 1 or value.format != "B" or not value.contiguous):
            raise InvalidArgument(what="value", detail="a view must be contiguous, of single bytes")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(
            what="value", size_bytes=len(value), limit_bytes=VALUE_BYTES_MAX, detail="put_stream takes larger ones"
        )
    return value


def checked_object(info: ObjectInfo, value: bytes) -> Object:
    """ProtocolViolation if the bytes are not those that were put: the checksum was made where they came from."""
    if crc32c(value) != info.crc32c:
        detail = f"the value of {show_key(info.key)} does not have the checksum that it was put with"
        raise ProtocolViolation(detail=detail)
    return Object(info, value)


def checked_ttl_ms(ttl_s: float | None) -> int:
    """In milliseconds; 0: for ever."""
    if ttl_s is None:
        return 0
    if not 0 < ttl_s <= TTL_MS_MAX / 1000:
        raise InvalidArgument(what="ttl_s", detail=f"{ttl_s} is not above 0; leave it out for ever")
    return max(1, round(ttl_s * 1000))


def condition(*, if_absent: bool = False, if_version: int | None = None) -> ps.Condition | None:
    """What the caller expects to find; None: anything."""
    if if_version is None:
        return ps.Condition(absent=True) if if_absent else None
    if if_absent:
        raise InvalidArgument(what="if_version", detail="together with if_absent it cannot be met")
    if not 1 <= if_version <= VERSION_MAX:
        raise InvalidArgument(what="if_version", detail=f"{if_version} is no version: those are above 0")
    return ps.Condition(version=if_version)
