"""The columns of the data source, as Spark and as Arrow know them. No pyspark here: tasks and tests need none.

Invariants: a name means the same in every kind of rows;
            ids are signed 64-bit numbers, as Spark has no others: Neve hands ids out from 1 upwards.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

BLOCKS, EXTENTS, REPLICAS, FILES, ENTRIES = "blocks", "extents", "replicas", "files", "entries"
ROWS = (BLOCKS, EXTENTS, REPLICAS, FILES, ENTRIES)


class Column(NamedTuple):
    spark: str  # type in DDL
    arrow: pa.DataType


LONG = Column("bigint", pa.int64())
INT = Column("int", pa.int32())
BOOL = Column("boolean", pa.bool_())
TEXT = Column("string", pa.string())
BYTES = Column("binary", pa.binary())
LONGS = Column("array<bigint>", pa.list_(pa.field("element", pa.int64())))

SCHEMAS: dict[str, dict[str, Column]] = {
    # One row a block.
    BLOCKS: {
        "revision": LONG,  # of the metadata that the whole scan was planned with
        "stream_id": LONG,
        "extent_id": LONG,
        "offset": LONG,
        "type": INT,  # 1 FULL, 2 FIRST, 3 MIDDLE, 4 LAST
        "length": INT,  # of the payload
        "node_id": LONG,  # whose replica it was read from; null where any would do
        "crc_ok": BOOL,
        "payload": BYTES,
        "log_kind": TEXT,  # these four where the stream is a partition's log: PUT, DELETE, BATCH, ...
        "key": BYTES,
        "seq": LONG,
        "value_bytes": LONG,
    },
    # One row an extent, from metadata alone.
    EXTENTS: {
        "revision": LONG,
        "extent_id": LONG,
        "stream_id": LONG,  # that it was made for
        "stream_ids": LONGS,  # that refer to it
        "eversion": LONG,
        "sealed": BOOL,
        "length": LONG,  # of one copy: the sealed length, or the readable end; null if unknown
        "digest": BYTES,
        "created_ms": LONG,
        "changed_revision": LONG,
        "node_ids": LONGS,
        "confirmed_node_ids": LONGS,
    },
    # One row a replica; with verify=true every byte of it was read.
    REPLICAS: {
        "revision": LONG,
        "extent_id": LONG,
        "node_id": LONG,
        "disk_uuid": TEXT,
        "incarnation": TEXT,  # hex: a number that is drawn from 64 bits
        "rack": TEXT,
        "confirmed": BOOL,
        "sealed": BOOL,
        "length": LONG,
        "created_ms": LONG,
        "verdict": TEXT,  # ok, bad, unread; null if it was not verified
        "problem_offset": LONG,
        "problem": TEXT,
        "digest": BYTES,  # of the bytes that were read
        "blocks": LONG,
        "bytes_read": LONG,
        "read_from": TEXT,  # file or node
    },
    # One row a file that a node holds, by its own word: also those that metadata does not know.
    FILES: {
        "revision": LONG,
        "node_id": LONG,
        "disk_uuid": TEXT,
        "extent_id": LONG,
        "incarnation": TEXT,
        "eversion": LONG,
        "sealed": BOOL,
        "length": LONG,
        "created_ms": LONG,  # by the node's clock
    },
    # One row a version of an object that a partition's tables, or the log behind them, have: the newest counts.
    ENTRIES: {
        "revision": LONG,
        "partition_id": LONG,
        "key": BYTES,
        "seq": LONG,  # orders all entries of a partition
        "version": LONG,
        "deleted": BOOL,
        "expires_ms": LONG,  # 0: never
        "length": LONG,  # of the value
        "from_log": BOOL,
        "part_extents": LONGS,  # log records that hold the value; none: it is in the table itself
        "part_offsets": LONGS,
        "part_bytes": LONGS,
    },
}

METADATA_COLUMNS = ("revision", "stream_id", "extent_id", "offset", "type", "length")
PAYLOAD_COLUMNS = (*METADATA_COLUMNS, "node_id", "crc_ok", "payload")
KEY_COLUMNS = ("log_kind", "key", "seq", "value_bytes")
BYTES_COLUMNS = frozenset({"crc_ok", "payload", *KEY_COLUMNS})  # of blocks: an index does not have them


def arrow_schema(rows: str, names: tuple[str, ...]) -> pa.Schema:
    known = SCHEMAS[rows]
    return pa.schema([pa.field(name, known[name].arrow) for name in names])


def ddl(rows: str, names: tuple[str, ...]) -> str:
    known = SCHEMAS[rows]
    return ", ".join(f"`{name}` {known[name].spark}" for name in names)
