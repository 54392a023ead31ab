"""Confirmations that every replica has given and no transaction has recorded yet. No I/O.

They wait a moment for the next write of their stream, which takes them along: a writer that rolls often has one
transaction for each roll in place of two.

Invariants: what stands here counts for nothing: an extent is confirmed when a transaction says so (20), and for who
            asks for its confirmation it is recorded at once;
            one extent of a stream at a time, and no more streams than `HEARD_MAX`;
            it ends with the term: a new leader asks the replicas again.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from neve.stream_manager.records import Extent, ReplicaAt

KEPT_S = 0.25  # far below how often most writers roll; those that roll more often are the ones that gain
HEARD_MAX = 10_000


class Heard(NamedTuple):
    extent_id: int
    replicas: tuple[ReplicaAt, ...]  # all of the extent's
    digests: list[bytes]  # theirs, in the same order
    asked_at: int  # the last condemnation before they were asked
    heard_s: float  # by the loop's clock

    @property
    def confirmed(self) -> dict[ReplicaAt, bytes]:
        return dict(zip(self.replicas, self.digests, strict=True))


class HeardTable:
    def __init__(self) -> None:
        self._by_stream: dict[int, Heard] = {}  # the oldest first
        self.recording = False  # somebody looks after those that have waited

    def __len__(self) -> int:
        return len(self._by_stream)

    def add(self, stream_id: int, heard: Heard) -> Heard | None:
        """Returns what there is no room for."""
        if len(self._by_stream) >= HEARD_MAX:
            return heard
        before = self._by_stream.pop(stream_id, None)
        self._by_stream[stream_id] = heard
        return before

    def take(self, stream_id: int) -> Heard | None:
        return self._by_stream.pop(stream_id, None)

    def of(self, stream_id: int) -> Heard | None:
        """What `take` would give."""
        return self._by_stream.get(stream_id)

    def has(self, extent: Extent) -> bool:
        heard = self._by_stream.get(extent.stream_id)
        return heard is not None and heard.extent_id == extent.extent_id

    def take_older(self, heard_s: float) -> list[Heard]:
        """Those that were heard by then."""
        table = self._by_stream
        old = list(itertools.takewhile(lambda stream_id: table[stream_id].heard_s <= heard_s, table))
        return [table.pop(stream_id) for stream_id in old]
