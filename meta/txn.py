"""The parts of a transaction: keys, ranges, compares, operations and their results. Values only.

Invariants: a value that etcd would refuse, such as an empty key or range or too many operations, cannot be built or
            sent;
            this module alone defines how an absent key compares, for both stores.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neve.proto.errors import INT64_MAX, INT64_MIN, InvalidArgument, TooLarge

REQUEST_BYTES_MAX = 3 * 512 * 1024  # etcd's own default; its --max-request-bytes may only raise it
ITEM_BYTES = 64  # added for each operation and compare to its keys and value: more than etcd's framing needs
TXN_OPS_MAX = 128  # etcd's own default for compares and for each branch; its --max-txn-ops may only raise it

EXACT = b""  # as `KeyRange.end`: the one key `start`
OPEN_END = b"\x00"  # as `KeyRange.end`: no upper bound. No range can end there, so etcd uses it for this


def check_int64(what: str, number: int) -> None:
    if not INT64_MIN <= number <= INT64_MAX:
        raise InvalidArgument(what=what, detail=f"{number} has more than 64 bits")


def check_lease_id(lease_id: int) -> None:
    check_int64("lease_id", lease_id)
    if lease_id < 0:
        raise InvalidArgument(what="lease_id", detail=f"{lease_id} is negative")


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys that begin with `prefix`; `OPEN_END` if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else OPEN_END


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys in [start, end), or the one key `start`."""

    start: bytes
    end: bytes = EXACT

    def __post_init__(self) -> None:
        if not self.start:
            raise InvalidArgument(what="key", detail="a key is never empty")
        if self.end not in (EXACT, OPEN_END) and self.end <= self.start:
            raise InvalidArgument(what="key range", detail=f"{self.start!r} to {self.end!r} holds no key")

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """All keys that begin with `prefix`; all keys if it is empty."""
        return cls(prefix or b"\x00", prefix_end(prefix))

    def contains(self, key: bytes) -> bool:
        if self.end == EXACT:
            return key == self.start
        return key >= self.start and (self.end == OPEN_END or key < self.end)

    def after(self, key: bytes) -> KeyRange | None:
        """The rest of the range after `key`, for the next page. None if no key can follow."""
        start = key + b"\x00"
        return KeyRange(start, self.end) if self.end == OPEN_END or start < self.end else None


Keys = bytes | KeyRange  # one key or a range of keys; most calls accept both


def as_range(keys: Keys) -> KeyRange:
    return keys if isinstance(keys, KeyRange) else KeyRange(keys)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The state of a key at some revision. `version` counts its puts since `create_revision`."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int = 0


# --- transactions -----------------------------------------------------------------------------------------


class Target(enum.Enum):
    VALUE = "value"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"


class Relation(enum.Enum):
    EQUAL = "=="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Compare:
    """The condition that `target` of `key` has `relation` to `operand`.

    An absent key has revisions and version 0. It has no value: a compare of its value is always false, as in etcd.
    """

    key: bytes
    target: Target
    relation: Relation
    operand: int | bytes

    def __post_init__(self) -> None:
        if not self.key:
            raise InvalidArgument(what="key", detail="a key is never empty")
        if isinstance(self.operand, bytes) != (self.target is Target.VALUE):
            raise InvalidArgument(what="operand", detail=f"{self.operand!r} for {self.target.value}")
        if isinstance(self.operand, int):
            check_int64("operand", self.operand)


def key_absent(key: bytes) -> Compare:
    return Compare(key, Target.CREATE_REVISION, Relation.EQUAL, 0)


def create_revision_is(key: bytes, revision: int) -> Compare:
    return Compare(key, Target.CREATE_REVISION, Relation.EQUAL, revision)


def mod_revision_is(key: bytes, revision: int) -> Compare:
    return Compare(key, Target.MOD_REVISION, Relation.EQUAL, revision)


def value_is(key: bytes, value: bytes) -> Compare:
    return Compare(key, Target.VALUE, Relation.EQUAL, value)


@dataclass(frozen=True, slots=True)
class Put:
    """A put. It also replaces the key's lease: `lease_id=0` detaches the key from any lease."""

    key: bytes
    value: bytes
    lease_id: int = 0

    def __post_init__(self) -> None:
        if not self.key:
            raise InvalidArgument(what="key", detail="a key is never empty")
        check_lease_id(self.lease_id)


@dataclass(frozen=True, slots=True)
class Delete:
    keys: Keys


@dataclass(frozen=True, slots=True)
class Get:
    """A read inside a transaction. It sees the earlier writes of the same branch."""

    keys: Keys
    limit: int = 0  # 0: no limit

    def __post_init__(self) -> None:
        check_int64("limit", self.limit)
        if self.limit < 0:
            raise InvalidArgument(what="limit", detail=f"{self.limit} is negative")


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class PutResult:
    pass


@dataclass(frozen=True, slots=True)
class DeleteResult:
    deleted_count: int


@dataclass(frozen=True, slots=True)
class GetResult:
    kvs: tuple[KeyValue, ...]
    more: bool
    count: int  # of all keys in the range, including those beyond the limit

    @property
    def first(self) -> KeyValue | None:
        return self.kvs[0] if self.kvs else None


OperationResult = PutResult | DeleteResult | GetResult


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of a transaction.

    `succeeded`: all compares held, and `responses` are those of the success branch. `revision` is the store's revision
    after the transaction and the mod revision of the keys that it put.
    """

    succeeded: bool
    revision: int
    responses: tuple[OperationResult, ...]

    def get_at(self, index: int) -> GetResult:
        response = self.responses[index]
        assert isinstance(response, GetResult), f"operation {index} was no Get: {response}"
        return response


def check_txn(compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]) -> None:
    """Refuse a transaction that etcd would refuse: too large, too many operations, or a key written twice."""
    for what, items in (("compares", compares), ("success", success), ("failure", failure)):
        if len(items) > TXN_OPS_MAX:
            raise InvalidArgument(what=what, detail=f"{len(items)} in one transaction, at most {TXN_OPS_MAX}")
    for branch in (success, failure):
        deletes = [as_range(op.keys) for op in branch if isinstance(op, Delete)]
        put_keys: set[bytes] = set()
        for op in branch:
            if not isinstance(op, Put):
                continue
            if op.key in put_keys or any(deleted.contains(op.key) for deleted in deletes):
                raise InvalidArgument(what="transaction", detail=f"writes key {op.key!r} more than once")
            put_keys.add(op.key)
    size_bytes = sum(_size_bytes(item) for items in (compares, success, failure) for item in items)
    if size_bytes > REQUEST_BYTES_MAX:
        raise TooLarge(what="transaction", size_bytes=size_bytes, limit_bytes=REQUEST_BYTES_MAX)


def check_write(
    guard: Sequence[Compare],
    revisions: Mapping[bytes, int],
    values: Mapping[bytes, bytes | None],
    reads: Sequence[bytes],
) -> None:
    """`check_txn` for the arguments of `MetaStore.write`."""
    for what, count in (("compares", len(guard) + len(revisions)), ("success", len(values)), ("failure", len(reads))):
        if count > TXN_OPS_MAX:
            raise InvalidArgument(what=what, detail=f"{count} in one transaction, at most {TXN_OPS_MAX}")
    if b"" in revisions or b"" in values or b"" in reads:
        raise InvalidArgument(what="key", detail="a key is never empty")
    if revisions and (min(revisions.values()) < 0 or max(revisions.values()) > INT64_MAX):
        raise InvalidArgument(what="revision", detail="a revision is a positive number of 63 bits")
    size_bytes = (
        sum(map(_size_bytes, guard))
        + ITEM_BYTES * (len(revisions) + len(values) + len(reads))
        + sum(map(len, revisions))
        + sum(map(len, values))
        + sum(map(len, filter(None, values.values())))
        + sum(map(len, reads))
    )
    if size_bytes > REQUEST_BYTES_MAX:
        raise TooLarge(what="transaction", size_bytes=size_bytes, limit_bytes=REQUEST_BYTES_MAX)


def _size_bytes(item: Compare | Operation) -> int:
    """The size of an item in a request, slightly overestimated. Both stores use it, to refuse at the same size."""
    if isinstance(item, Put):
        return ITEM_BYTES + len(item.key) + len(item.value)
    if isinstance(item, Compare):
        return ITEM_BYTES + len(item.key) + (len(item.operand) if isinstance(item.operand, bytes) else 0)
    keys = as_range(item.keys)
    return ITEM_BYTES + len(keys.start) + len(keys.end)
