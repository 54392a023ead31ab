"""The confirmations that were revoked, so that no reply to an earlier order restores one (protocol rule 20). No I/O.

Revocations are numbered. A flow that sends a seal order remembers the latest number, and when the reply arrives it
asks whether the replica's confirmation was revoked since.

Invariants: bounded: the oldest revocations are forgotten, and then replies to orders older than those are not believed
            for any replica. The order is sent again, which costs one round; a wrong confirmation would send readers to
            a replica that is known to be bad.
"""

from __future__ import annotations

EVENTS_MAX = 10_000  # far more than are revoked while one order is under way


class RevokedConfirmations:
    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self.number = 0  # of the latest revocation
        self._events_max = events_max
        self._forgotten = 0  # the latest revocation that was dropped
        self._numbers: dict[tuple[int, int], int] = {}  # (extent, node) → its latest revocation, the oldest first

    def note(self, extent_id: int, node_id: int) -> None:
        self.number += 1
        self._numbers.pop((extent_id, node_id), None)
        self._numbers[extent_id, node_id] = self.number
        if len(self._numbers) > self._events_max:
            self._forgotten = self._numbers.pop(next(iter(self._numbers)))

    def since(self, number: int, extent_id: int, node_id: int) -> bool:
        """Whether the confirmation was, or may have been, revoked after the revocation `number`."""
        return number < max(self._forgotten, self._numbers.get((extent_id, node_id), 0))
