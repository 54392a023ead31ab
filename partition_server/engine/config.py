"""The settings of a partition's storage: every bound, with its reason.

Invariants: a setting that cannot work raises InvalidArgument with its name when the configuration is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from neve.proto.errors import InvalidArgument
from neve.rpc.limits import KIB, MIB

KEY_BYTES_MAX = 4 * KIB
VALUE_BYTES_MAX = 32 * MIB  # of one call; larger values are uploaded in parts
TTL_MS_MAX = 2**53  # plus the time of day, it fits into every record; longer times should be unlimited

# Read from a stream at a time: checking and decoding this much of small records takes five milliseconds, and a merge
# holds three such pieces for each table.
READ_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    # --- objects ---
    value_threshold_bytes: int = 4 * KIB  # values of this size or more stay in the log, and tables refer to them
    part_bytes: int = 1 * MIB  # larger values are cut into parts, so that a range read reads only what it needs

    # --- memtables ---
    memtable_bytes: int = 64 * MIB  # at this size a memtable is flushed
    memtable_records: int = 200_000  # or at this many log records, which take about two seconds to replay
    memtables_closed_max: int = 2  # waiting to be flushed; with more, writes stall
    flush_after_s: float = 600.0  # even a small memtable is flushed, so that the log can be cut and loads stay fast

    # --- tables ---
    block_bytes: int = 16 * KIB  # before compression
    zstd_level: int = 1  # 3 is 5 % smaller and takes twice as long
    append_bytes: int = 1 * MIB  # of a table, in one append

    # --- compaction ---
    tables_max: int = 8  # tables of similar size; with more, they are merged
    tables_slow: int = 24  # with this many, merges are behind and puts wait for them
    size_ratio: float = 1.5  # a table joins a merge if it is at most this much larger than the newer ones together
    space_waste_max: float = 1.0  # size of the newer tables relative to the oldest; above it all are merged
    expired_s_max: float = 3600.0  # expired objects are dropped after this time, and tables rewritten no more often
    maintenance_s: float = 1.0  # between two checks for work

    # --- value log ---
    log_garbage_ratio: float = 0.6  # share of a log extent; above it, the live values are moved out

    # --- scans ---
    snapshots_max: int = 100

    # --- calls ---
    session_clients_max: int = 10_000
    uploads_max: int = 100
    upload_idle_s: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise InvalidArgument(what=each.name, detail=f"{value} is not above 0")


DEFAULT_CONFIG = EngineConfig()
