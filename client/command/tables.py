"""Output of commands: tables for people, JSON for scripts.

Invariants: a table that is not printed on a terminal is as wide as its content and has no colours, so nothing is cut;
            JSON goes to stdout as one document, with the names and units of the table's columns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_UNBOUNDED = 10_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

Cell = str | int | float | bool | None


def console(out: TextIO | None = None) -> Console:
    out = sys.stdout if out is None else out
    return Console(file=out, highlight=False, width=None if out.isatty() else _WIDTH_UNBOUNDED)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell | Text]],
    *,
    out: TextIO | None = None,
    title: str = "",
    nothing: str = "",
) -> None:
    """Print a table with right-aligned numbers. An empty table prints `nothing` instead."""
    listed = [list(row) for row in rows]
    target = console(out)
    if not listed and nothing:
        target.print(nothing)
        return
    right = [bool(listed) and all(_is_number(row[number]) for row in listed) for number in range(len(columns))]
    table = Table(
        box=box.SIMPLE_HEAD if target.is_terminal else None,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for name, to_the_right in zip(columns, right, strict=True):
        table.add_column(name, justify="right" if to_the_right else "left")
    for row in listed:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_text(cell)) for cell in row))
    if target.is_terminal:
        target.print(table)
        return
    with target.capture() as capture:
        target.print(table)
    target.file.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))


def print_json(value: object, *, out: TextIO | None = None) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False), file=sys.stdout if out is None else out)


def human_bytes(size: float) -> str:
    """Format a size as `1.5 GiB`, for people; JSON has the exact number."""
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def human_time(since_epoch_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_epoch_ms / 1000)) if since_epoch_ms else "-"


def human_age(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, divisor in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _is_number(cell: Cell | Text) -> bool:
    if isinstance(cell, Text):
        return False
    text = _text(cell)
    return text == "-" or text[:1].isdigit()


def _text(cell: Cell) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)
