"""Filters that Spark pushes down: taken over exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from neve.pipeline.core.filters import Filters, split, understand

COLUMN = ("offset",)
COMPARISONS: tuple[tuple[Any, Callable[[int, int], bool]], ...] = (
    (spark.EqualTo, lambda a, b: a == b),
    (spark.GreaterThan, lambda a, b: a > b),
    (spark.GreaterThanOrEqual, lambda a, b: a >= b),
    (spark.LessThan, lambda a, b: a < b),
    (spark.LessThanOrEqual, lambda a, b: a <= b),
)
numbers = st.integers(-3, 12)


@st.composite
def conditions(draw: st.DrawFn) -> tuple[Any, Any]:
    """A filter of Spark's, and what it means."""
    kind = draw(st.integers(0, 6))
    if kind < 5:
        made, meaning = COMPARISONS[kind]
        value = draw(numbers)
        pushed: Any = made(COLUMN, value)
        means: Callable[[int], bool] = lambda a: meaning(a, value)  # noqa: E731
    elif kind == 5:
        values = tuple(draw(st.lists(numbers, min_size=1, max_size=4)))
        pushed, means = spark.In(COLUMN, values), lambda a: a in values
    else:
        pushed, means = spark.IsNotNull(COLUMN), lambda a: True
    if draw(st.booleans()):
        return spark.Not(pushed), lambda a: not means(a)
    return pushed, means


@given(st.lists(conditions(), max_size=4))
def test_what_is_taken_over_means_what_spark_means(chosen: list[tuple[Any, Any]]) -> None:
    tests, left = split([pushed for pushed, _ in chosen])
    assert left == []
    filters = Filters(tuple(tests))
    values = np.arange(0, 12)
    wanted = [all(means(value) for _, means in chosen) for value in values.tolist()]
    assert [filters.admits("offset", value) for value in values.tolist()] == wanted
    mask = filters.mask("offset", values)
    assert (wanted == [True] * 12) if mask is None else (mask.tolist() == wanted)
    start, end = filters.offsets()
    assert all(start <= value < end for value, admitted in zip(values.tolist(), wanted, strict=True) if admitted)
    assert filters.admits("extent_id", 5)


@pytest.mark.parametrize(
    "pushed",
    [
        spark.EqualTo(("payload",), b"x"),
        spark.EqualTo(("offset", "inside"), 1),
        spark.EqualTo(("offset",), None),
        spark.EqualTo(("offset",), 1.5),
        spark.EqualTo(("type",), True),
        spark.In(("type",), (1, None)),
        spark.StringStartsWith(("type",), "1"),
        spark.Not(spark.EqualTo(("length",), 1)),
    ],
)
def test_what_is_not_understood_exactly_stays_with_spark(pushed: Any) -> None:
    assert understand(pushed) is None
    known = spark.EqualTo(("type",), 1)
    tests, left = split([known, pushed])
    assert [test.column for test in tests] == ["type"]
    assert left == [pushed]
