"""The translation of errors of etcd and gRPC into Neve's, above all: may the write have been applied?

Invariants: a write ends in `MetaUnavailable` only if it was certainly not applied, and in doubt in `MaybeApplied`.

    status              text contains                        raised by etcd                        a write was
    ------------------  -----------------------------------  ------------------------------------  ---------------
    UNAVAILABLE         failed to connect to all addresses   (gRPC, here) before sending           not applied
    UNAVAILABLE         etcdserver: no leader                by the interceptor, before proposing  not applied
    RESOURCE_EXHAUSTED  etcdserver: too many requests        before proposing                      not applied
    RESOURCE_EXHAUSTED  Sent message larger than max         (gRPC, here) before sending           refused: TooLarge
    RESOURCE_EXHAUSTED  grpc: received message larger        (gRPC, there) before the handler      refused: TooLarge
    INVALID_ARGUMENT    etcdserver: request is too large     before proposing                      refused: TooLarge
    INVALID_ARGUMENT    (other) empty or duplicate key …     before proposing                      refused
    NOT_FOUND           requested lease not found            before the first operation is run     refused: LeaseLost
    OUT_OF_RANGE        compacted, future revision           before the first operation is run     refused
    UNAUTHENTICATED     …                                    before proposing                      refused
    PERMISSION_DENIED   …                                    before the first operation is run     refused
    anything else       request timed out, leader changed,   after proposing, or unknown           maybe applied
                        server stopped, socket closed …

"etcdserver: mvcc: database space exceeded" is in the last group on purpose: etcd applies the first write that exceeds
the quota *and* answers it with that error (quotaApplierV3). "Received message larger than max" on our side and "trying
to send message larger than max" on etcd's side are there too: the answer was too large, after the write.
"""

from __future__ import annotations

import grpc

from neve.proto.errors import (
    Compacted,
    InvalidArgument,
    LeaseLost,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    PermissionDenied,
    TooLarge,
    Unauthenticated,
)

_NOT_APPLIED = (
    (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses"),
    (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
)
_REQUEST_TOO_LARGE = (
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger"),
    (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large"),
)
_CREDENTIALS = (  # etcd answers INVALID_ARGUMENT to a wrong password and to a token older than a change of the users
    "etcdserver: authentication failed",
    "etcdserver: user name is empty",
    "etcdserver: revision of auth store is old",
)
_ANSWER_TOO_LARGE = ("Received message larger than max", "trying to send message larger than max")


def translate(code: grpc.StatusCode, text: str, *, write: bool) -> NeveError:
    """The error to raise for a call that ended with this status. `write`: the call changes something."""
    detail = f"etcd: {code.name}: {text}"
    if any(code is known and part in text for known, part in _REQUEST_TOO_LARGE):
        return TooLarge(what="request to etcd", detail=detail)
    answer_too_large = code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(part in text for part in _ANSWER_TOO_LARGE)
    if answer_too_large and not write:
        return TooLarge(what="answer of etcd", detail=detail)
    if code is grpc.StatusCode.UNAUTHENTICATED or any(part in text for part in _CREDENTIALS):
        return Unauthenticated(detail=detail)
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDenied(action="use these keys in etcd", detail=detail)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in text:
        return LeaseLost(detail=detail)
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return Compacted(detail=detail) if "compacted" in text else InvalidArgument(what="revision", detail=detail)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidArgument(what="request to etcd", detail=detail)
    if write and not any(code is known and part in text for known, part in _NOT_APPLIED):
        return MaybeApplied(detail=detail)
    return MetaUnavailable(detail=detail)
