"""From samples to a verdict: medians, ratios, targets, the table for people and the JSON for programs.

Invariants: a row's ratio is its value over its baseline, both medians of the same rounds;
            two numbers are divided only when they have the same unit;
            a number that was not compared has no ratio, and a ratio without a target is neither met nor missed.
Not here:   clocks, processes, files: everything in this module is a function of its arguments.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class BenchError(Exception):
    """The benchmark could not be run; the message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One measured number."""

    value: float
    unit: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise BenchError(f"measured {self.value} {self.unit}: a rate or a time is above 0")


class Direction(enum.Enum):
    AT_LEAST = "at_least"
    AT_MOST = "at_most"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of a value to its baseline. Ratios survive a change of machine, plain numbers do not."""

    ratio: float
    direction: Direction

    def is_met_by(self, ratio: float) -> bool:
        if self.direction is Direction.AT_LEAST:
            return ratio >= self.ratio
        return ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.direction is Direction.AT_LEAST else '≤'} {self.ratio:g}"


def at_least(ratio: float) -> Target:
    return Target(ratio, Direction.AT_LEAST)


def at_most(ratio: float) -> Target:
    return Target(ratio, Direction.AT_MOST)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row of the report: one measure against another, by the names of both."""

    measure: str
    baseline: str
    target: Target | None = None
    name: str = ""  # the row's; the measure's own when empty


@dataclass(frozen=True, slots=True)
class Derived:
    """A number computed from measures of the same round, such as a limit that is the sum of two others."""

    name: str
    of: tuple[str, ...]
    formula: Callable[..., float]
    unit: str


Samples = Mapping[str, Sequence[Quantity]]  # by measure, one quantity for each round


def with_derived(samples: Samples, derived: Sequence[Derived]) -> dict[str, list[Quantity]]:
    """The samples, and what is derived from them round by round; a derived number may use an earlier one."""
    extended = {name: list(quantities) for name, quantities in samples.items()}
    for number in derived:
        inputs = zip(*(extended[name] for name in number.of), strict=True)
        extended[number.name] = [
            Quantity(number.formula(*(quantity.value for quantity in values)), number.unit) for values in inputs
        ]
    return extended


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    value: float  # the median of `samples`
    unit: str
    samples: tuple[float, ...]
    baseline: float | None = None
    baseline_name: str | None = None
    ratio: float | None = None
    ratios: tuple[float, ...] = field(default=())  # of each round, for the spread
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        return self.target.is_met_by(self.ratio)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "target": None if self.target is None else self.target.ratio,
            "met": self.met,
            "direction": None if self.target is None else self.target.direction.value,
            "baseline_name": self.baseline_name,
            "samples": list(self.samples),
            "spread": [min(self.samples), max(self.samples)],
            "ratio_spread": [min(self.ratios), max(self.ratios)] if self.ratios else None,
        }


def make_rows(samples: Samples, comparisons: Sequence[Comparison] = (), derived: Sequence[Derived] = ()) -> list[Row]:
    """A row for each comparison, then one for each measure that only served as a baseline or stands alone."""
    extended = with_derived(samples, derived)
    compared = [_compared_row(extended, comparison) for comparison in comparisons]
    subjects = {comparison.measure for comparison in comparisons}
    plain = [_plain_row(name, extended[name]) for name in extended if name not in subjects]
    return compared + plain


def _plain_row(name: str, quantities: Sequence[Quantity]) -> Row:
    values, unit = _values(name, quantities)
    return Row(name=name, value=statistics.median(values), unit=unit, samples=values)


def _compared_row(samples: Samples, comparison: Comparison) -> Row:
    values, unit = _values(comparison.measure, samples[comparison.measure])
    baselines, baseline_unit = _values(comparison.baseline, samples[comparison.baseline])
    if unit != baseline_unit:
        raise ValueError(f"{comparison.measure} is in {unit}, {comparison.baseline} in {baseline_unit}: no ratio")
    value, baseline = statistics.median(values), statistics.median(baselines)
    return Row(
        name=comparison.name or comparison.measure,
        value=value,
        unit=unit,
        samples=values,
        baseline=baseline,
        baseline_name=comparison.baseline,
        ratio=value / baseline,
        ratios=tuple(one / other for one, other in zip(values, baselines, strict=True)),
        target=comparison.target,
    )


def _values(name: str, quantities: Sequence[Quantity]) -> tuple[tuple[float, ...], str]:
    if not quantities:
        raise ValueError(f"{name} has no samples")
    units = {quantity.unit for quantity in quantities}
    if len(units) != 1:
        raise ValueError(f"{name} changes its unit: {', '.join(sorted(units))}")
    return tuple(quantity.value for quantity in quantities), units.pop()


def missed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.met is False]


def format_number(value: float) -> str:
    """Three or more significant digits, and never an exponent: 0.0123, 4.56, 78.9, 1,234,567."""
    if value >= 100:
        return f"{value:,.0f}"
    digits_before = math.floor(math.log10(value)) + 1 if value > 0 else 1
    return f"{value:.{max(0, 3 - digits_before)}f}"


HEADINGS = ("name", "value", "unit", "min..max", "baseline", "ratio", "min..max", "target", "met", "against")
RIGHT_ALIGNED = frozenset({1, 4, 5})


def render_table(rows: Sequence[Row]) -> str:
    """An aligned table; a missed target is in capitals, since a reader looks for it."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rendered = [_render_line(line, widths) for line in lines]
    rendered.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(rendered)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        format_number(row.value),
        row.unit,
        _spread(row.samples),
        "" if row.baseline is None else format_number(row.baseline),
        "" if row.ratio is None else format_number(row.ratio),
        _spread(row.ratios),
        "" if row.target is None else str(row.target),
        {True: "yes", False: "MISSED", None: ""}[row.met],
        row.baseline_name or "",
    )


def _spread(values: Sequence[float]) -> str:
    return f"{format_number(min(values))}..{format_number(max(values))}" if values else ""


def _render_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if column in RIGHT_ALIGNED else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def to_document(name: str, meta: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """What `--json` writes: `meta` says where and how it was measured, `rows` what came out."""
    return {"benchmark": name, "meta": dict(meta), "rows": [row.to_json() for row in rows]}
