"""What users of a story may be told when something fails: any other error is a bug, whatever else goes well.

Users bring some errors on each other, and get them without any trouble: a stream has another owner, is sealed or
deleted; a condition is not met; keys of a batch are in two partitions. The others take trouble, and some of them
trouble of a certain kind. An error of a replica, of a frame, or of the code is nobody's to be told, ever: whoever
asked has to be helped, or told what it means for what he asked for.

    whatever = wrong_to_tell("writer", error, troubles=("node killed",), ledger=ledger)      "" if it may be told

Invariants: an error that is not listed for a kind of user is never right;
            that a stream is sealed or gone is told only if somebody asked for that, and that what was acknowledged is
            lost only to who did without sync;
            an append of unknown outcome says why, by an error that its owner might have been told himself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from neve.proto.errors import (
    AcknowledgedLost,
    AppendOutcomeUnknown,
    InvalidArgument,
    NeveError,
    NotFound,
    Overloaded,
    ShuttingDown,
    StreamSealed,
)
from tests.sim.checks.explained_errors import ERRORS, LEADING, POWER, SWAPS
from tests.sim.checks.ledger import Ledger

Causes = frozenset[str] | None  # kinds of trouble, one of which it takes; None: any; CALM: none at all
CALM: Causes = frozenset()

STOPPED = frozenset({"client stopped", "owner stopped past its lease", "stream taken over", "key-value client stopped"})
META = LEADING | STOPPED

OWNERS: Mapping[str, Causes] = {
    "AppendOutcomeUnknown": CALM,
    "LockHeld": CALM,
    "NotFound": CALM,
    "NotOwner": CALM,
    "StreamSealed": CALM,
    "AcknowledgedLost": POWER,
    "ConnectFailed": None,
    "DeadlineExceeded": None,
    "LeaseLost": META,
    "LockedByOther": META,
    "MaybeApplied": META,
    "MetaUnavailable": META,
    "NotEnoughNodes": None,
    "NotLeader": META,
    "Overloaded": None,  # a writer holds as much as it may that is not acknowledged yet
    "SealUnavailable": None,
}
READERS: Mapping[str, Causes] = {
    "NotFound": CALM,
    "AcknowledgedLost": POWER,
    "ConnectFailed": None,
    "DeadlineExceeded": None,
    # No replica could give it until the time was over, and why the last one could not.
    "OutOfRange": None,
    "ReplicaDoubtful": ERRORS | POWER | SWAPS,
}
KEY_VALUE: Mapping[str, Causes] = {
    "ConditionFailed": CALM,
    "InvalidArgument": CALM,
    "NotFound": CALM,
    # Nobody served the key until the time was over; while nothing can have been done, the last error says why.
    "ConnectFailed": None,
    "DeadlineExceeded": None,
    "WrongServer": None,
}
RESHAPERS: Mapping[str, Causes] = {
    # Others move, split and merge the same partition at the same time, and it is closed for that.
    "AppendOutcomeUnknown": CALM,
    "NotOwner": CALM,
    "ShuttingDown": CALM,
    "WrongServer": CALM,
    "InvalidArgument": CALM,
    "NotFound": CALM,
    "Overloaded": CALM,
    "VersionConflict": CALM,
    "Cancelled": None,
    "ConnectFailed": None,
    "ConnectionLost": None,
    "DeadlineExceeded": None,
    "LeaseLost": None,
    "NotLeader": None,
    "NotEnoughNodes": None,
    "SealUnavailable": None,
}
MAY_BE_TOLD: Mapping[str, Mapping[str, Causes]] = {
    "operator": OWNERS,
    "rival": OWNERS,
    "writer": OWNERS,
    "reader": READERS,
    # A value that comes in chunks is uploaded, too, and uploads that their clients left count until they are idle for
    # too long: longer than an operation may take.
    "kv": {**KEY_VALUE, "Overloaded": CALM},
    "kv upload": {**KEY_VALUE, "Overloaded": CALM},
    "reader-kv": {name: KEY_VALUE[name] for name in ("ConnectFailed", "DeadlineExceeded", "WrongServer")},
    "kv operator": RESHAPERS,
    "last": {},  # who looks when all is well again
}
"""By kind of user, and class."""

WRONG_KEYS = ("operations", "middle_key", "right_partition_id")
GONE = ("upload", "partition", "partition server")
FULL_FOR_KEY_VALUE = ("uploads",)


def role_of(user: str) -> str:
    """`kv5.1` is a kv, `kv operator: MoveRegion` a kv operator."""
    return re.sub(r"[\d.]+|:.*", "", user)


def wrong_to_tell(user: str, error: NeveError, *, troubles: Collection[str], ledger: Ledger) -> str:
    """Why; "" if it may be told. `troubles`: the kinds that the story has had so far."""
    allowed = MAY_BE_TOLD[role_of(user)]
    name = type(error).__name__
    if name not in allowed:
        return "nobody is told that"
    causes = allowed[name]
    if causes is None and not troubles:
        return "there was no trouble"
    if causes and causes.isdisjoint(troubles):
        return "no trouble explains it"
    if isinstance(error, AppendOutcomeUnknown) and role_of(user) != "kv operator":  # to whom causes do not come
        return _wrong_cause(user, error, troubles=troubles, ledger=ledger)
    if role_of(user) == "kv" and isinstance(error, Overloaded) and error.what not in FULL_FOR_KEY_VALUE:
        return f"{error.what} is not what is full for so long"
    weak = any(session.weak and (session.owner == user or role_of(user) == "reader") for session in ledger.sessions)
    return _wrong_itself(error, ledger, weak=weak)


def _wrong_cause(user: str, error: AppendOutcomeUnknown, *, troubles: Collection[str], ledger: Ledger) -> str:
    cause = error.__cause__
    if isinstance(cause, ShuttingDown):  # its owner has left
        return ""
    if not isinstance(cause, NeveError):
        return "nothing says why"
    return wrong_to_tell(user, cause, troubles=troubles, ledger=ledger)


def _wrong_itself(error: NeveError, ledger: Ledger, *, weak: bool) -> str:
    if isinstance(error, StreamSealed):
        return "" if error.stream_id in ledger.sealed else "nobody has sealed it"
    if isinstance(error, NotFound):
        if error.kind == "stream":  # a twin is known before it is made; partitions delete their own
            gone = {*ledger.deleted, *ledger.merged, *ledger.twins}
            there = {str(each) for each in ledger.streams if each not in gone}
            return "nobody has deleted it" if error.name in there else ""
        if error.kind == "extent" and error.name.startswith("next to ") and ledger.merged:
            return ""
        if error.kind in ("position", "extent"):
            removed = {str(each) for extent_ids in ledger.removed.values() for each in extent_ids}
            return "" if error.name.partition(":")[0] in removed else "nobody has taken it out"
        return "" if error.kind in GONE else "nobody has asked for one"
    if isinstance(error, InvalidArgument):
        return "" if error.what in WRONG_KEYS else "nobody has asked for anything invalid"
    if isinstance(error, AcknowledgedLost):
        return "" if weak else "it was synced"
    return ""
