"""The options of the key-value client: every bound and timeout, each with its reason.

Invariants: an option that cannot work raises InvalidArgument with its name when the options are made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from neve.meta.core_retry import Delays
from neve.proto.errors import InvalidArgument
from neve.rpc.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from neve.rpc.removed_settings import ignores_removed


@ignores_removed
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueOptions:
    """Options of `KeyValueClient` and `SyncKeyValueClient`. Raises InvalidArgument if a value cannot work."""

    operation_timeout_s: float = 30.0  # all attempts; longer than a server's lease and the loading after it
    attempt_timeout_s: float = 5.0  # one attempt at one server; then the client checks the map for another server
    map_timeout_s: float = 2.0  # one attempt to read the map
    retry_delay_s_min: float = 0.01
    retry_delay_s_max: float = 1.0

    buffer_bytes_max: int = 64 * MIB  # of operations without a reply

    # Small enough that many operations make several frames: with one large frame, client and server take turns. Tried
    # once each on a loaded machine, of 32, 64, 128 and 512: 128 was best or second, except with 1,024 readers, where 32
    # was 1.4 times as fast. Worth measuring again on an idle machine.
    frame_operations_max: int = 128
    frame_bytes_max: int = 1 * MIB  # values of one frame of puts
    frames_in_flight_max: int = 8  # to one server, for reads and for writes each
    alone_bytes_min: int = 256 * KIB  # larger puts get a call of their own, to not delay the others of a frame
    reply_bytes_max: int = 4 * MIB  # reply to one frame of gets; values that do not fit are fetched separately

    part_bytes: int = 4 * MIB  # of a streamed value
    first_part_bytes: int = 1 * MIB  # of a streamed get, smaller so that its first reply arrives soon
    scan_page_keys_max: int = 1000
    scan_page_bytes_max: int = 4 * MIB
    limits: Limits = DEFAULT_LIMITS

    @property
    def retry_delays(self) -> Delays:
        return Delays(self.retry_delay_s_min, self.retry_delay_s_max)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "limits" and not value > 0:
                raise InvalidArgument(what=each.name, detail=f"{value} is not above 0")
        if self.part_bytes > self.limits.attachment_bytes_max:
            detail = f"{self.part_bytes}; an attachment has at most {self.limits.attachment_bytes_max}"
            raise InvalidArgument(what="part_bytes", detail=detail)


DEFAULT_KV_OPTIONS = KeyValueOptions()
