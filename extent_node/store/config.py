"""The settings of a store, and its counters. Plain data.

Every bound of the store is here: how much may wait, be dirty or be open. The reasons stand beside the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neve.extent_node.disk.disk import Marks
from neve.extent_node.journal.folder import SEGMENTS_MAX_DEFAULT
from neve.rpc import config

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class DiskConfig:
    folder: str
    expected_uuid: str = ""  # empty: any disk of this node


# A delay of 0 means at once, and a bound of 0 switches a feature off.
MAY_BE_ZERO = (
    "node_id",
    "in_place_bytes_min",
    "dirty_bytes_soft",
    "dirty_bytes_hard",
    "preallocate_bytes",
    "trash_delay_s",
    "tombstone_delay_s",
)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The settings of a store; config.py of the node has the ones around it."""

    cluster: str
    node_id: int
    disks: tuple[DiskConfig, ...]
    journal_folder: str

    marks: Marks = field(default_factory=Marks)
    usage_interval_s: float = 5.0  # between checks of the disks' usage

    # Group commit. Measured on two cores and a virtual disk (fdatasync of 4 KiB: 0.2 to 0.45 ms), n extents with one
    # append each, fdatasync of each compared with one of the journal: n=1 1.1×, n=2 1.6×, n=4 2.6×, n=16 4.8×, n=64
    # 12×. From two on the journal wins; for one it would only write everything twice.
    journal_extents_min: int = 2
    # The same with larger appends: at 64 KiB per extent the journal still wins 1.5 to 2.2×, at 256 KiB it wins nothing,
    # at 1 MiB it costs up to 5×.
    in_place_bytes_min: int = 256 * KIB
    journal_segments_max: int = SEGMENTS_MAX_DEFAULT
    # The most that one fdatasync of the journal covers: the next round waits for a long one.
    journal_round_bytes_max: int = 8 * MIB

    # Checkpoints, behind the journal. An extent is synced in place when its segment is full, when it has waited this
    # long, or when too many bytes are dirty.
    checkpoint_interval_s: float = 5.0
    checkpoint_syncs_max: int = 4  # at a time: enough to keep one disk's queue busy beside the journal
    dirty_bytes_soft: int = 256 * MIB  # above: the oldest are synced in the background
    dirty_bytes_hard: int = 1024 * MIB  # above: appends wait; otherwise the kernel's own throttle would stop the loop

    append_waiters_max: int = 4096  # calls that may wait for dirty bytes to be synced, and for one replica's turn
    orders_max: int = 4096  # of managers, running or waiting, including those whose caller has given up
    backlog_max: int = 8192  # calls that wait for a thread: above, reads that would need one are refused
    followers_max: int = 4096  # reads that may wait for more, over all replicas
    open_replicas_max: int = 8192  # each keeps a descriptor
    sealed_files_max: int = 512  # kept open and mapped; the least recently used are closed first
    preallocate_bytes: int = 8 * MIB  # step by which an open extent's blocks are reserved ahead; 0: never
    # For fast writers the step doubles up to this. In turns on two cores, 1 MiB appends to three nodes on fresh pages:
    # 1,350 MB/s with steps of 8 MiB, which the writer overtook, 1,410 with 32 MiB, 1,510 with 64 MiB.
    preallocate_bytes_max: int = 64 * MIB
    read_bytes_max: int = 16 * MIB  # per reply, unless a single block is larger

    trash_delay_s: float = 24 * 3600.0
    tombstone_delay_s: float = 30 * 24 * 3600.0
    purge_interval_s: float = 600.0
    verify_tasks: int = 2  # replicas that are verified at a time after an unclean stop

    def __post_init__(self) -> None:
        if not self.disks:
            raise ValueError("a node needs at least one disk")
        if self.dirty_bytes_soft > self.dirty_bytes_hard:
            raise ValueError("dirty_bytes_soft is above dirty_bytes_hard")
        config.check_above_zero(self, but=MAY_BE_ZERO)


@dataclass(slots=True)
class Counters:
    """Counts since the process started; the server exports them as metrics. Gauges are read from the store itself."""

    appends: int = 0  # accepted segments
    appended_bytes: int = 0
    append_refusals: int = 0
    conflicts: int = 0
    reads: int = 0
    read_bytes: int = 0
    journal_rounds: int = 0
    journal_entries: int = 0
    journal_bytes: int = 0
    journal_full: int = 0  # appends synced in place because the journal had no room
    in_place_syncs: int = 0
    checkpoint_syncs: int = 0
    segments_recycled: int = 0
    sync_failures: int = 0
    write_failures: int = 0
    seals: int = 0
    creates: int = 0
    deletes: int = 0
    quarantines: int = 0
    replicas_doubted: int = 0
    replicas_verified: int = 0
    tails_cut: int = 0
    replayed_records: int = 0
    replayed_bytes: int = 0
    skipped_records: int = 0
    trash_purged: int = 0
    background_failures: int = 0
