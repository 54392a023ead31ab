"""What an extent node decides about a replica, without I/O: the one import for those who carry it out.

    core/state.py     what is known of a replica, and how it changes
    core/append.py    append: accept, refuse, compare; what an answer waits for
    core/control.py   create, raise, fence, seal, delete, start
    core/answers.py   how far readers may go; what a length is worth

Invariants: no module of these imports asyncio or os, opens a file, reads a clock or draws a number;
            a decision is about the state as it is now: after anything that took time, decide again;
            effects state their order, and a `note_…` follows what it notes.
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
