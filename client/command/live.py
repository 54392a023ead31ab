"""The live line and the final report of a benchmark, for people.

Invariants: the live line appears only on a terminal, on stderr; the report goes to stdout.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from neve.client.command.core_statistics import Interval, Recorder, Report
from neve.client.command.tables import human_bytes


def rates(interval: Interval) -> str:
    """Format an interval: `12345 ops/s  12.6 MB/s  p99 1.21 ms`."""
    text = f"{interval.operations_per_s:,.0f} ops/s  {interval.bytes_per_s / 1e6:,.1f} MB/s"
    if interval.latency_ns.count:
        text += f"  p50 {milliseconds(interval.latency_ns.quantile(0.5) / 1e6)}"
        text += f"  p99 {milliseconds(interval.latency_ns.quantile(0.99) / 1e6)}"
    return text


def milliseconds(value_ms: float) -> str:
    if value_ms < 1:
        return f"{value_ms:.3f} ms"
    return f"{value_ms:.2f} ms" if value_ms < 100 else f"{value_ms:,.0f} ms"


class LiveLine:
    """A progress bar with the rates of the last second, as a context. Does nothing without a terminal."""

    def __init__(self, title: str, duration_s: float, err: TextIO | None = None) -> None:
        err = sys.stderr if err is None else err
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(compact=True),
            console=Console(file=err),
            transient=True,
            disable=not err.isatty(),
        )
        self._task = self._progress.add_task(title, total=duration_s, rates="starting")

    def update(self, recorder: Recorder, elapsed_s: float) -> None:
        shown = rates(recorder.last or recorder.running)
        if recorder.errors:
            shown += f"  [red]{sum(recorder.errors.values())} errors[/red]"
        self._progress.update(self._task, completed=elapsed_s, rates=shown)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def report_lines(title: str, report: Report, *, last_error: str = "") -> list[str]:
    """Return the report as lines for a person."""
    latency = report.latency_ms
    lines = [
        f"{title}: {report.operations:,} operations, {human_bytes(report.size_bytes)} in {report.duration_s:.2f} s",
        f"  throughput  {report.operations_per_s:,.0f} ops/s  {report.megabytes_per_s:,.2f} MB/s",
    ]
    if latency:
        shown = "  ".join(f"{name} {milliseconds(latency[name])}" for name in latency)
        lines.append(f"  latency     {shown}")
    if report.errors:
        named = ", ".join(f"{count} {name}" for name, count in sorted(report.errors.items()))
        lines.append(f"  errors      {report.errors_total:,}: {named}")
        if last_error:
            lines.append(f"  last error  {last_error}")
    else:
        lines.append("  errors      0")
    return lines
