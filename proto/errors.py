"""The error taxonomy: one tree of exception classes, which keep their types across the wire.

    NeveError
    ├── RequestError      the request itself is at fault: change it
    │   ├── InvalidArgument  NotFound  AlreadyExists  TooLarge  QuotaExceeded  ConditionFailed
    │   └── Unauthenticated  PermissionDenied  WrongCluster  UnsupportedVersion  Unimplemented
    ├── TransportError    the call failed on its way
    │   ├── ConnectFailed  Overloaded  ShuttingDown        not executed: send it again
    │   ├── ConnectionLost  DeadlineExceeded  Cancelled    may have been executed: `outcome_unknown`
    │   └── ProtocolViolation                              the peer broke the wire protocol
    ├── OwnershipError    another process leads, owns or serves this: find out which
    │   └── NotLeader  NotOwner  LockedByOther  LockHeld  LeaseLost  WrongServer
    ├── ReplicaError      an extent node's errors about one replica
    │   ├── ReplicaMissing  ReplicaDeleted  ReplicaDamaged  ReplicaDoubtful  ReplicaReadOnly  WrongReplica
    │   ├── ExtentSealed  ExtentFenced  ExtentFull  EversionMismatch  Gap  Conflict  OutOfRange
    │   └── DiskFull  DiskFailed
    ├── StreamError       errors about a stream or a whole extent
    │   ├── StreamSealed  NotEnoughNodes  SealUnavailable  AppendOutcomeUnknown  VersionConflict
    │   └── AcknowledgedLost
    ├── MetaError         the metadata store
    │   └── MetaUnavailable  MaybeApplied  Compacted
    └── Internal, UnknownError    a bug in the peer, or an error class that only a newer peer knows

Invariants: a class keeps its code for ever, and a code is never used twice;
            an error's facts are its fields: int, str, bytes or bool, so that every transport can carry them;
            a field added later has a default, so that an older peer's error can still be built.

Each class says how the caller may react. `retriable`: the same request may succeed later. `refresh_metadata`: ask the
stream or partition manager again first. `outcome_unknown`: the server may have executed the request; it is safe to send
it again only if it carries a call id or may be executed twice.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from neve.proto import common_pb2 as pb

Fact = int | str | bytes | bool

_BY_CODE: dict[int, type[NeveError]] = {}

# A detail may quote text from a peer or a disk. This bound keeps an error smaller than any frame limit.
TEXT_CHARS_MAX = 2_000

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1  # the range of a fact's number


@dataclasses.dataclass(eq=False, kw_only=True)
class NeveError(Exception):
    """Base of all errors of Neve. `detail` adds in words what the fields do not say."""

    code: ClassVar[int] = 0  # 0: abstract, never sent
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False

    detail: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        code = cls.__dict__.get("code", 0)
        if code:
            taken = _BY_CODE.setdefault(code, cls)
            assert taken.__qualname__ == cls.__qualname__, f"{cls} and {taken} share error code {code}"

    def facts(self) -> dict[str, Fact]:
        """The fields by name, which cross the wire."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def summary(self) -> str:
        """One sentence for a person. Classes override it when their name and fields do not suffice."""
        return ""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.facts().items() if name != "detail")
        parts = (
            self.summary() or (f"{type(self).__name__}({shown})" if shown else type(self).__name__),
            self.detail,
        )
        return ": ".join(part for part in parts if part)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts())


def _rebuild(cls: type[NeveError], facts: dict[str, Fact]) -> NeveError:
    return cls(**facts)  # type: ignore[arg-type]


# --- the request ---------------------------------------------------------------------------------------------


class RequestError(NeveError):
    """The request itself is at fault; sending it again unchanged will fail again."""


@dataclasses.dataclass(eq=False, kw_only=True)
class InvalidArgument(RequestError):
    """`what` is the field or argument; `detail` says what is wrong and what is allowed."""

    code = 1
    what: str = ""

    def summary(self) -> str:
        return f"invalid {self.what}" if self.what else "invalid argument"


@dataclasses.dataclass(eq=False, kw_only=True)
class NotFound(RequestError):
    code = 2
    kind: str = ""
    name: str = ""

    def summary(self) -> str:
        return f"no such {self.kind}: {self.name}"


@dataclasses.dataclass(eq=False, kw_only=True)
class AlreadyExists(RequestError):
    code = 3
    kind: str = ""
    name: str = ""

    def summary(self) -> str:
        return f"{self.kind} {self.name} exists already"


@dataclasses.dataclass(eq=False, kw_only=True)
class TooLarge(RequestError):
    code = 4
    what: str = ""
    size_bytes: int = 0
    limit_bytes: int = 0

    def summary(self) -> str:
        return f"{self.what} of {self.size_bytes} bytes is larger than the limit of {self.limit_bytes} bytes"


@dataclasses.dataclass(eq=False, kw_only=True)
class Unauthenticated(RequestError):
    code = 5


@dataclasses.dataclass(eq=False, kw_only=True)
class PermissionDenied(RequestError):
    code = 6
    principal: str = ""
    action: str = ""

    def summary(self) -> str:
        return f"{self.principal or 'this caller'} may not {self.action}"


@dataclasses.dataclass(eq=False, kw_only=True)
class WrongCluster(RequestError):
    code = 7
    expected: str = ""
    got: str = ""

    def summary(self) -> str:
        return f"this is cluster {self.expected!r}, the request is for cluster {self.got!r}"


@dataclasses.dataclass(eq=False, kw_only=True)
class UnsupportedVersion(RequestError):
    code = 8
    what: str = ""
    version: int = 0
    supported_min: int = 0
    supported_max: int = 0

    def summary(self) -> str:
        return f"{self.what} version {self.version} is not in {self.supported_min}..{self.supported_max}"


@dataclasses.dataclass(eq=False, kw_only=True)
class QuotaExceeded(RequestError):
    code = 9
    what: str = ""
    used: int = 0
    limit: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ConditionFailed(RequestError):
    """A conditional put or delete found another version. `version` is the one that it found, 0 for none."""

    code = 10
    version: int = 0

    def summary(self) -> str:
        found = f"the object has version {self.version}" if self.version else "there is no object"
        return f"the condition is not met: {found}"


@dataclasses.dataclass(eq=False, kw_only=True)
class Unimplemented(RequestError):
    code = 11
    method: str = ""

    def summary(self) -> str:
        return f"this server does not know the method {self.method}"


# --- the transport -------------------------------------------------------------------------------------------


class TransportError(NeveError):
    """The call failed between the client and the server's handler."""


@dataclasses.dataclass(eq=False, kw_only=True)
class ConnectFailed(TransportError):
    """No connection could be made, and nothing was sent."""

    code = 20
    retriable = True
    address: str = ""

    def summary(self) -> str:
        return f"cannot connect to {self.address}"


@dataclasses.dataclass(eq=False, kw_only=True)
class ConnectionLost(TransportError):
    """The connection ended after the request was, or may have been, sent."""

    code = 21
    retriable = True
    outcome_unknown = True
    address: str = ""

    def summary(self) -> str:
        return f"the connection to {self.address} was lost before the answer arrived"


@dataclasses.dataclass(eq=False, kw_only=True)
class DeadlineExceeded(TransportError):
    code = 22
    retriable = True
    outcome_unknown = True
    method: str = ""
    timeout_ms: int = 0

    def summary(self) -> str:
        return f"{self.method} was not answered within {self.timeout_ms} ms"


@dataclasses.dataclass(eq=False, kw_only=True)
class Overloaded(TransportError):
    """A limit was reached: the call was refused before any of it was executed."""

    code = 23
    retriable = True
    what: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class ShuttingDown(TransportError):
    """The server is shutting down and has not executed the call."""

    code = 24
    retriable = True


@dataclasses.dataclass(eq=False, kw_only=True)
class Cancelled(TransportError):
    """The handler was cancelled, by its caller or because the server ended."""

    code = 25
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ProtocolViolation(TransportError):
    """The received bytes are not a frame that the protocol allows at this point."""

    code = 26


# --- leadership and ownership --------------------------------------------------------------------------------


class OwnershipError(NeveError):
    """Another process leads, owns or serves this."""


@dataclasses.dataclass(eq=False, kw_only=True)
class NotLeader(OwnershipError):
    """This manager does not lead. `leader` is the leader's address, empty if none is known."""

    code = 40
    retriable = True
    refresh_metadata = True
    leader: str = ""

    def summary(self) -> str:
        return f"not the leader; ask {self.leader}" if self.leader else "not the leader, and no leader is known"


@dataclasses.dataclass(eq=False, kw_only=True)
class NotOwner(OwnershipError):
    """The lock is not held with this token (protocol rule 3)."""

    code = 41
    lock: str = ""
    token: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class LockedByOther(OwnershipError):
    """A replica has seen a newer owner's token: this writer has ended."""

    code = 42
    extent_id: int = 0
    token: int = 0
    token_seen: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class LockHeld(OwnershipError):
    """Another live owner holds the lock. Wait for its lease to end, or take the lock over explicitly."""

    code = 43
    retriable = True
    lock: str = ""
    owner: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class LeaseLost(OwnershipError):
    """The lease has ended, or may have ended: stop at once."""

    code = 44
    lease_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class WrongServer(OwnershipError):
    """This server does not serve that key. `regions_version` is the newest region map's version that it knows."""

    code = 45
    retriable = True
    refresh_metadata = True
    partition_id: int = 0
    regions_version: int = 0


# --- one replica ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaError(NeveError):
    """An extent node's error about its replica of an extent."""

    extent_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaMissing(ReplicaError):
    """The extent never existed on this node. That is not length 0."""

    code = 60
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDeleted(ReplicaError):
    """The node has only a tombstone of it, so a late Create cannot bring it back (protocol rule 22)."""

    code = 61
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDamaged(ReplicaError):
    """Bytes from `offset` on, which were valid once, are damaged."""

    code = 62
    refresh_metadata = True
    offset: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDoubtful(ReplicaError):
    """A power cut may have destroyed acknowledged bytes, so its length proves nothing (protocol rule 12)."""

    code = 63
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaReadOnly(ReplicaError):
    """The disk is full or failing, or a sync of this file has failed."""

    code = 64
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class WrongReplica(ReplicaError):
    """The replica's node, disk or incarnation is not the one that the request names."""

    code = 65
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ExtentSealed(ReplicaError):
    code = 66
    refresh_metadata = True
    length: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ExtentFenced(ReplicaError):
    """A seal has begun: the replica accepts no more appends."""

    code = 67
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ExtentFull(ReplicaError):
    code = 68
    refresh_metadata = True
    length: int = 0
    limit_bytes: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class EversionMismatch(ReplicaError):
    code = 69
    refresh_metadata = True
    eversion: int = 0
    eversion_here: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class Gap(ReplicaError):
    """The append begins above this replica's length: an earlier append has not arrived."""

    code = 70
    retriable = True
    offset: int = 0
    length: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class Conflict(ReplicaError):
    """The replica has other bytes at this offset. This stops the writer and raises an alarm (protocol rule 7)."""

    code = 71
    offset: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class OutOfRange(ReplicaError):
    """The read begins at or beyond `readable`, the end of what readers may see."""

    code = 72
    offset: int = 0
    readable: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class DiskFull(ReplicaError):
    code = 73
    disk: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class DiskFailed(ReplicaError):
    code = 74
    refresh_metadata = True
    disk: str = ""


# --- a stream or a whole extent ------------------------------------------------------------------------------


class StreamError(NeveError):
    """The stream layer's error about a stream or a whole extent."""


@dataclasses.dataclass(eq=False, kw_only=True)
class StreamSealed(StreamError):
    code = 80
    stream_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class NotEnoughNodes(StreamError):
    code = 81
    retriable = True
    wanted: int = 0
    available: int = 0

    def summary(self) -> str:
        return f"{self.wanted} nodes are needed, {self.available} can take an extent"


@dataclasses.dataclass(eq=False, kw_only=True)
class SealUnavailable(StreamError):
    """There are too few trustworthy lengths to seal without risking acknowledged bytes (protocol rule 18)."""

    code = 82
    retriable = True
    extent_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class AppendOutcomeUnknown(StreamError):
    """The writer ended before it knew whether this append is in the stream (protocol rule 2)."""

    code = 83
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class VersionConflict(StreamError):
    """The metadata changed while the request was executed."""

    code = 84
    retriable = True
    refresh_metadata = True
    what: str = ""
    version: int = 0
    version_now: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class AcknowledgedLost(StreamError):
    """An extent was sealed below its acknowledged end: unsynced appends are lost when all replicas lose power."""

    code = 85
    extent_id: int = 0
    sealed_length: int = 0
    acknowledged: int = 0


# --- the metadata store --------------------------------------------------------------------------------------


class MetaError(NeveError):
    """The metadata store did not execute a request."""


@dataclasses.dataclass(eq=False, kw_only=True)
class MetaUnavailable(MetaError):
    """The store did not answer and has certainly not applied the request."""

    code = 100
    retriable = True


@dataclasses.dataclass(eq=False, kw_only=True)
class MaybeApplied(MetaError):
    """The store may have applied the write: check before repeating it (protocol rule 19)."""

    code = 101
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class Compacted(MetaError):
    """The requested revision was compacted away; the oldest one left is `revision_min`. List again."""

    code = 102
    revision_min: int = 0


# --- bugs and unknown codes ----------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, kw_only=True)
class Internal(NeveError):
    """A bug in the server: an exception outside of this tree. The server's log has its traceback."""

    code = 200
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class UnknownError(NeveError):
    """An error code that this version does not know, sent by a newer peer."""

    code = 201
    outcome_unknown = True
    peer_code: int = 0


# --- to and from the wire ------------------------------------------------------------------------------------


def all_errors() -> dict[int, type[NeveError]]:
    """All concrete classes by their wire codes."""
    return dict(_BY_CODE)


def to_message(error: BaseException) -> pb.Error:
    """The message for `error`. An exception that is no NeveError is a bug and becomes `Internal`."""
    if not isinstance(error, NeveError) or not type(error).code:
        error = Internal(detail=f"{type(error).__name__}: {error}")
    message = pb.Error(code=type(error).code)
    for name, value in error.facts().items():
        fact = message.facts.add(name=name)
        if isinstance(value, bool):  # before int: a bool is an int
            fact.flag = value
        elif isinstance(value, int):
            # No number of Neve's exceeds 64 bits. If one does, dropping it is better than an error that cannot be sent.
            if INT64_MIN <= value <= INT64_MAX:
                fact.number = value
        elif isinstance(value, str):
            # A file name that is not UTF-8 has lone surrogates, which protobuf refuses.
            fact.text = value[:TEXT_CHARS_MAX].encode(errors="replace").decode()
        else:
            fact.data = value[:TEXT_CHARS_MAX]
    return message


def from_message(message: pb.Error) -> NeveError:
    """The exception for `message`. Facts that this version does not know are dropped."""
    facts: dict[str, Any] = {}
    for fact in message.facts:
        kind = fact.WhichOneof("value")
        if kind is not None:
            facts[fact.name] = getattr(fact, kind)
    cls = _BY_CODE.get(message.code)
    if cls is None:
        detail = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        return UnknownError(peer_code=message.code, detail=detail)
    kinds = {"int": int, "str": str, "bytes": bytes, "bool": bool}  # annotations are strings in this module
    known = {field.name: kinds[str(field.type)] for field in dataclasses.fields(cls)}
    kept: dict[str, Any] = {name: value for name, value in facts.items() if type(value) is known.get(name)}
    return cls(**kept)
