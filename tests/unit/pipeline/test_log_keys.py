"""Key columns: what the blocks of a partition's log say, and nulls for what is none of its records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from neve.partition_server.log import log_format
from neve.pipeline.core.slices import ScanExtent, Slice
from neve.pipeline.scan.batches import BlockBatches
from neve.pipeline.scan.block_runs import Run
from neve.proto.blocks import BlockType


def test_keys_are_decoded_from_whole_log_records_only() -> None:
    put, _ = log_format.encode_put(b"k1", b"value", seq=7, caller=log_format.NOBODY, modified_ms=1, expires_ms=0, crc=0)
    delete, _ = log_format.encode_delete(b"k2", seq=8, caller=log_format.NOBODY, modified_ms=1)
    chance, _ = log_format.encode_delete(b"k3", seq=2**64 - 1, caller=log_format.NOBODY, modified_ms=1)
    payloads = [put, delete, b"not a log record", put, None, chance]  # the last: bytes of another kind of stream
    types = [BlockType.FULL, BlockType.FULL, BlockType.FULL, BlockType.FIRST, BlockType.FULL, BlockType.FULL]
    sizes = np.array([8 + len(payload or b"") for payload in payloads], dtype=np.int64)
    run = Run(sizes.cumsum() - sizes, sizes, np.array(types, dtype=np.uint8), None, pa.array(payloads, pa.binary()))
    piece = Slice(ScanExtent(5, 4, int(sizes.sum()), True, b""), 0, int(sizes.sum()))
    batch = BlockBatches(("extent_id", "log_kind", "key", "seq", "value_bytes"), 9).batch(piece, run)
    nothing = {"extent_id": 5, "log_kind": None, "key": None, "seq": None, "value_bytes": None}
    assert batch.to_pylist() == [
        {"extent_id": 5, "log_kind": "PUT", "key": b"k1", "seq": 7, "value_bytes": 5},
        {"extent_id": 5, "log_kind": "DELETE", "key": b"k2", "seq": 8, "value_bytes": 0},
        nothing,
        nothing,
        nothing,
        nothing,
    ]
