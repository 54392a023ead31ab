"""The records of a table: blocks of entries, index, bloom filters. docs/formats/table.md describes the bytes.

Invariants: a block can be decoded on its own; numbers take as many bytes as the largest of them needs;
            there is no I/O here; the stream's own blocks have a checksum.
Note:       The footer is a protobuf message, TableFooter.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import Entry
from neve.partition_server.tables.bloom import may_contain
from neve.partition_server.tables.entry_columns import U64, Rows, make_entry

FORMAT = 1
RAW_BYTES_MAX = 1 << 30  # of one record before compression; a larger size means damage

_ENVELOPE = struct.Struct("<BBHI")  # format, what, codec, raw bytes
BLOCK, INDEX, BLOOM, FOOTER = 1, 2, 3, 4
_PLAIN, _ZSTD = 0, 1

_COUNT = struct.Struct("<I")
_COLUMN = struct.Struct("<BQ")  # bytes of a number, offset added to each
_COLUMNS = 6
_U32 = struct.Struct("<I")
_WIDTHS: dict[int, npt.DTypeLike] = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}

KEY_OVERHEAD_BYTES = 60  # memory of a key in a list, beside its bytes


class BadTable(ValueError):
    """The bytes are not part of a table of this format."""


# --- the envelope --------------------------------------------------------------------------------------------

_decompressor = zstandard.ZstdDecompressor()


class Packer:
    """Compresses and wraps records, for one table that is being written."""

    def __init__(self, level: int) -> None:
        self._compress = zstandard.ZstdCompressor(level=level, write_content_size=False).compress

    def pack(self, what: int, raw: bytes) -> bytes:
        data, codec = raw, _PLAIN
        if what != BLOOM:  # filters are large and practically random
            compressed = self._compress(raw)
            if len(compressed) < len(raw):
                data, codec = compressed, _ZSTD
        return _ENVELOPE.pack(FORMAT, what, codec, len(raw)) + data


def unpack(what: int, record: bytes | memoryview) -> bytes:
    """Return the content of a record, which must be of this kind."""
    if len(record) < _ENVELOPE.size:
        raise BadTable(f"{len(record)} bytes, less than an envelope")
    form, what_here, codec, raw_bytes = _ENVELOPE.unpack_from(record)
    if form != FORMAT or what_here != what or raw_bytes > RAW_BYTES_MAX:
        raise BadTable(f"format {form}, record of kind {what_here}, {raw_bytes} bytes; expected kind {what}")
    data = memoryview(record)[_ENVELOPE.size :]
    if codec == _PLAIN:
        raw = bytes(data)
    elif codec == _ZSTD:
        try:
            raw = _decompressor.decompress(data, max_output_size=raw_bytes)
        except zstandard.ZstdError as error:
            raise BadTable(str(error)) from error
    else:
        raise BadTable(f"codec {codec}")
    if len(raw) != raw_bytes:
        raise BadTable(f"{len(raw)} bytes instead of {raw_bytes}")
    return raw


# --- blocks --------------------------------------------------------------------------------------------------


def encode_block(rows: Rows) -> bytes:
    """Encode the entries of one block, before compression."""
    parts: list[bytes] = [_COUNT.pack(len(rows))]
    columns = (rows.seqs, rows.seqs - rows.versions, rows.modified_ms, rows.expires_ms, rows.crcs, rows.sizes)
    numbers = [_encode_column(column) for column in columns]
    parts += [header for header, _ in numbers]
    parts += [data for _, data in numbers]
    parts.append(rows.kinds.tobytes())
    parts.append(np.fromiter(accumulate(map(len, rows.keys)), dtype="<u4", count=len(rows)).tobytes())
    parts.append(np.fromiter(accumulate(map(len, rows.values)), dtype="<u4", count=len(rows)).tobytes())
    parts += rows.keys
    parts += rows.values
    return b"".join(parts)


def _encode_column(column: U64) -> tuple[bytes, bytes]:
    base = int(column.min())
    span = int(column.max()) - base
    if not span:
        return _COLUMN.pack(0, base), b""
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    return _COLUMN.pack(width, base), (column - np.uint64(base)).astype(_WIDTHS[width]).tobytes()


class Block:
    """A decoded block. Its keys are Python objects, for the search; everything else is decoded on access."""

    __slots__ = ("_columns", "_kinds_at", "_raw", "_value_ends_at", "_values_at", "keys", "memory_bytes")

    def __init__(self, raw: bytes) -> None:
        try:
            (count,) = _COUNT.unpack_from(raw)
            at = _COUNT.size
            headers = [_COLUMN.unpack_from(raw, at + number * _COLUMN.size) for number in range(_COLUMNS)]
            at += _COLUMNS * _COLUMN.size
            columns: list[tuple[int, int, int]] = []
            for width, base in headers:
                columns.append((width, base, at))
                at += width * count
            self._kinds_at = at
            at += count
            ends = np.frombuffer(raw, dtype="<u4", count=count, offset=at).tolist()
            self._value_ends_at = at + 4 * count
            keys_at = at + 8 * count
            self._values_at = keys_at + (ends[-1] if ends else 0)
            self.keys = [raw[keys_at + a : keys_at + b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
            values_bytes = _U32.unpack_from(raw, keys_at - 4)[0] if count else 0
        except (struct.error, ValueError) as error:
            raise BadTable(f"a block of {len(raw)} bytes: {error}") from error
        if self._values_at + values_bytes != len(raw):
            raise BadTable(f"a block of {len(raw)} bytes instead of {self._values_at + values_bytes}")
        self._raw = raw
        self._columns = columns
        self.memory_bytes = len(raw) + count * KEY_OVERHEAD_BYTES + 400

    def __len__(self) -> int:
        return len(self.keys)

    def _number(self, column: int, index: int) -> int:
        width, base, at = self._columns[column]
        if not width:
            return base
        at += width * index
        return base + int.from_bytes(self._raw[at : at + width], "little")

    def find(self, key: bytes) -> Entry | None:
        index = bisect_left(self.keys, key)
        if index == len(self.keys) or self.keys[index] != key:
            return None
        return self.entry(index)

    def entries(self, start: bytes, end: bytes) -> list[Entry]:
        """Return the entries with keys of [start, end); an empty end means no bound."""
        first = bisect_left(self.keys, start)
        last = bisect_left(self.keys, end) if end else len(self.keys)
        return [self.entry(index) for index in range(first, last)]

    def entry(self, index: int) -> Entry:
        raw = self._raw
        ends_at = self._value_ends_at + 4 * index
        end: int = _U32.unpack_from(raw, ends_at)[0]
        begin: int = _U32.unpack_from(raw, ends_at - 4)[0] if index else 0
        seq = self._number(0, index)
        return make_entry(
            self.keys[index],
            raw[self._kinds_at + index],
            seq,
            seq - self._number(1, index),
            self._number(2, index),
            self._number(3, index),
            self._number(4, index),
            self._number(5, index),
            raw[self._values_at + begin : self._values_at + end],
        )

    def _column(self, number: int, count: int) -> U64:
        width, base, at = self._columns[number]
        if not width:
            return np.full(count, base, dtype=np.uint64)
        column = np.frombuffer(self._raw, dtype=_WIDTHS[width], count=count, offset=at).astype(np.uint64)
        column += np.uint64(base)
        return column

    def rows(self) -> Rows:
        """Return all entries, by columns."""
        count = len(self.keys)
        raw, at = self._raw, self._values_at
        ends = np.frombuffer(raw, dtype="<u4", count=count, offset=self._value_ends_at).tolist()
        values = [raw[at + a : at + b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        seqs = self._column(0, count)
        return Rows(
            self.keys,
            values,
            np.frombuffer(raw, dtype=np.uint8, count=count, offset=self._kinds_at),
            seqs,
            seqs - self._column(1, count),
            self._column(2, count),
            self._column(3, count),
            self._column(4, count),
            self._column(5, count),
        )


# --- index ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableIndex:
    """The places of a table's blocks, by their last keys."""

    last_keys: list[bytes]
    extents: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]

    def position(self, block: int) -> Position:
        return Position(int(self.extents[block]), int(self.offsets[block]))

    def block_of(self, key: bytes) -> int:
        """Return the only block that can have the key; the number of blocks if it is above all of them."""
        return bisect_left(self.last_keys, key)

    @property
    def memory_bytes(self) -> int:
        return sum(map(len, self.last_keys)) + len(self.last_keys) * (KEY_OVERHEAD_BYTES + 16)


def encode_index(last_keys: Sequence[bytes], extents: array[int], offsets: array[int]) -> bytes:
    """Encode the places of the blocks, as arrays of 64-bit numbers."""
    return b"".join(
        [
            _COUNT.pack(len(last_keys)),
            np.frombuffer(extents, dtype=np.uint64).astype("<u8").tobytes(),
            np.frombuffer(offsets, dtype=np.uint64).astype("<u8").tobytes(),
            np.fromiter(accumulate(map(len, last_keys)), dtype="<u4", count=len(last_keys)).tobytes(),
            *last_keys,
        ]
    )


def decode_index(raw: bytes) -> TableIndex:
    try:
        (count,) = _COUNT.unpack_from(raw)
        at = _COUNT.size
        extents = np.frombuffer(raw, dtype="<u8", count=count, offset=at).copy()
        offsets = np.frombuffer(raw, dtype="<u8", count=count, offset=at + 8 * count).copy()
        ends: list[int] = np.frombuffer(raw, dtype="<u4", count=count, offset=at + 16 * count).tolist()
    except (struct.error, ValueError) as error:
        raise BadTable(f"an index of {len(raw)} bytes: {error}") from error
    at += 20 * count
    if at + (ends[-1] if ends else 0) != len(raw):
        raise BadTable(f"an index of {len(raw)} bytes for {count} blocks")
    keys = [raw[at + a : at + b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    return TableIndex(keys, extents, offsets)


# --- bloom filters -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableFilters:
    """A filter for each run of blocks."""

    first_blocks: list[int]
    starts: list[int]  # offset of each filter in `data`, and the end
    data: bytes

    def may_contain(self, block: int, hashed: int) -> bool:
        number = bisect_right(self.first_blocks, block) - 1
        start = self.starts[number]
        return may_contain(self.data, start, self.starts[number + 1] - start, hashed)

    @property
    def memory_bytes(self) -> int:
        return len(self.data) + 16 * len(self.starts)


def encode_filters(first_blocks: Sequence[int], filters: Sequence[bytes]) -> bytes:
    return b"".join(
        [
            _COUNT.pack(len(filters)),
            np.array(first_blocks, dtype="<u4").tobytes(),
            np.fromiter(accumulate(map(len, filters)), dtype="<u4", count=len(filters)).tobytes(),
            *filters,
        ]
    )


def decode_filters(raw: bytes) -> TableFilters:
    try:
        (count,) = _COUNT.unpack_from(raw)
        at = _COUNT.size
        first_blocks: list[int] = np.frombuffer(raw, dtype="<u4", count=count, offset=at).tolist()
        ends: list[int] = np.frombuffer(raw, dtype="<u4", count=count, offset=at + 4 * count).tolist()
    except (struct.error, ValueError) as error:
        raise BadTable(f"filters of {len(raw)} bytes: {error}") from error
    data = raw[at + 8 * count :]
    if not count or ends[-1] != len(data) or first_blocks[0] != 0:
        raise BadTable(f"{count} filters of {len(data)} bytes")
    return TableFilters(first_blocks, [0, *ends], data)


def decode_block(record: bytes | memoryview) -> Block:
    return Block(unpack(BLOCK, record))


def pack_message(what: int, message: Any) -> bytes:
    """Wrap a message in the same envelope, uncompressed so that people can inspect it."""
    data: bytes = message.SerializeToString()
    return _ENVELOPE.pack(FORMAT, what, _PLAIN, len(data)) + data
