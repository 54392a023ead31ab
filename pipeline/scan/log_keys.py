"""Key columns of blocks: what the records of a partition's log say, block by block.

Invariants: a block that is no whole log record (a part of a larger one, a record of another kind of stream) has nulls,
            never a guess; to read every entry of a partition, use rows=entries, which joins and raises.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from neve.partition_server.log import log_format
from neve.pipeline.scan.block_runs import Run
from neve.pipeline.scan.columns import KEY_COLUMNS, SCHEMAS
from neve.proto.blocks import BlockType
from neve.proto.errors import UnsupportedVersion

SEQ_MAX = 2**63 - 1  # what the column holds

_ONE_KEY = frozenset(
    {log_format.Kind.PUT, log_format.Kind.PUT_PARTS, log_format.Kind.DELETE, log_format.Kind.MOVE}
    | {log_format.Kind.MOVE_PARTS, log_format.Kind.PART}
)


def decode_keys(run: Run) -> dict[str, pa.Array]:
    """An array for each of KEY_COLUMNS. The run has payloads."""
    assert run.payloads is not None
    rows = [
        _keys(payload.as_py()) if kind == BlockType.FULL and payload.is_valid else {}
        for payload, kind in zip(run.payloads, run.types.tolist(), strict=True)
    ]
    known = SCHEMAS["blocks"]
    return {name: pa.array([row.get(name) for row in rows], type=known[name].arrow) for name in KEY_COLUMNS}


def _keys(payload: bytes) -> dict[str, Any]:
    try:
        found = log_format.decode(payload)
    except (log_format.BadRecord, UnsupportedVersion):
        return {}
    if found.seq > SEQ_MAX:
        return {}  # no partition has counted that far: these are other bytes that happen to fit
    row: dict[str, Any] = {"log_kind": log_format.Kind(found.kind).name, "seq": found.seq}
    if found.kind in _ONE_KEY:
        [entry] = found.entries
        row |= {"key": entry.key, "value_bytes": entry.size_bytes}
    return row
