"""stream-client plot: draws throughput and latency over time, from files of samples.

Invariants: reads each file in one pass and keeps one histogram for each interval: at most INTERVALS_MAX, which become
            longer for a longer run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neve.client.command.core_statistics import Interval
from neve.client.command.failures import DONE, CommandFailed
from neve.client.command.samples import BadSampleFile, SampleFile

INTERVALS_MAX = 600
INTERVAL_S_MIN = 0.1
INTERVALS_WANTED = 120  # for a short run


class Timeline:
    """Intervals of equal length. When there are too many, neighbours are joined."""

    def __init__(self, *, interval_s: float = INTERVAL_S_MIN, intervals_max: int = INTERVALS_MAX) -> None:
        self.interval_s = interval_s
        self._intervals_max = intervals_max
        self._intervals: dict[int, Interval] = {}

    def add_file(self, file: SampleFile) -> None:
        for sample in file.samples():
            number = int(sample.at_s / self.interval_s)
            while number >= self._intervals_max:
                self._join()
                number = int(sample.at_s / self.interval_s)
            interval = self._intervals.get(number)
            if interval is None:
                interval = self._intervals[number] = Interval(number * self.interval_s, self.interval_s)
            if sample.error:
                interval.errors += sample.operations
            else:
                interval.operations += sample.operations
                interval.size_bytes += sample.size_bytes
                interval.latency_ns.record(sample.latency_ns, sample.operations)

    def intervals(self) -> list[Interval]:
        """Return the intervals in order, with empty ones, joined to about as many as a picture can show."""
        while self._intervals and max(self._intervals) >= 2 * INTERVALS_WANTED:
            self._join()
        count = max(self._intervals, default=-1) + 1
        return [
            self._intervals.get(number) or Interval(number * self.interval_s, self.interval_s)
            for number in range(count)
        ]

    def _join(self) -> None:
        before, self._intervals = self._intervals, {}
        self.interval_s *= 2
        for number, interval in sorted(before.items()):
            joined = self._intervals.get(number // 2)
            if joined is None:
                joined = self._intervals[number // 2] = Interval(number // 2 * self.interval_s, self.interval_s)
            joined.operations += interval.operations
            joined.size_bytes += interval.size_bytes
            joined.errors += interval.errors
            joined.latency_ns.merge(interval.latency_ns)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw throughput and latency over time",
        description="Draw throughput and latency over time from files that wbench --json or rbench --json wrote.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file of samples; several are compared")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PNG", help="the picture to write")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        import matplotlib
    except ImportError as error:
        raise CommandFailed("plot needs matplotlib: pip install 'neve[plot]'") from error
    matplotlib.use("Agg")  # needs no screen
    runs = []
    for path in args.files:
        try:
            file = SampleFile.open(path)
            timeline = Timeline()
            timeline.add_file(file)
        except BadSampleFile as error:
            raise CommandFailed(str(error)) from error
        intervals = timeline.intervals()
        if not intervals:
            raise CommandFailed(f"{path} has no samples: there is nothing to draw")
        runs.append((f"{file.kind} {path.stem}", intervals))
    draw(runs, args.output)
    print(f"{args.output}: {sum(len(intervals) for _, intervals in runs)} intervals of {len(runs)} runs")
    return DONE


def draw(runs: Sequence[tuple[str, Sequence[Interval]]], output: Path) -> None:
    """Write the picture: throughput above, latency (logarithmic) below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(figsize=(11, 7), layout="constrained")
    throughput, latency = figure.subplots(2, 1, sharex=True)
    for number, (name, intervals) in enumerate(runs):
        colour = f"C{number % 10}"
        middle_s = [interval.start_s + interval.length_s / 2 for interval in intervals]
        throughput.plot(middle_s, [interval.bytes_per_s / 1e6 for interval in intervals], color=colour, label=name)
        failed_s = [at_s for at_s, interval in zip(middle_s, intervals, strict=True) if interval.errors]
        if failed_s:
            throughput.plot(failed_s, [0.0] * len(failed_s), "x", color=colour, label=f"{name}: errors")
        answered = [
            (at_s, interval.latency_ns)
            for at_s, interval in zip(middle_s, intervals, strict=True)
            if interval.latency_ns.count
        ]
        for share, style, words in ((0.5, "-", "p50"), (0.99, "--", "p99"), (0.999, ":", "p99.9")):
            latency.plot(
                [at_s for at_s, _ in answered],
                [histogram.quantile(share) / 1e6 for _, histogram in answered],
                style,
                color=colour,
                label=f"{name} {words}",
            )
    throughput.set_ylabel("MB/s")
    throughput.set_ylim(bottom=0)
    throughput.legend(loc="best", fontsize="small")
    latency.set_ylabel("latency, ms")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    latency.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
    latency.set_xlabel("seconds since the start")
    latency.legend(loc="best", fontsize="small")
    for axes in (throughput, latency):
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(output, format="png", dpi=120)
