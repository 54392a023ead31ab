"""What can be set about a client. Every bound and timeout of it is here, with its reason.

Invariants: a value that cannot work is refused when it is given, naming it.
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
    # --- managers ---
    call_timeout_s: float = 30.0  # of one operation, all attempts at all managers included
    attempt_timeout_s: float = 10.0  # of one attempt: above a fail-over of the managers, which others then know of
    retry_delay_s_min: float = 0.05
    retry_delay_s_max: float = 2.0

    # --- writers ---
    lease_ttl_s: int = 10  # of the locks: how long a dead client keeps others out
    lock_timeout_s: float = 30.0  # to wait for another owner: above its lease
    writer_bytes_max: int = 64 * MIB  # appended and not acknowledged, of one writer
    buffer_bytes_max: int = 256 * MIB  # the same of all writers of the client
    frame_bytes: int = 2 * MIB  # measured: 1 MiB gave up to a tenth less, 64 KiB half, 4 MiB no more
    frames_in_flight_max: int = 8  # to one node
    append_timeout_s: float = 2.0  # of one frame
    append_attempts_max: int = 3  # at one replica without any progress, before the stream goes on without its node
    append_retry_delay_s: float = 0.05
    roll_timeout_s: float = 60.0  # to have the next extent: above the time in which dead nodes are found out
    confirm_timeout_s: float = 3600.0  # to have a seal confirmed by all replicas: above the longest recovery
    avoid_node_s: float = 30.0  # a node that failed is not asked for during this time, if there are others
    committed_idle_s: float = 0.005  # after so long an idle writer notifies the nodes how far readers may go
    block_payload_bytes_max: int = 4 * MIB  # larger records go in several blocks

    # --- readers ---
    read_bytes: int = 2 * MIB  # of payload, asked for at a time: a reader holds three of them; 4 MiB were no faster
    read_first_bytes: int = 256 * KIB  # the first answer of a reader comes soon; the following ones are larger
    read_timeout_s: float = 5.0  # of one attempt at one replica
    read_deadline_s: float = 30.0  # until some replica has answered
    follow_wait_s: float = 5.0  # a replica answers a follower by then, with or without news
    cache_bytes_max: int = 32 * MIB  # of blocks that were read one by one
    record_bytes_max: int = 1024 * MIB  # of a record in several blocks: readers join it in memory, writers refuse more

    keep_freed_memory: bool = True  # of the whole process: memory.py says why
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
