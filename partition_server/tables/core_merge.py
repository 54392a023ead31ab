"""Merges entries of several tables: keeps the newest of each key and drops what no reader can see.

Invariants: of equal keys, only the entry of the newest input stays;
            a delete or expired object is dropped only if no older table can have the key: otherwise it hides that one;
            keys outside the partition's range are dropped, because they belong to another partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neve.partition_server.engine.entry import decode_parts
from neve.partition_server.tables.entry_columns import DELETED, IN_PARTS, Indexes, Rows, concatenate


@dataclass(frozen=True, slots=True)
class Merged:
    rows: Rows
    dropped: int
    discarded: dict[int, int]  # bytes of values in log extents that are no longer referred to


def split_at(rows: Rows, boundary: bytes) -> tuple[Rows, Rows]:
    """Return the rows up to the boundary, inclusive, and the others."""
    cut = bisect_right(rows.keys, boundary)
    return rows.slice(0, cut), rows.slice(cut, len(rows))


def clip(rows: Rows, start: bytes, end: bytes) -> Rows:
    """Return the rows with keys of [start, end); an empty end means no bound."""
    first = bisect_left(rows.keys, start)
    last = bisect_left(rows.keys, end) if end else len(rows)
    return rows.slice(first, max(first, last))


def merge(inputs: Sequence[Rows], *, is_last: bool, now_ms: int) -> Merged:
    """Merge the inputs: newest first, each in order. `is_last`: no older table has any of these keys."""
    inputs = [rows for rows in inputs if len(rows)]
    if not inputs:
        raise ValueError("there is nothing to merge")
    together = concatenate(inputs)
    if len(inputs) > 1:
        keys = together.keys
        order = sorted(range(len(keys)), key=keys.__getitem__)  # stable: of equal keys the newest stays first
        ordered = [keys[index] for index in order]
        fresh = np.ones(len(order), dtype=np.bool_)
        fresh[1:] = np.fromiter(map(bytes.__ne__, ordered[1:], ordered[:-1]), dtype=np.bool_, count=len(order) - 1)
        indexes: Indexes = np.array(order, dtype=np.int64)
    else:
        fresh = np.ones(len(together), dtype=np.bool_)
        indexes = np.arange(len(together), dtype=np.int64)
    if is_last:
        expires = together.expires_ms[indexes]
        gone = (together.kinds[indexes] == DELETED) | ((expires > 0) & (expires <= np.uint64(now_ms)))
        keep = fresh & ~gone
    else:
        keep = fresh
    discarded: dict[int, int] = {}
    lost = indexes[~keep]
    for index in lost[together.kinds[lost] == IN_PARTS].tolist():
        add_references(discarded, together.values[index])
    if len(inputs) == 1 and not len(lost):
        return Merged(together, 0, discarded)
    return Merged(together.take(indexes[keep]), len(lost), discarded)


def add_references(references: dict[int, int], parts: bytes) -> None:
    """Add the bytes that encoded parts refer to, by log extent."""
    for part in decode_parts(parts):
        references[part.extent_id] = references.get(part.extent_id, 0) + part.length
