"""Records in and out of files: cut input into records, show records. Pure, but for reading the file it is given.

Invariants: memory is bounded by the largest record: a file is never read whole, unless it is to be one record;
            records of a file joined again are the file, but for the line ends that --lines takes away.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import BinaryIO

from neve.client.streams.types import Record

FORMATS = ("text", "raw", "json", "hex")
RECORD_BYTES_MAX = 1 << 30  # as a reader joins at most


class RecordTooLarge(Exception):
    """The message says where."""


def cut_lines(file: BinaryIO, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """A record for each line, without its end; a last line without an end counts, too."""
    number = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        if len(line) > bytes_max and not line.endswith(b"\n"):
            raise RecordTooLarge(f"line {number} is longer than {bytes_max} bytes, which is the limit of a record")
        yield line.removesuffix(b"\n")


def cut_pieces(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Records of `size_bytes`; the last one may be shorter."""
    while piece := _read_full(file, size_bytes):
        yield piece


def cut_nothing(file: BinaryIO, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """All of it, as one record."""
    content = _read_full(file, bytes_max + 1)
    if len(content) > bytes_max:
        raise RecordTooLarge(f"the input is larger than {bytes_max} bytes, which is the limit of a record")
    yield content


def _read_full(file: BinaryIO, size_bytes: int) -> bytes:
    """A pipe gives less than was asked for: go on until it ends."""
    parts: list[bytes] = []
    missing = size_bytes
    while missing and (part := file.read(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def encode(record: Record, form: str, *, with_position: bool) -> bytes:
    """What read and tail print for a record."""
    payload = bytes(record.payload)
    if form == "json":
        return json.dumps(record_value(record), ensure_ascii=False).encode() + b"\n"
    prefix = f"{record.position}\t".encode() if with_position else b""
    if form == "hex":
        return prefix + payload.hex().encode() + b"\n"
    return prefix + payload + (b"" if form == "raw" else b"\n")


def record_value(record: Record) -> dict[str, str]:
    payload = bytes(record.payload)
    fields = {"position": str(record.position), "next": str(record.next)}
    try:
        return {**fields, "payload": payload.decode()}
    except UnicodeDecodeError:
        return {**fields, "payload_base64": base64.b64encode(payload).decode()}
