"""Checks of requests before anything is executed: ids exist, owners match, values are within bounds."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NotFound, NotOwner, QuotaExceeded
from neve.proto.stream_policy import POLICIES_CACHED_MAX, StreamPolicy
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.metadata.records import EXTENT_BYTES_LIMIT, REPLICAS_MAX, Extent, Labels, Stream, shared
from neve.stream_manager.metadata.state import State

STREAM_EXTENTS_MAX = 50_000  # a stream's list is one value in etcd
LABELS_MAX = 32  # of a stream
LABEL_CHARS_MAX = 256  # of a key and its value together
NAME_CHARS_MAX = 256


def stream_named(state: State, stream_id: int) -> Stream:
    stream = state.streams.get(stream_id)
    if stream is None:
        raise NotFound(kind="stream", name=str(stream_id))
    return stream


def check_owner(stream: Stream, owner: common_pb2.Owner) -> None:
    """Check that the owner names this stream's lock and a token (protocol rule 3).

    Only etcd knows whether it holds it.
    """
    if not owner.token:
        raise InvalidArgument(what="owner.token", detail="this call is for the stream's owner: take its lock first")
    if owner.lock != stream.lock:
        detail = f"stream {stream.stream_id} is guarded by the lock {stream.lock!r}"
        raise NotOwner(lock=owner.lock, token=owner.token, detail=detail)


def owner_of(stream: Stream, request: object) -> common_pb2.Owner | None:
    """The owner on whose behalf a request is made; None if it names none, as an operator's request does."""
    owner: common_pb2.Owner = request.owner  # type: ignore[attr-defined]
    if not owner.lock and not owner.token:
        return None
    check_owner(stream, owner)
    return owner


def check_end_names_extent(request: sm.SealStreamRequest | sm.StreamCopy) -> None:
    if request.HasField("acknowledged_end") and not request.extent_id:
        raise InvalidArgument(what="extent_id", detail="required with acknowledged_end: name the extent")


def end_for(tail: Extent, request: sm.SealStreamRequest) -> int | None:
    """The end acknowledged in the tail itself (protocol rule 16).

    The end of an earlier tail would seal this one too short.
    """
    check_end_names_extent(request)
    if not request.HasField("acknowledged_end"):
        return None
    return request.acknowledged_end if request.extent_id == tail.extent_id else None


def policy_of(wanted: sm.StreamPolicy, config: ManagerConfig) -> StreamPolicy:
    """The policy with the cluster's defaults for the fields that are not set."""
    defaults = config.defaults
    policy = _filled(wanted.SerializeToString(), defaults.replicas, defaults.extent_bytes_max)
    if not 1 <= policy.replicas <= REPLICAS_MAX:
        detail = f"{policy.replicas}, at least 1 and at most {REPLICAS_MAX}"
        raise InvalidArgument(what="policy.replicas", detail=detail)
    size_bytes = policy.extent_bytes_max
    if not config.limits.extent_bytes_min <= size_bytes <= EXTENT_BYTES_LIMIT:
        detail = f"{size_bytes}, at least {config.limits.extent_bytes_min} and at most {EXTENT_BYTES_LIMIT} bytes"
        raise InvalidArgument(what="policy.extent_bytes_max", detail=detail)
    return policy


@functools.lru_cache(maxsize=POLICIES_CACHED_MAX)
def _filled(wanted: bytes, replicas: int, extent_bytes_max: int) -> StreamPolicy:
    """Fill in the defaults. Equal requests get the same object, because most streams share a few policies."""
    policy = StreamPolicy.of(sm.StreamPolicy.FromString(wanted))
    return shared(policy.filled(replicas=replicas, extent_bytes_max=extent_bytes_max))


def labels_of(labels: Mapping[str, str]) -> Labels:
    if not labels:
        return ()
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(what="labels", detail=f"{len(labels)}, at most {LABELS_MAX}")
    for key, value in labels.items():
        if not key or "=" in key or len(key) + len(value) > LABEL_CHARS_MAX:
            detail = f"{key[:50]!r}: a key is not empty and has no '='; at most {LABEL_CHARS_MAX} characters"
            raise InvalidArgument(what="labels", detail=detail)
    return shared(tuple(sorted(labels.items())))


def check_list_room(stream: Stream) -> None:
    """Check that one more extent fits into the stream's list."""
    if len(stream.extent_ids) >= STREAM_EXTENTS_MAX:
        detail = "truncate the stream, or continue with another one"
        raise QuotaExceeded(
            what="extents of one stream", used=len(stream.extent_ids), limit=STREAM_EXTENTS_MAX, detail=detail
        )


def check_name(what: str, name: str) -> None:
    if not name:
        return  # the caller checks whether a name is required
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        detail = f"at most {NAME_CHARS_MAX} printable characters"
        raise InvalidArgument(what=what, detail=detail)


def check_stream_name(what: str, name: str) -> None:
    """Check a stream's name. Digits alone are refused: where users name a stream, digits are its id."""
    check_name(what, name)
    if name.isascii() and name.isdecimal():
        raise InvalidArgument(what=what, detail=f"{name} would be read as a stream's id: add a letter to it")
