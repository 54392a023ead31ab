"""The follower of a manager that does not lead: a state that a watch keeps up to date, to answer reads from.

Invariants: those of meta.follower: one revision at a time, and nothing before the first listing is complete.
"""

from __future__ import annotations

from neve.meta.follower import Follower
from neve.meta.store import MetaStore
from neve.meta.txn import KeyRange
from neve.stream_manager.metadata.record_kinds import KINDS
from neve.stream_manager.metadata.state import State


def kind_ranges(root: bytes) -> list[KeyRange]:
    """The key ranges of all records in a state."""
    return [KeyRange.prefix(root + prefix) for prefix in KINDS]


class StateFollower(Follower[State]):
    def __init__(self, store: MetaStore, root: bytes) -> None:
        super().__init__(store, lambda: State(root), ranges=kind_ranges(root), watched=KeyRange.prefix(root))
