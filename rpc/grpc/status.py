"""Conversion of Neve's errors into gRPC statuses, and of gRPC's failures into Neve's errors.

Invariants: the trailer `neve-error-bin` carries the error exactly (proto/common.proto, Error); the status code beside
            it is for clients that do not know the trailer;
            UNAVAILABLE is sent only if the call was certainly not executed, because foreign clients repeat it blindly;
            after a failure without a trailer the outcome is unknown, unless gRPC says that nothing was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from neve.proto import common_pb2 as pb
from neve.proto import errors
from neve.proto.errors import NeveError

ERROR_TRAILER = "neve-error-bin"
CLUSTER_HEADER = "neve-cluster"
TOKEN_HEADER = "authorization"
TOKEN_PREFIX = "Bearer "

# gRPC sends the details percent-encoded in a header, and many clients refuse headers above 8 KiB in all. The trailer
# has the error in full; details are for people.
DETAILS_CHARS_MAX = 200

# An error has at most three texts of TEXT_CHARS_MAX characters (4 bytes each in UTF-8), and base64 adds a third.
METADATA_BYTES_MAX = 64 * 1024

_STATUS_OF_CLASS: dict[type[NeveError], StatusCode] = {
    errors.RequestError: StatusCode.INVALID_ARGUMENT,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.AlreadyExists: StatusCode.ALREADY_EXISTS,
    errors.QuotaExceeded: StatusCode.RESOURCE_EXHAUSTED,
    errors.ConditionFailed: StatusCode.FAILED_PRECONDITION,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.WrongCluster: StatusCode.FAILED_PRECONDITION,
    errors.UnsupportedVersion: StatusCode.FAILED_PRECONDITION,
    errors.Unimplemented: StatusCode.UNIMPLEMENTED,
    errors.TransportError: StatusCode.UNKNOWN,
    errors.ConnectFailed: StatusCode.UNAVAILABLE,
    errors.ShuttingDown: StatusCode.UNAVAILABLE,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: StatusCode.CANCELLED,
    errors.ProtocolViolation: StatusCode.INVALID_ARGUMENT,
    # ABORTED: find out which process is in charge, then repeat the call.
    errors.OwnershipError: StatusCode.ABORTED,
    errors.NotOwner: StatusCode.FAILED_PRECONDITION,
    errors.LeaseLost: StatusCode.FAILED_PRECONDITION,
    errors.ReplicaError: StatusCode.FAILED_PRECONDITION,
    errors.ReplicaMissing: StatusCode.NOT_FOUND,
    errors.ReplicaDeleted: StatusCode.NOT_FOUND,
    errors.ReplicaDamaged: StatusCode.DATA_LOSS,
    errors.Gap: StatusCode.ABORTED,
    errors.OutOfRange: StatusCode.OUT_OF_RANGE,
    errors.DiskFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.StreamError: StatusCode.FAILED_PRECONDITION,
    errors.NotEnoughNodes: StatusCode.UNAVAILABLE,
    errors.SealUnavailable: StatusCode.UNAVAILABLE,
    errors.AppendOutcomeUnknown: StatusCode.UNKNOWN,
    errors.VersionConflict: StatusCode.ABORTED,
    errors.AcknowledgedLost: StatusCode.DATA_LOSS,
    errors.MetaError: StatusCode.UNKNOWN,
    errors.MetaUnavailable: StatusCode.UNAVAILABLE,
    errors.Compacted: StatusCode.OUT_OF_RANGE,
    errors.Internal: StatusCode.INTERNAL,
    errors.UnknownError: StatusCode.UNKNOWN,
}

# Texts of gRPC's core, which gRPC does not guarantee. If a text changes, an error becomes vaguer but not wrong, and
# tests/unit/rpc/grpc/test_status.py fails.
_NOTHING_SENT = ("failed to connect to all addresses", "DNS resolution failed", "empty address list")
_REFUSED_BY_BOUND = "Concurrent RPC limit exceeded"
_OVER_SIZE = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")


def status_of(error: NeveError) -> StatusCode:
    for cls in type(error).__mro__:
        if cls in _STATUS_OF_CLASS:
            return _STATUS_OF_CLASS[cls]
    return StatusCode.UNKNOWN


async def abort_at_deadline(context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
    """End a call whose deadline has passed. There is no trailer, because the caller knows its own deadline best."""
    await context.abort(StatusCode.DEADLINE_EXCEEDED)


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End the call with `error`. As on every transport, an exception that is no NeveError becomes Internal."""
    message = errors.to_message(error)
    known = errors.from_message(message)
    await context.abort(
        status_of(known),
        str(known)[:DETAILS_CHARS_MAX],
        trailing_metadata=((ERROR_TRAILER, message.SerializeToString()),),
    )


def to_error(failure: grpc.aio.AioRpcError, *, address: str, method: str, timeout_ms: int) -> NeveError:
    """The error to raise for a failed call."""
    carried = _carried_error(failure)
    if carried is not None:
        return carried
    code = failure.code()
    details = failure.details() or ""
    match code:
        case StatusCode.UNAVAILABLE if details.startswith(_NOTHING_SENT):
            return errors.ConnectFailed(address=address, detail=details)
        case StatusCode.UNAVAILABLE:
            return errors.ConnectionLost(address=address, detail=details)
        case StatusCode.DEADLINE_EXCEEDED:
            return errors.DeadlineExceeded(method=method, timeout_ms=timeout_ms)
        case StatusCode.UNIMPLEMENTED:
            return errors.Unimplemented(method=method)
        case StatusCode.CANCELLED:
            # The server has reset the call; our own cancellation is a CancelledError. A server that stops resets calls
            # that have not begun, and calls that outlast its grace time, in the same way.
            return errors.ConnectionLost(address=address, detail="the server dropped the call")
        case StatusCode.UNAUTHENTICATED:
            return errors.Unauthenticated(detail=details)
        case StatusCode.RESOURCE_EXHAUSTED if _REFUSED_BY_BOUND in details:
            return errors.Overloaded(what="calls", detail=details)
        case StatusCode.RESOURCE_EXHAUSTED if over_size := _OVER_SIZE.search(details):
            size_bytes, limit_bytes = map(int, over_size.groups())
            return errors.TooLarge(what="gRPC message", size_bytes=size_bytes, limit_bytes=limit_bytes)
        case _:
            # From a proxy or a foreign server, which may have done anything.
            return errors.UnknownError(detail=f"gRPC {code.name}: {details}")


def _carried_error(failure: grpc.aio.AioRpcError) -> NeveError | None:
    trailer = cast(Iterable[tuple[str, str | bytes]], failure.trailing_metadata() or ())
    for key, value in trailer:
        if key == ERROR_TRAILER and isinstance(value, bytes):  # a name in -bin always has bytes
            try:
                return errors.from_message(pb.Error.FromString(value))
            except DecodeError as error:
                return errors.UnknownError(detail=f"the trailer {ERROR_TRAILER} is not an Error: {error}")
    return None
