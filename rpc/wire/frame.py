"""One frame: a fixed prelude, a message, an attachment. Pure functions, no I/O. docs/formats/wire.md has the picture.

Invariants: a prelude is believed only after its own CRC, and a length only after it is within bounds, so that a flipped
            bit can make a connection fail but never make it wait for, or allocate, bytes that were never sent;
            message and attachment are handed on only after their CRCs; only a reply may say of its attachment, by
            OWN_CHECKSUMS, that it has checksums inside, which are for the caller to check.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from neve.proto.crc import crc32c, crc32c_bytes, crc32c_of_all
from neve.proto.errors import ProtocolViolation
from neve.rpc.service import Buffer

PROTOCOL_VERSION = 1

# body_bytes, message_bytes, call_id, method_id, kind, flags, timeout_ms, message_crc, attachment_crc | prelude_crc
_FIELDS = struct.Struct("<IIQHBBIII")
_PRELUDE_CRC = struct.Struct("<I")
PRELUDE_BYTES = _FIELDS.size + _PRELUDE_CRC.size

# The CRC32C of any bytes with their own CRC32C behind them, little-endian: one call checks a prelude as it came.
_CRC_OF_CHECKED = 0x48674BC7

# A flag of REPLY: attachment_crc is 0 and covers nothing, the bytes carry checksums of their own.
OWN_CHECKSUMS = 0x01

TIMEOUT_MS_MAX = 0xFFFF_FFFF

# Of HELLO and WELCOME: all that a peer may make us hold before it has said who it is.
HANDSHAKE_BYTES_MAX = 16 * 1024


class Kind(IntEnum):
    HELLO = 1  # client → server, first; a Hello
    WELCOME = 2  # server → client, its answer; a Welcome
    REQUEST = 3
    REPLY = 4
    ERROR = 5  # a neve.Error; with call id 0 it is about the connection, which ends
    CANCEL = 6  # client → server: the caller has given this call up
    BEAT = 7  # either way, when nothing else was sent for a while: I am alive
    GOAWAY = 8  # server → client: no further calls on this connection, please


# As plain numbers: a look at a member of an enumeration costs more than a call.
REQUEST, REPLY = int(Kind.REQUEST), int(Kind.REPLY)
_KINDS = frozenset(map(int, Kind))


class Prelude(NamedTuple):
    body_bytes: int  # message and attachment
    message_bytes: int
    call_id: int
    method_id: int
    kind: int
    flags: int  # 0, or OWN_CHECKSUMS
    timeout_ms: int  # of a request: how long the caller will wait from now on
    message_crc: int
    attachment_crc: int


_new_prelude = tuple.__new__  # a third of the cost of Prelude._make


def encode(
    kind: int,
    *,
    call_id: int = 0,
    method_id: int = 0,
    timeout_ms: int = 0,
    message: bytes = b"",
    attachment: Sequence[Buffer] = (),
    attachment_bytes: int = 0,
    attachment_crc: int | None = None,
    own_checksums: bool = False,
) -> bytes:
    """The prelude and the message; the attachment's buffers follow it on the wire as they are.

    `attachment_crc`: what `attachment` has, if that is known.
    """
    if attachment_crc is None:
        attachment_crc = crc32c_of_all(attachment) if attachment_bytes and not own_checksums else 0
    head = _FIELDS.pack(
        len(message) + attachment_bytes,
        len(message),
        call_id,
        method_id,
        kind,
        OWN_CHECKSUMS if own_checksums else 0,
        timeout_ms if timeout_ms < TIMEOUT_MS_MAX else TIMEOUT_MS_MAX,
        crc32c_bytes(message),
        attachment_crc,
    )
    return b"".join((head, _PRELUDE_CRC.pack(crc32c_bytes(head)), message))


def encode_request(
    call_id: int, method_id: int, timeout_ms: int, message: bytes, attachment_bytes: int, attachment_crc: int
) -> bytes:
    """A REQUEST, as `encode` makes it, of an attachment whose CRC is known: the commonest frame of a writer."""
    size_bytes = len(message)
    head = _FIELDS.pack(
        *(size_bytes + attachment_bytes, size_bytes, call_id, method_id, REQUEST, 0),
        *(timeout_ms if timeout_ms < TIMEOUT_MS_MAX else TIMEOUT_MS_MAX, crc32c_bytes(message), attachment_crc),
    )
    return b"".join((head, _PRELUDE_CRC.pack(crc32c_bytes(head)), message))


def encode_reply(call_id: int, message: bytes) -> bytes:
    """A REPLY without an attachment, as `encode` makes it: the commonest frame of a server."""
    size_bytes = len(message)
    head = _FIELDS.pack(size_bytes, size_bytes, call_id, 0, REPLY, 0, 0, crc32c_bytes(message), 0)
    return b"".join((head, _PRELUDE_CRC.pack(crc32c_bytes(head)), message))


def decode_prelude(head: bytes, message_bytes_max: int, attachment_bytes_max: int) -> Prelude:
    """The prelude in these PRELUDE_BYTES; ProtocolViolation if it is none, or announces more than is allowed."""
    if crc32c_bytes(head) != _CRC_OF_CHECKED:
        raise ProtocolViolation(detail="prelude checksum mismatch: not a Neve peer, or a damaged connection")
    prelude = _new_prelude(Prelude, _FIELDS.unpack_from(head))
    body_bytes, message_bytes, _, _, kind, flags, _, _, attachment_crc = prelude
    if kind not in _KINDS:
        raise ProtocolViolation(detail=f"unknown frame kind {kind}")
    if flags and (flags != OWN_CHECKSUMS or kind != REPLY or attachment_crc):
        raise ProtocolViolation(detail=f"frame flags {flags:#x} are unknown, or not for kind {kind}")
    if message_bytes > body_bytes:
        raise ProtocolViolation(detail=f"message of {message_bytes} in a body of {body_bytes} bytes")
    if message_bytes > message_bytes_max:
        raise ProtocolViolation(detail=f"message of {message_bytes} bytes is over {message_bytes_max}")
    if body_bytes - message_bytes > attachment_bytes_max:
        size = body_bytes - message_bytes
        raise ProtocolViolation(detail=f"attachment of {size} bytes is over {attachment_bytes_max}")
    return prelude


def check_message(prelude: Prelude, message: bytes) -> None:
    """ProtocolViolation unless its checksum is right."""
    if crc32c_bytes(message) != prelude.message_crc:  # of nothing it is 0
        raise ProtocolViolation(detail="message checksum mismatch: damaged on the way")


def check_body(prelude: Prelude, message: bytes, attachment: Buffer) -> None:
    """ProtocolViolation unless both checksums are right; the attachment's may be left to the caller."""
    check_message(prelude, message)
    if not prelude.flags and crc32c(attachment) != prelude.attachment_crc:
        raise ProtocolViolation(detail="attachment checksum mismatch: damaged on the way")


M = TypeVar("M", bound=Message)


def parse(cls: type[M], message: bytes) -> M:
    """A message of that type; ProtocolViolation if the bytes are none."""
    try:
        return cls.FromString(message)
    except DecodeError as error:
        raise ProtocolViolation(detail=f"not a {cls.DESCRIPTOR.name}: {error}") from error
