"""The error taxonomy: one tree that crosses the wire and stays an exception type on the other side.

    NeveError
    ├── RequestError      the caller asked for something that cannot be: change the request
    │   ├── InvalidArgument  NotFound  AlreadyExists  TooLarge  QuotaExceeded  ConditionFailed
    │   └── Unauthenticated  PermissionDenied  WrongCluster  UnsupportedVersion  Unimplemented
    ├── TransportError    the call did not come through
    │   ├── ConnectFailed  Overloaded  ShuttingDown        nothing was executed: send it again
    │   └── ConnectionLost  DeadlineExceeded  Cancelled    it may have been executed: `outcome_unknown`
    │   └── ProtocolViolation                              the peer sent what no Neve would send
    ├── OwnershipError    somebody else is in charge: ask who
    │   └── NotLeader  NotOwner  LockedByOther  LockHeld  LeaseLost  WrongServer
    ├── ReplicaError      what an extent node says of one replica
    │   ├── ReplicaMissing  ReplicaDeleted  ReplicaDamaged  ReplicaDoubtful  ReplicaReadOnly  WrongReplica
    │   ├── ExtentSealed  ExtentFenced  ExtentFull  EversionMismatch  Gap  Conflict  OutOfRange
    │   └── DiskFull  DiskFailed
    ├── StreamError       what the stream layer says of a stream or an extent as a whole
    │   ├── StreamSealed  NotEnoughNodes  SealUnavailable  AppendOutcomeUnknown  VersionConflict
    │   └── AcknowledgedLost
    ├── MetaError         the metadata store
    │   └── MetaUnavailable  MaybeApplied  Compacted
    └── Internal, UnknownError    a bug here, or an error class that only a newer peer knows

Invariants: a class keeps its code for ever, and a code is never used twice;
            an error's facts are its fields: int, str, bytes or bool, so that every transport can carry them;
            a field added later has a default, so that an older peer's error can still be built.

Each class tells the caller what to do: `retriable` (the same request may succeed later), `refresh_metadata` (ask
the stream or partition manager again first), `outcome_unknown` (it may have been executed; only a request that
may be executed twice, or that carries a call id, is safe to send again).
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from neve.proto import common_pb2 as pb

Fact = int | str | bytes | bool

_BY_CODE: dict[int, type[NeveError]] = {}

# A detail may quote what a peer or a disk said; a bound keeps an error smaller than any frame limit.
TEXT_CHARS_MAX = 2_000

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1  # what a fact can carry


@dataclasses.dataclass(eq=False, kw_only=True)
class NeveError(Exception):
    """Base of all errors of Neve. `detail` adds, in words, what the fields cannot say."""

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
        """The fields by name: what crosses the wire."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def summary(self) -> str:
        """One sentence for a person. Classes override it when their name and fields do not say it all."""
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
    """`what` is the field or argument; `detail` says what is wrong and what would be right."""

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
    """A conditional put or delete found another version; `version` is the one it found, 0 for none."""

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
    """The call did not come through."""


@dataclasses.dataclass(eq=False, kw_only=True)
class ConnectFailed(TransportError):
    """No connection could be had: nothing was sent."""

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
        return f"the connection to {self.address} was lost before the answer came"


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
    """A bound was reached and the call was refused before anything was done."""

    code = 23
    retriable = True
    what: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class ShuttingDown(TransportError):
    """The server drains: it has not executed the call."""

    code = 24
    retriable = True


@dataclasses.dataclass(eq=False, kw_only=True)
class Cancelled(TransportError):
    """The handler was cancelled, by its caller or by the end of the server."""

    code = 25
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ProtocolViolation(TransportError):
    """The bytes received are not a frame that this protocol allows here."""

    code = 26


# --- who is in charge ----------------------------------------------------------------------------------------


class OwnershipError(NeveError):
    """Somebody else leads, owns or serves this."""


@dataclasses.dataclass(eq=False, kw_only=True)
class NotLeader(OwnershipError):
    """`leader` is the address of the leader, empty while there is none."""

    code = 40
    retriable = True
    refresh_metadata = True
    leader: str = ""

    def summary(self) -> str:
        return f"not the leader; ask {self.leader}" if self.leader else "not the leader, and none is known"


@dataclasses.dataclass(eq=False, kw_only=True)
class NotOwner(OwnershipError):
    """The lock is not held with this token (protocol.md, rule 3)."""

    code = 41
    lock: str = ""
    token: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class LockedByOther(OwnershipError):
    """A replica has seen a newer owner's token: this writer is over."""

    code = 42
    extent_id: int = 0
    token: int = 0
    token_seen: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class LockHeld(OwnershipError):
    """Another live owner holds the lock; wait for its lease to end, or take it over explicitly."""

    code = 43
    retriable = True
    lock: str = ""
    owner: str = ""


@dataclasses.dataclass(eq=False, kw_only=True)
class LeaseLost(OwnershipError):
    """The lease ended, or cannot be proved to live: stop at once."""

    code = 44
    lease_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class WrongServer(OwnershipError):
    """This server does not serve that key (any more); `regions_version` is the newest it knows."""

    code = 45
    retriable = True
    refresh_metadata = True
    partition_id: int = 0
    regions_version: int = 0


# --- one replica ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaError(NeveError):
    """What an extent node says of its replica of an extent."""

    extent_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaMissing(ReplicaError):
    """The extent never existed here. That is not length 0."""

    code = 60
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDeleted(ReplicaError):
    """A tombstone is all that is left: a late Create cannot bring it back (rule 22)."""

    code = 61
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDamaged(ReplicaError):
    """Bytes that were valid are not any more, from `offset` on."""

    code = 62
    refresh_metadata = True
    offset: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaDoubtful(ReplicaError):
    """A power cut may have taken acknowledged bytes: its length proves nothing (rule 12)."""

    code = 63
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ReplicaReadOnly(ReplicaError):
    """The disk is full or failing, or a sync of this file failed once."""

    code = 64
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class WrongReplica(ReplicaError):
    """Node, disk or incarnation is not the one that the request names."""

    code = 65
    refresh_metadata = True


@dataclasses.dataclass(eq=False, kw_only=True)
class ExtentSealed(ReplicaError):
    code = 66
    refresh_metadata = True
    length: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class ExtentFenced(ReplicaError):
    """A seal has begun: no append is accepted any more."""

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
    """The append begins above this replica's length: an earlier one has not arrived."""

    code = 70
    retriable = True
    offset: int = 0
    length: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class Conflict(ReplicaError):
    """Other bytes stand at this offset. It stops the writer and raises an alarm (rule 7)."""

    code = 71
    offset: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class OutOfRange(ReplicaError):
    """The read begins beyond what readers may see; `readable` is how far they may."""

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


# --- a stream or an extent as a whole ------------------------------------------------------------------------


class StreamError(NeveError):
    """What the stream layer says of a stream, or of an extent as a whole."""


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
    """Too few trustworthy lengths to seal without a risk to acknowledged bytes (rule 18)."""

    code = 82
    retriable = True
    extent_id: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class AppendOutcomeUnknown(StreamError):
    """The writer ended before it learned whether this append is in the stream (rule 2)."""

    code = 83
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class VersionConflict(StreamError):
    """The metadata changed under the request."""

    code = 84
    retriable = True
    refresh_metadata = True
    what: str = ""
    version: int = 0
    version_now: int = 0


@dataclasses.dataclass(eq=False, kw_only=True)
class AcknowledgedLost(StreamError):
    """An extent was sealed below what its writer was told is there: what is not synced goes when all lose power."""

    code = 85
    extent_id: int = 0
    sealed_length: int = 0
    acknowledged: int = 0


# --- the metadata store --------------------------------------------------------------------------------------


class MetaError(NeveError):
    """The metadata store did not do what was asked."""


@dataclasses.dataclass(eq=False, kw_only=True)
class MetaUnavailable(MetaError):
    """The store did not answer and has certainly not applied the request."""

    code = 100
    retriable = True


@dataclasses.dataclass(eq=False, kw_only=True)
class MaybeApplied(MetaError):
    """The store may have applied the write: look before doing it again (rule 19)."""

    code = 101
    outcome_unknown = True


@dataclasses.dataclass(eq=False, kw_only=True)
class Compacted(MetaError):
    """The revision asked for is gone; the oldest one left is `revision_min`. List again."""

    code = 102
    revision_min: int = 0


# --- bugs and strangers --------------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False, kw_only=True)
class Internal(NeveError):
    """A bug on the other side: an exception that is not of this tree. The server's log has its traceback."""

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
    """Every concrete class by its wire code."""
    return dict(_BY_CODE)


def to_message(error: BaseException) -> pb.Error:
    """What to send for `error`. An exception that is not ours is a bug here, and becomes `Internal`."""
    if not isinstance(error, NeveError) or not type(error).code:
        error = Internal(detail=f"{type(error).__name__}: {error}")
    message = pb.Error(code=type(error).code)
    for name, value in error.facts().items():
        fact = message.facts.add(name=name)
        if isinstance(value, bool):  # before int: a bool is an int
            fact.flag = value
        elif isinstance(value, int):
            # No number of ours is beyond 64 bits; if one is, better a fact less than an error that cannot be sent.
            if INT64_MIN <= value <= INT64_MAX:
                fact.number = value
        elif isinstance(value, str):
            # A file name that is not UTF-8 has lone surrogates, which protobuf refuses.
            fact.text = value[:TEXT_CHARS_MAX].encode(errors="replace").decode()
        else:
            fact.data = value[:TEXT_CHARS_MAX]
    return message


def from_message(message: pb.Error) -> NeveError:
    """The exception to raise for `message`. Facts that this version does not know are dropped."""
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
