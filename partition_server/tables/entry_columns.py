"""Entries as columns, which tables consist of and are merged by, without a Python object for each number.

Invariants: all columns have one length; keys are in order and unique, unless said otherwise;
            a value is the bytes themselves, or encoded parts if the kind says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from neve.partition_server.engine.entry import DELETE, PUT, Entry, Part, decode_parts, encode_parts

INLINE = 1
IN_PARTS = 2
DELETED = 3

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
Indexes = npt.NDArray[np.int64]


@dataclass(slots=True)
class Rows:
    keys: list[bytes]
    values: list[bytes]
    kinds: U8
    seqs: U64
    versions: U64
    modified_ms: U64
    expires_ms: U64
    crcs: U64
    sizes: U64

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indexes: Indexes) -> Rows:
        at = indexes.tolist()
        keys, values = self.keys, self.values
        return Rows(
            [keys[i] for i in at],
            [values[i] for i in at],
            self.kinds[indexes],
            self.seqs[indexes],
            self.versions[indexes],
            self.modified_ms[indexes],
            self.expires_ms[indexes],
            self.crcs[indexes],
            self.sizes[indexes],
        )

    def slice(self, first: int, last: int) -> Rows:
        if first == 0 and last == len(self.keys):
            return self
        return Rows(
            self.keys[first:last],
            self.values[first:last],
            self.kinds[first:last],
            self.seqs[first:last],
            self.versions[first:last],
            self.modified_ms[first:last],
            self.expires_ms[first:last],
            self.crcs[first:last],
            self.sizes[first:last],
        )

    def entry(self, index: int) -> Entry:
        return make_entry(
            self.keys[index],
            int(self.kinds[index]),
            int(self.seqs[index]),
            int(self.versions[index]),
            int(self.modified_ms[index]),
            int(self.expires_ms[index]),
            int(self.crcs[index]),
            int(self.sizes[index]),
            self.values[index],
        )


def make_entry(
    key: bytes,
    kind: int,
    seq: int,
    version: int,
    modified_ms: int,
    expires_ms: int,
    crc: int,
    size_bytes: int,
    value: bytes,
) -> Entry:
    """Make an entry from a table's columns."""
    if kind == IN_PARTS:
        parts = decode_parts(value)
        return Entry(key, PUT, seq, version, modified_ms, expires_ms, crc, size_bytes, b"", 0, parts)
    kind = PUT if kind == INLINE else DELETE
    return Entry(key, kind, seq, version, modified_ms, expires_ms, crc, size_bytes, value, 0, None)


def rows_of(entries: Sequence[Entry], *, value_threshold_bytes: int, record_bytes_max: int) -> Rows:
    """Return the rows of entries in order, for a table. Large values stay in the log, where their record is.

    Rows never refer to a record of more than `record_bytes_max`, which may span two extents: one of them could be
    removed.
    """
    kinds: list[int] = []
    values: list[bytes] = []
    for entry in entries:
        if entry.parts is not None:
            kinds.append(IN_PARTS)
            values.append(encode_parts(entry.parts))
        elif entry.kind == DELETE:
            kinds.append(DELETED)
            values.append(b"")
        elif (
            entry.size_bytes >= value_threshold_bytes
            and entry.position is not None
            and entry.record_bytes <= record_bytes_max
        ):
            kinds.append(IN_PARTS)
            values.append(encode_parts((Part(*entry.position, entry.record_at, entry.size_bytes),)))
        else:
            kinds.append(INLINE)
            values.append(entry.data[entry.value_at : entry.value_at + entry.size_bytes])
    return Rows(
        [entry.key for entry in entries],
        values,
        np.array(kinds, dtype=np.uint8),
        *_numbers_of(entries),
    )


_NUMBERS = ("seq", "version", "modified_ms", "expires_ms", "crc", "size_bytes")
_get_numbers = attrgetter(*_NUMBERS)


def _numbers_of(entries: Sequence[Entry]) -> tuple[U64, U64, U64, U64, U64, U64]:
    """Return the numeric columns, in one pass because attribute access is slow."""
    flat = chain.from_iterable(map(_get_numbers, entries))
    table = np.fromiter(flat, dtype=np.uint64, count=len(_NUMBERS) * len(entries)).reshape(-1, len(_NUMBERS))
    seqs, versions, modified_ms, expires_ms, crcs, sizes = table.T.copy()
    return seqs, versions, modified_ms, expires_ms, crcs, sizes


def concatenate(many: Sequence[Rows]) -> Rows:
    if len(many) == 1:
        return many[0]
    keys: list[bytes] = []
    values: list[bytes] = []
    for rows in many:
        keys += rows.keys
        values += rows.values
    return Rows(
        keys,
        values,
        np.concatenate([rows.kinds for rows in many]),
        np.concatenate([rows.seqs for rows in many]),
        np.concatenate([rows.versions for rows in many]),
        np.concatenate([rows.modified_ms for rows in many]),
        np.concatenate([rows.expires_ms for rows in many]),
        np.concatenate([rows.crcs for rows in many]),
        np.concatenate([rows.sizes for rows in many]),
    )
