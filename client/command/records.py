"""Conversion of records: cuts input into records, and formats records for output.

Invariants: memory is bounded by the largest record: a file is read whole only if it is to be one record;
            joined again, the records of a file equal the file, except for the line ends that --lines removes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import BinaryIO

from neve.client.streams.types import Record

FORMATS = ("text", "raw", "json", "hex")
RECORD_BYTES_MAX = 1 << 30  # the most that a reader joins


class RecordTooLarge(Exception):
    """A record exceeds the limit. The message says where."""


def cut_lines(file: BinaryIO, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """Return a record for each line, without its line end. The last line need not have one."""
    number = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        if len(line) > bytes_max and not line.endswith(b"\n"):
            raise RecordTooLarge(f"line {number} is longer than {bytes_max} bytes, which is the limit of a record")
        yield line.removesuffix(b"\n")


def cut_pieces(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Return records of `size_bytes`; the last one may be shorter."""
    while piece := _read_full(file, size_bytes):
        yield piece


def cut_nothing(file: BinaryIO, *, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """Return all input as one record."""
    content = _read_full(file, bytes_max + 1)
    if len(content) > bytes_max:
        raise RecordTooLarge(f"the input is larger than {bytes_max} bytes, which is the limit of a record")
    yield content


def _read_full(file: BinaryIO, size_bytes: int) -> bytes:
    """Read this many bytes, or up to the end: a single read of a pipe may return fewer."""
    parts: list[bytes] = []
    missing = size_bytes
    while missing and (part := file.read(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def encode(record: Record, form: str, *, with_position: bool) -> bytes:
    """Return what read and tail print for a record."""
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
