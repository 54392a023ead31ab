"""The decisions of an extent node about one replica, without I/O. Other packages import them from here.

    core/state.py     the state of one replica, and how it changes
    core/append.py    append: accept, refuse or compare; what must be durable before the reply
    core/control.py   create, raise, fence, seal, delete, start
    core/answers.py   how far readers may read; what a reported length is worth

Invariants: no module here imports asyncio or os, opens a file, reads a clock or draws a random number;
            a decision is valid for the present state only: after anything that takes time, the caller decides again;
            an effect states the order of its steps, and a `note_…` method is called after what it notes.
"""

from neve.extent_node.core.answers import (
    Readable,
    answer_kind,
    decide_read,
    decide_read_range,
    length_answer,
    present,
    replica_info,
    seal_message,
)
from neve.extent_node.core.append import (
    NOT_COMPARED,
    Append,
    AppendDecision,
    Compared,
    CompareOverlap,
    PersistToken,
    compare,
    decide_append,
    may_journal,
)
from neve.extent_node.core.control import (
    Confirm,
    Confirmed,
    CutAndVerify,
    CutTail,
    DoubtTail,
    KeepTail,
    MakeReplica,
    MoveToTrash,
    NotConfirmed,
    NothingToDelete,
    Persist,
    Quarantine,
    Ready,
    SameReplica,
    decide_create,
    decide_delete,
    decide_fence,
    decide_raise,
    decide_seal,
    decide_tail,
    decide_verified,
    doubt_after_failed_sync,
    doubt_on_start,
)
from neve.extent_node.core.state import Existing, Quarantined, ReadOnly, Refuse, ReplicaState, Tombstone, wrong_replica

__all__ = [
    "NOT_COMPARED",
    "Append",
    "AppendDecision",
    "CompareOverlap",
    "Compared",
    "Confirm",
    "Confirmed",
    "CutAndVerify",
    "CutTail",
    "DoubtTail",
    "Existing",
    "KeepTail",
    "MakeReplica",
    "MoveToTrash",
    "NotConfirmed",
    "NothingToDelete",
    "Persist",
    "PersistToken",
    "Quarantine",
    "Quarantined",
    "ReadOnly",
    "Readable",
    "Ready",
    "Refuse",
    "ReplicaState",
    "SameReplica",
    "Tombstone",
    "answer_kind",
    "compare",
    "decide_append",
    "decide_create",
    "decide_delete",
    "decide_fence",
    "decide_raise",
    "decide_read",
    "decide_read_range",
    "decide_seal",
    "decide_tail",
    "decide_verified",
    "doubt_after_failed_sync",
    "doubt_on_start",
    "length_answer",
    "may_journal",
    "present",
    "replica_info",
    "seal_message",
    "wrong_replica",
]
