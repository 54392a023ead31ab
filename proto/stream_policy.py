"""A stream's policy: its creator's choices for its extents. Fields, defaults, both directions of encoding, JSON.

To add a field, add it to the message `StreamPolicy` in proto/stream_manager.proto, and here to the class, `of` and
`message`. The manager stores the message in the stream's record and returns it in descriptions, so no other module of
the manager has to know the field.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument

POLICIES_CACHED_MAX = 1_000  # distinct policies whose encoded bytes are cached


class StreamPolicy(NamedTuple):
    """The policy of a stream. Pass the fields by name.

    In a request, 0 and "" mean the cluster's defaults. In a stream the manager has filled in all fields except
    `placement`. It is a tuple because the creation of a stream uses its policy as the key of several lookups.
    """

    replicas: int = 0
    sync: bool = True  # the writers' default: acknowledge an append when it is on stable storage
    extent_bytes_max: int = 0
    placement: str = ""  # the name of a placement policy; a stream without one follows the cluster's default
    strict: bool = False  # refuse to place replicas where the placement policy cannot be met

    @classmethod
    def of(cls, message: sm.StreamPolicy) -> StreamPolicy:
        return cls(
            replicas=message.replicas,
            sync=not message.no_sync,
            extent_bytes_max=message.extent_bytes_max,
            placement=message.placement,
            strict=message.strict,
        )

    def message(self) -> sm.StreamPolicy:
        for name in ("replicas", "extent_bytes_max"):
            if getattr(self, name) < 0:
                raise InvalidArgument(what=name, detail="it is negative")
        return sm.StreamPolicy(
            replicas=self.replicas,
            no_sync=not self.sync,
            extent_bytes_max=self.extent_bytes_max,
            placement=self.placement,
            strict=self.strict,
        )

    def filled(self, *, replicas: int, extent_bytes_max: int) -> StreamPolicy:
        """A copy with the cluster's defaults for the fields that the creator did not choose."""
        return self._replace(
            replicas=self.replicas or replicas, extent_bytes_max=self.extent_bytes_max or extent_bytes_max
        )

    def json(self) -> dict[str, object]:
        """For commands that print JSON: every field under its own name."""
        return self._asdict()


@functools.lru_cache(maxsize=POLICIES_CACHED_MAX)
def policy_bytes(policy: StreamPolicy) -> bytes:
    """The encoded message. Most streams share a few policies."""
    return policy.message().SerializeToString()
