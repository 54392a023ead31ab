"""Operations of a batch, limits of calls, and the answer of a batch.

Invariants: a call that no record could hold is refused here with the reason, before any effect;
            a repeated batch gets its first answer, from what is remembered and from the repeated operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neve.partition_server.engine.config import TTL_MS_MAX, VALUE_BYTES_MAX
from neve.partition_server.engine.entry import GONE, Info
from neve.partition_server.engine.write import Outcome
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import InvalidArgument, TooLarge

ANYTHING = None  # an expectation; 0: the object is absent; otherwise its version


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a batch. A `value` of None means delete."""

    key: bytes
    value: Buffer | None = None
    expected: int | None = ANYTHING
    ttl_ms: int = 0


def expanded(outcome: Outcome, operations: Sequence[Operation]) -> Outcome:
    """Return a batch's answer, with one Info for each operation, from what is remembered of it."""
    count = len(operations)
    if len(outcome) == count:
        return outcome
    if len(outcome) != 1 or outcome[0].size_bytes != count:
        raise InvalidArgument(what="call", detail=f"this id was used before, not for a batch of {count} operations")
    (first,) = outcome
    return tuple(
        Info(
            first.version + number,
            len(each.value),
            first.modified_ms,
            first.modified_ms + each.ttl_ms if each.ttl_ms else 0,
            crc32c(each.value),
        )
        if each.value is not None
        else GONE
        for number, each in enumerate(operations)
    )


def check_value(value: Buffer) -> None:
    check_size("value", len(value))


def check_ttl(ttl_ms: int) -> None:
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidArgument(what="ttl_ms", detail=f"{ttl_ms}, at most {TTL_MS_MAX}; 0 means no limit")


def check_size(what: str, size_bytes: int) -> None:
    if size_bytes > VALUE_BYTES_MAX:
        raise TooLarge(what=what, size_bytes=size_bytes, limit_bytes=VALUE_BYTES_MAX)
