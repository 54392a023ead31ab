"""Rows of a scan as Arrow record batches.

Invariants: a batch has exactly the requested columns, in their order and with the types of columns.py;
            every row carries the revision of the metadata that its scan was planned with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from neve.pipeline.core.slices import Slice
from neve.pipeline.scan.block_runs import Run
from neve.pipeline.scan.columns import KEY_COLUMNS, arrow_schema
from neve.pipeline.scan.log_keys import decode_keys
from neve.proto.blocks import HEADER_BYTES

ROWS_AT_A_TIME = 10_000


class BlockBatches:
    """Makes batches of runs."""

    def __init__(self, names: tuple[str, ...], revision: int) -> None:
        self._schema = arrow_schema("blocks", names)
        self._revision = revision
        self._with_keys = not set(KEY_COLUMNS).isdisjoint(names)

    def batch(self, piece: Slice, run: Run) -> pa.RecordBatch:
        keys = decode_keys(run) if self._with_keys else {}
        arrays = [keys.get(field.name) or self._array(field, piece, run) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, piece: Slice, run: Run) -> pa.Array:
        count = len(run.offsets)
        match field.name:
            case "revision":
                return pa.array(np.full(count, self._revision, dtype=np.int64))
            case "stream_id":
                return pa.array(np.full(count, piece.extent.stream_id, dtype=np.int64))
            case "extent_id":
                return pa.array(np.full(count, piece.extent.extent_id, dtype=np.int64))
            case "offset":
                return pa.array(run.offsets)
            case "type":
                return pa.array(run.types.astype(np.int32))
            case "length":
                return pa.array((run.sizes - HEADER_BYTES).astype(np.int32))
            case "node_id":
                node_id = piece.node_id
                return pa.array(np.full(count, node_id, dtype=np.int64)) if node_id else pa.nulls(count, pa.int64())
            case "crc_ok":
                return pa.array(run.crc_ok)
            case "payload":
                assert run.payloads is not None
                return run.payloads
        raise AssertionError(field.name)


def batches_of(rows: str, names: tuple[str, ...], items: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Rows that are made one by one: there are few of them beside blocks."""
    schema = arrow_schema(rows, names)
    waiting: list[dict[str, Any]] = []
    for item in items:
        waiting.append(item)
        if len(waiting) >= ROWS_AT_A_TIME:
            yield _batch(schema, waiting)
            waiting = []
    if waiting:
        yield _batch(schema, waiting)


def _batch(schema: pa.Schema, items: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    arrays = [pa.array([item[field.name] for item in items], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
