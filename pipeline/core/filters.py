"""Filters that Spark pushes down, on extent_id, offset, type and stream_id: which rows they admit. Pure.

Invariants: a filter is taken over whole or not at all: what is not understood exactly stays with Spark;
            a column that is filtered here is never null, so that "is not null" is true and a comparison with null
            never is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

PUSHED_COLUMNS = frozenset({"extent_id", "offset", "type"})

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
OFFSET_MAX = 2**63 - 1


class Condition(NamedTuple):
    """One condition. `kind` is the name of Spark's filter class; `values` are what it compares with."""

    column: str
    kind: str
    values: tuple[int, ...]
    negated: bool = False


def understand(pushed: Any) -> Condition | None:
    """A filter of pyspark.sql.datasource as a Condition; None if it has to stay with Spark."""
    kind = type(pushed).__name__
    if kind == "Not":
        inside = understand(pushed.child)
        return inside._replace(negated=not inside.negated) if inside is not None else None
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in PUSHED_COLUMNS:
        return None
    column = attribute[0]
    if kind in ("IsNotNull", "IsNull"):
        return Condition(column, kind, ())
    values = tuple(pushed.value) if kind == "In" else (getattr(pushed, "value", None),)
    if kind != "In" and kind not in _COMPARISONS:
        return None
    if not all(type(value) is int for value in values):
        return None
    return Condition(column, kind, values)


def split(filters: Iterable[Any]) -> tuple[list[Condition], list[Any]]:
    """(those that are taken over, those that stay with Spark)."""
    tests: list[Condition] = []
    left: list[Any] = []
    for pushed in filters:
        test = understand(pushed)
        if test is None:
            left.append(pushed)
        else:
            tests.append(test)
    return tests, left


@dataclass(frozen=True, slots=True)
class Filters:
    """All must hold."""

    tests: tuple[Condition, ...] = ()

    def admits(self, column: str, value: int) -> bool:
        return all(bool(_holds(test, value)) for test in self.tests if test.column == column)

    def mask(self, column: str, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """The admitted values; None if all are admitted."""
        tests = [test for test in self.tests if test.column == column]
        if not tests:
            return None
        admitted = np.ones(len(values), dtype=np.bool_)
        signed = values.astype(np.int64)
        for test in tests:
            admitted &= _holds(test, signed)
        return admitted

    def offsets(self) -> tuple[int, int]:
        """[start, end) in which every admitted offset is; others in it may not be."""
        start, end = 0, OFFSET_MAX
        for test in self.tests:
            if test.column != "offset" or test.negated or not test.values:
                continue
            if test.kind == "GreaterThan":
                start = max(start, test.values[0] + 1)
            elif test.kind == "LessThan":
                end = min(end, test.values[0])
            if test.kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "In"):
                start = max(start, min(test.values))
            if test.kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "In"):
                end = min(end, max(test.values) + 1)
        return start, max(start, end)


def _holds(test: Condition, value: Any) -> Any:
    """For a number, or for an array of them."""
    holds: Any
    if test.kind == "IsNotNull":
        holds = value == value
    elif test.kind == "IsNull":
        holds = value != value
    elif test.kind == "In":
        holds = np.isin(value, np.array(test.values, dtype=np.int64))
    else:
        holds = _COMPARISONS[test.kind](value, test.values[0])
    return ~np.asarray(holds) if test.negated else holds


def of(tests: Sequence[Condition]) -> Filters:
    return Filters(tuple(tests))
