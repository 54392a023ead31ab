"""A replica's durable state, as extended attributes of its extent file. docs/formats/extent.md has the grammar.

    value := version u8 | body | crc32c u32        little-endian; the CRC covers the attribute's name, version and body

Invariants: each fact is in one attribute, because setting two is not atomic;
            a value counts only after its CRC is checked; the CRC covers the name, so that a value stored under another
            attribute's name is refused;
            a file without a valid `meta` is absent: it is never an empty replica (G8). So is a file with any other
            unreadable value: guessing at `fenced` or `seal` could lose data.
Not here:   reading and writing attributes (file_system.py).

| attribute          | when it is set                                               | protocol rules | removed by  |
|--------------------|--------------------------------------------------------------|----------------|-------------|
| user.neve.meta     | when the file is made, before it has its name                |                | never       |
| user.neve.token    | before the first append or reply with a higher token         | 4, 14          | never       |
| user.neve.fenced   | by Fence, and by a Seal without an earlier Fence             | 14, 17         | never       |
| user.neve.seal     | by Seal, after cut, verification, index, digest and fsync    | 20             | never       |
| user.neve.unsynced | before the first reply that relies on the page cache         | 10             | Fence, Seal |
| user.neve.doubtful | on start after a power cut, and by damage or a failed fsync  | 12, 13         | Seal        |
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from neve.proto.blocks import DIGEST_BYTES
from neve.proto.crc import crc32c

META = "user.neve.meta"
TOKEN = "user.neve.token"
FENCED = "user.neve.fenced"
SEAL = "user.neve.seal"
UNSYNCED = "user.neve.unsynced"
DOUBTFUL = "user.neve.doubtful"

ALL = (META, TOKEN, FENCED, SEAL, UNSYNCED, DOUBTFUL)

VERSION = 1  # each value has its own version byte, so that one can change without the others

_CRC = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_META = struct.Struct("<QQQQQQQ16s")
_SEAL = struct.Struct(f"<QQ{DIGEST_BYTES}s")
_DOUBTFUL = struct.Struct("<B")


class BadAttribute(ValueError):
    """An attribute that is missing where it is required, or whose value cannot be trusted."""

    def __init__(self, attribute: str, problem: str) -> None:
        super().__init__(f"{attribute}: {problem}")
        self.attribute = attribute
        self.problem = problem


class Doubt(IntEnum):
    """Why a replica's length proves nothing."""

    POWER_CUT = 1  # the page cache was lost, with bytes that were acknowledged from it (protocol rule 12)
    DAMAGE = 2  # the start found more than a torn last block, or a hole in the journal (protocol rule 13)
    # fsync failed. The kernel may now show bytes that are not on the disk and consider them clean, so that even a later
    # successful fsync proves nothing (scenario T23). Only bytes read after the page cache is gone can be trusted.
    SYNC_FAILED = 3


@dataclass(frozen=True, slots=True)
class Meta:
    """The file's identity. With node and disk, a file or a disk moved elsewhere is recognised (scenario T32)."""

    extent_id: int
    eversion: int
    incarnation: int  # a random number drawn when the file is made: distinguishes successive files of one replica
    stream_id: int
    created_ms: int  # since the epoch, by the node's clock
    extent_bytes_max: int
    node_id: int
    disk_uuid: str  # canonical: 36 characters, lower case


@dataclass(frozen=True, slots=True)
class Seal:
    length: int
    eversion: int
    digest: bytes

    def __post_init__(self) -> None:
        assert len(self.digest) == DIGEST_BYTES, self


@dataclass(frozen=True, slots=True)
class Attributes:
    """All attributes of a replica. Without an attribute, `token` is 0 and the others are None or False."""

    meta: Meta
    token: int = 0
    fenced: bool = False
    seal: Seal | None = None
    unsynced: bool = False
    doubt: Doubt | None = None


# --- one attribute, one value --------------------------------------------------------------------------------


def encode_meta(meta: Meta) -> bytes:
    body = _META.pack(
        meta.extent_id,
        meta.eversion,
        meta.incarnation,
        meta.stream_id,
        meta.created_ms,
        meta.extent_bytes_max,
        meta.node_id,
        uuid.UUID(meta.disk_uuid).bytes,
    )
    return _frame(META, body)


def decode_meta(value: bytes) -> Meta:
    *numbers, disk = _unframe(META, value, _META)
    fields = [*numbers, _uuid_text(disk)]
    return Meta(*fields)


@functools.lru_cache(maxsize=256)
def _uuid_text(value: bytes) -> str:
    """The uuid as a string that all replicas of a disk share, so that a start does not make it 100,000 times."""
    return str(uuid.UUID(bytes=value))


def encode_token(token: int) -> bytes:
    return _frame(TOKEN, _U64.pack(token))


def decode_token(value: bytes) -> int:
    (token,) = _unframe(TOKEN, value, _U64)
    return int(token)


def encode_seal(seal: Seal) -> bytes:
    return _frame(SEAL, _SEAL.pack(seal.length, seal.eversion, seal.digest))


def decode_seal(value: bytes) -> Seal:
    return Seal(*_unframe(SEAL, value, _SEAL))


def encode_doubtful(doubt: Doubt) -> bytes:
    return _frame(DOUBTFUL, _DOUBTFUL.pack(doubt))


def decode_doubtful(value: bytes) -> Doubt:
    (number,) = _unframe(DOUBTFUL, value, _DOUBTFUL)
    try:
        return Doubt(number)
    except ValueError:
        raise BadAttribute(DOUBTFUL, f"reason {number} is unknown") from None


def encode_flag(attribute: str) -> bytes:
    """The value of `fenced` or `unsynced`, which have no content."""
    assert attribute in (FENCED, UNSYNCED), attribute
    return _frame(attribute, b"")


def decode_flag(attribute: str, value: bytes) -> bool:
    """True, or BadAttribute: a flag with a broken value may have been any attribute."""
    _unframe(attribute, value, _EMPTY)
    return True


# --- all of a file's attributes ------------------------------------------------------------------------------


def decode_all(values: Mapping[str, bytes]) -> Attributes:
    """The state in a file's attributes, by name; unknown names are ignored. BadAttribute: the replica is absent."""
    if META not in values:
        raise BadAttribute(META, "missing")
    return Attributes(
        meta=decode_meta(values[META]),
        token=decode_token(values[TOKEN]) if TOKEN in values else 0,
        fenced=FENCED in values and decode_flag(FENCED, values[FENCED]),
        seal=decode_seal(values[SEAL]) if SEAL in values else None,
        unsynced=UNSYNCED in values and decode_flag(UNSYNCED, values[UNSYNCED]),
        doubt=decode_doubtful(values[DOUBTFUL]) if DOUBTFUL in values else None,
    )


def encode_all(attributes: Attributes) -> dict[str, bytes]:
    """Values by name, `meta` first."""
    values = {META: encode_meta(attributes.meta)}
    if attributes.token:
        values[TOKEN] = encode_token(attributes.token)
    if attributes.fenced:
        values[FENCED] = encode_flag(FENCED)
    if attributes.seal is not None:
        values[SEAL] = encode_seal(attributes.seal)
    if attributes.unsynced:
        values[UNSYNCED] = encode_flag(UNSYNCED)
    if attributes.doubt is not None:
        values[DOUBTFUL] = encode_doubtful(attributes.doubt)
    return values


_EMPTY = struct.Struct("<")


def _frame(attribute: str, body: bytes) -> bytes:
    value = bytes([VERSION]) + body
    return value + _CRC.pack(crc32c(attribute.encode() + value))


def _unframe(attribute: str, value: bytes, body: struct.Struct) -> tuple[Any, ...]:
    if len(value) < 1 + _CRC.size:
        raise BadAttribute(attribute, f"{len(value)} bytes are too few")
    checked = value[: -_CRC.size]
    (crc,) = _CRC.unpack_from(value, len(checked))
    if crc32c(attribute.encode() + checked) != crc:
        raise BadAttribute(attribute, "wrong checksum")
    if value[0] != VERSION:  # the CRC is right, so a newer node did write this version
        raise BadAttribute(attribute, f"version {value[0]} is unknown here; this build knows {VERSION}")
    if len(checked) != 1 + body.size:
        raise BadAttribute(attribute, f"{len(value)} bytes, {1 + body.size + _CRC.size} expected")
    return body.unpack_from(value, 1)
