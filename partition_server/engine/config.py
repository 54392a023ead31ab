"""What can be set about the storage of a partition. Every bound of it is here, with its reason.

Invariants: a value that cannot work is refused when it is given, naming it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from neve.proto.errors import InvalidArgument
from neve.rpc.limits import KIB, MIB

KEY_BYTES_MAX = 4 * KIB
VALUE_BYTES_MAX = 32 * MIB  # at once; larger ones are uploaded in parts
TTL_MS_MAX = 2**53  # added to the time of day it fits into every record; whoever wants more wants for ever

# Of a stream, asked for at a time: to check and decode so much of small records takes five milliseconds, and a merge
# holds three of them for each table.
READ_BYTES = 512 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    # --- objects ---
    value_threshold_bytes: int = 4 * KIB  # values from here on stay in the log, tables point to them
    part_bytes: int = 1 * MIB  # larger values are cut, so that a range reads no more than it needs

    # --- memtables ---
    memtable_bytes: int = 64 * MIB  # then it is flushed
    memtable_records: int = 200_000  # of the log, the same: so many take about two seconds to replay
    memtables_closed_max: int = 2  # waiting to be flushed; then writes stall
    flush_after_s: float = 600.0  # what little there is, too: so that the log can be cut and a load stays short

    # --- tables ---
    block_bytes: int = 16 * KIB  # before compression
    zstd_level: int = 1  # 3 is 5 % smaller and takes twice as long
    append_bytes: int = 1 * MIB  # of a table, appended at a time

    # --- compaction ---
    tables_max: int = 8  # of similar size: then they are merged
    tables_slow: int = 24  # merges are behind: puts wait for them
    size_ratio: float = 1.5  # tables join a merge while they are not larger than this times those before them
    space_waste_max: float = 1.0  # newer tables together, in relation to the oldest: then all are merged
    expired_s_max: float = 3600.0  # what has expired for so long goes: tables are rewritten for it so often at most
    maintenance_s: float = 1.0  # between two looks at what there is to do

    # --- value log ---
    log_garbage_ratio: float = 0.6  # of a log extent: then what lives in it is moved

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
