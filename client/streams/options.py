"""The options of the stream client: every bound and timeout, each with its reason.

Invariants: an option that cannot work raises InvalidArgument with its name when the options are made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from neve.meta.core_retry import Delays
from neve.proto.blocks import PAYLOAD_BYTES_MAX
from neve.proto.errors import InvalidArgument
from neve.rpc.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from neve.rpc.removed_settings import ignores_removed


@ignores_removed
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of `Client` and `SyncClient`. Raises InvalidArgument if a value cannot work."""

    # --- managers ---
    call_timeout_s: float = 30.0  # one operation, with all attempts at all managers
    attempt_timeout_s: float = 10.0  # one attempt; longer than a fail-over, after which the managers name a new leader
    retry_delay_s_min: float = 0.05
    retry_delay_s_max: float = 2.0

    # --- writers ---
    lease_ttl_s: int = 10  # lease of the locks: how long a dead client keeps other writers out
    lock_timeout_s: float = 30.0  # wait for another owner's lock; longer than that owner's lease
    writer_bytes_max: int = 64 * MIB  # unacknowledged bytes of one writer
    buffer_bytes_max: int = 256 * MIB  # unacknowledged bytes of all writers of the client
    frame_bytes: int = 2 * MIB  # throughput: 1 MiB was up to 10 % slower, 64 KiB half as fast, 4 MiB no faster
    frames_in_flight_max: int = 8  # to one node
    append_timeout_s: float = 2.0  # one frame
    append_attempts_max: int = 3  # at one replica without any progress; then the writer replaces the extent
    append_retry_delay_s: float = 0.05
    roll_timeout_s: float = 60.0  # wait for the next extent; longer than the manager takes to detect dead nodes
    confirm_timeout_s: float = 3600.0  # wait until all replicas confirm a seal; longer than the longest recovery
    avoid_node_s: float = 30.0  # after a failure the writer avoids the node this long, if others are available
    committed_idle_s: float = 0.005  # after this long an idle writer notifies the nodes how far readers may go
    block_payload_bytes_max: int = 4 * MIB  # larger records take several blocks

    # --- readers ---
    read_bytes: int = 2 * MIB  # payload per request; a reader holds up to three replies; 4 MiB were no faster
    read_first_bytes: int = 256 * KIB  # payload of the first request, smaller so that its reply arrives soon
    read_timeout_s: float = 5.0  # one attempt at one replica
    read_deadline_s: float = 30.0  # until some replica has replied
    follow_wait_s: float = 5.0  # a replica replies to a follower within this time, even without new records
    cache_bytes_max: int = 32 * MIB  # blocks fetched by `read_record`
    record_bytes_max: int = 1024 * MIB  # a record of several blocks: readers join it in memory, writers refuse more

    keep_freed_memory: bool = True  # affects the whole process: see client/freed_memory.py
    limits: Limits = DEFAULT_LIMITS

    @property
    def retry_delays(self) -> Delays:
        return Delays(self.retry_delay_s_min, self.retry_delay_s_max)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in _MAY_BE_ZERO and not value > 0:
                raise InvalidArgument(what=each.name, detail=f"{value} is not above 0")
        if self.block_payload_bytes_max > PAYLOAD_BYTES_MAX:
            detail = f"{self.block_payload_bytes_max}; a block holds at most {PAYLOAD_BYTES_MAX}"
            raise InvalidArgument(what="block_payload_bytes_max", detail=detail)


_MAY_BE_ZERO = {"cache_bytes_max", "committed_idle_s", "keep_freed_memory", "limits"}

DEFAULT_OPTIONS = ClientOptions()
