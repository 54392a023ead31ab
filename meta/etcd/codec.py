"""Conversion between the types of txn.py and etcd's messages. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neve.meta.store import Event, EventKind
from neve.meta.txn import (
    Compare,
    Delete,
    DeleteResult,
    Get,
    GetResult,
    KeyRange,
    KeyValue,
    Operation,
    OperationResult,
    Put,
    PutResult,
    Relation,
    Target,
    as_range,
)
from neve.proto import etcd_pb2 as pb
from neve.proto.fields import SMALL, SMALL_MAX, VARINTS, sized

_RELATIONS = {
    Relation.EQUAL: pb.Compare.EQUAL,
    Relation.NOT_EQUAL: pb.Compare.NOT_EQUAL,
    Relation.GREATER: pb.Compare.GREATER,
    Relation.LESS: pb.Compare.LESS,
}
_TARGETS = {
    Target.VALUE: pb.Compare.VALUE,
    Target.CREATE_REVISION: pb.Compare.CREATE,
    Target.MOD_REVISION: pb.Compare.MOD,
    Target.VERSION: pb.Compare.VERSION,
}

# The bytes that precede a key of less than 128 bytes, by its size.
_COMPARED = [b"\x10\x02\x1a" + SMALL[size] for size in range(128)]
_PUT = [b"\x0a" + SMALL[size] for size in range(128)]

_KEYS_ONLY = b"\x40\x01"  # a field of a `RangeRequest`


def range_request(keys: KeyRange, *, limit: int, revision: int, serializable: bool) -> Any:
    return pb.RangeRequest(
        key=keys.start, range_end=keys.end, limit=limit, revision=revision, serializable=serializable
    )


def txn_request(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> Any:
    return pb.TxnRequest(
        compare=[_compare(compare) for compare in compares],
        success=[_operation(op) for op in success],
        failure=[_operation(op) for op in failure],
    )


def write_request(
    guard: Sequence[Compare],
    revisions: Mapping[bytes, int],
    values: Mapping[bytes, bytes | None],
    reads: Sequence[bytes],
) -> bytes:
    """The encoded `TxnRequest` for `MetaStore.write`. For a hundred keys a message would take four times as long."""
    parts = [b"\x0a" + sized(_compare(compare).SerializeToString()) for compare in guard]
    small, small_max, varints, compared = SMALL, SMALL_MAX, VARINTS, _COMPARED  # most lengths are small
    for key, revision in revisions.items():
        number, size = varints[revision], len(key)
        if size < 128:  # its length takes one byte
            parts += (b"\x0a", small[size + len(number) + 5], compared[size], key, b"\x30", number)
        else:
            parts.append(b"\x0a" + sized(b"\x10\x02\x1a" + sized(key) + b"\x30" + number))
    put = _PUT
    for key, value in values.items():
        if value is None:
            parts.append(b"\x12" + sized(b"\x1a" + sized(b"\x0a" + sized(key))))
            continue
        size, value_size = len(key), len(value)
        if size < 128 <= value_size and size + value_size < small_max - 16:  # each length's own size is known
            size_text = small[size + value_size + 5]
            size_whole = small[size + value_size + 6 + len(size_text)]
            parts += (b"\x12", size_whole, b"\x12", size_text, put[size], key, b"\x12", small[value_size], value)
        else:
            parts.append(b"\x12" + sized(b"\x12" + sized(b"\x0a" + sized(key) + b"\x12" + sized(value))))
    for key in reads:
        parts += (b"\x1a", sized(b"\x0a" + sized(b"\x0a" + sized(key))))
    return b"".join(parts)


def revisions_request(guard: Sequence[Compare], keys: Sequence[bytes]) -> bytes:
    """The encoded `TxnRequest` for `MetaStore.mod_revisions`, which reads no values."""
    parts = [b"\x0a" + sized(_compare(compare).SerializeToString()) for compare in guard]
    parts += [b"\x12" + sized(b"\x0a" + sized(b"\x0a" + sized(key) + _KEYS_ONLY)) for key in keys]
    return b"".join(parts)


def mod_revisions(result: Any) -> list[int]:
    """The mod revisions that a transaction of single-key Gets has read; 0 for an absent key."""
    found = [response.response_range.kvs for response in result.responses]
    return [kvs[0].mod_revision if kvs else 0 for kvs in found]


def key_values(kvs: Iterable[Any]) -> tuple[KeyValue, ...]:
    return tuple(key_value(kv) for kv in kvs)


def key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def event(message: Any) -> Event:
    return Event(EventKind.PUT if message.type == message.PUT else EventKind.DELETE, key_value(message.kv))


def operation_result(response: Any) -> OperationResult:
    kind = response.WhichOneof("response")
    if kind == "response_put":
        return PutResult()
    if kind == "response_delete_range":
        return DeleteResult(response.response_delete_range.deleted)
    assert kind == "response_range", kind
    found = response.response_range
    return GetResult(key_values(found.kvs), more=found.more, count=found.count)


def _compare(compare: Compare) -> Any:
    message = pb.Compare(key=compare.key, result=_RELATIONS[compare.relation], target=_TARGETS[compare.target])
    setattr(message, compare.target.value, compare.operand)  # etcd's fields have the names of our targets
    return message


def _operation(op: Operation) -> Any:
    if isinstance(op, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=op.key, value=op.value, lease=op.lease_id))
    keys = as_range(op.keys)
    if isinstance(op, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=keys.start, range_end=keys.end))
    assert isinstance(op, Get), op
    return pb.RequestOp(request_range=pb.RangeRequest(key=keys.start, range_end=keys.end, limit=op.limit))
