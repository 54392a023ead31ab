"""What can be set about a key-value client. Every bound and timeout of it is here, with its reason.

Invariants: a value that cannot work is refused when it is given, naming it.
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
    operation_timeout_s: float = 30.0  # all attempts included: above a server's lease and the loading after it
    attempt_timeout_s: float = 5.0  # of one attempt at one server: then the map is asked whether it is still the one
    map_timeout_s: float = 2.0  # of one attempt to learn the map
    retry_delay_s_min: float = 0.01
    retry_delay_s_max: float = 1.0

    buffer_bytes_max: int = 64 * MIB  # of operations that are not answered yet

    # So that several frames are out when many operations are: with one large frame, client and server take turns.
    # 32, 64, 128 and 512 were tried once each, on a loaded machine: 128 was best or second, except for 1,024 readers,
    # where 32 was 1.4 times as fast. Worth another look on an idle one.
    frame_operations_max: int = 128
    frame_bytes_max: int = 1 * MIB  # of the values of one frame of puts
    frames_in_flight_max: int = 8  # to one server, of reads and of writes
    alone_bytes_min: int = 256 * KIB  # a larger put goes in a call of its own: its bytes would hold up the others
    reply_bytes_max: int = 4 * MIB  # of one frame of gets: what finds no room in it is asked for alone

    part_bytes: int = 4 * MIB  # of a streamed value
    first_part_bytes: int = 1 * MIB  # the first answer of a streamed get comes soon
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
