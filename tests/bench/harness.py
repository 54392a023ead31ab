"""Runs a benchmark: rounds of interleaved measures, a progress line, a table, and JSON for programs.

A benchmark is a module with a function that prepares and yields a `Plan`:

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Plan]:
        pair = tcp_pair.build(settings.directory)
        with echo_processes() as echo:
            yield Plan(
                measures=(
                    Measure("loopback TCP", lambda: limits.tcp_bandwidth(pair, settings)),
                    Measure("echo, 1 MiB", lambda: echo.bandwidth(settings.pick(2.0, quick=0.5))),
                ),
                comparisons=(Comparison("echo, 1 MiB", "loopback TCP", at_least(0.3)),),
            )

    if __name__ == "__main__":
        sys.exit(harness.main("echo", __doc__, prepare))

Invariants: every round runs every measure once, so that noise which lasts hits all of them, and every other round
            goes backwards, so that a drift favours nobody;
            all that `prepare` started has ended, and its folder is gone, when `main` returns: also after Ctrl-C.

Exit codes: 0 it ran, whether or not targets were met; 1 with --strict, when one was missed; 2 wrong usage;
3 it could not run; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar

from tests.bench.baselines import machine
from tests.bench.report import (
    BenchError,
    Comparison,
    Derived,
    Quantity,
    Row,
    make_rows,
    missed,
    render_table,
    to_document,
)

T = TypeVar("T")

REPEATS = 5
REPEATS_QUICK = 3

EXIT_RAN = 0
EXIT_MISSED = 1
EXIT_FAILED = 3
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

# Above this many runnable processes for each core, at the start, something else is at work here.
LOAD_PER_CORE_MAX = 0.5

BAR_WIDTH = 24
COLUMNS_UNKNOWN = 80  # for a terminal that says 0, as a new one does


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a benchmark may know of how it was called."""

    directory: Path  # for its files; removed afterwards
    quick: bool = False

    def pick(self, full: T, *, quick: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Measure:
    """A name, and what takes one sample of it. Its name is also its row's."""

    name: str
    take: Callable[[], Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    measures: Sequence[Measure]
    comparisons: Sequence[Comparison] = ()
    derived: Sequence[Derived] = ()

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.measures] + [number.name for number in self.derived]
        if len(set(names)) != len(names):
            raise ValueError(f"two measures have one name: {sorted(names)}")
        used = {name for number in self.derived for name in number.of}
        used |= {name for comparison in self.comparisons for name in (comparison.measure, comparison.baseline)}
        if unknown := used - set(names):
            raise ValueError(f"compared but not measured: {', '.join(sorted(unknown))}")


Prepare = Callable[[Settings], AbstractContextManager[Plan]]


class Progress:
    """One line that is redrawn, for a person at a terminal; silent for a file or a pipe."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._shown = stream.isatty()
        self._started_s = time.monotonic()

    def show(self, done: int, total: int, what: str) -> None:
        if not self._shown:
            return
        filled = BAR_WIDTH * done // total if total else 0
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        columns = os.get_terminal_size(self._stream.fileno()).columns or COLUMNS_UNKNOWN
        line = f"{self._name} [{bar}] {done}/{total} {minutes}:{seconds:02d} {what}"
        self._stream.write("\r" + line[: max(0, columns - 1)] + "\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def order_of_round(count: int, round_index: int) -> list[int]:
    """The order in which a round takes its measures: forwards, then backwards, and so on."""
    order = list(range(count))
    return order if round_index % 2 == 0 else order[::-1]


def take_samples(measures: Sequence[Measure], *, repeats: int, progress: Progress) -> dict[str, list[Quantity]]:
    samples: dict[str, list[Quantity]] = {measure.name: [] for measure in measures}
    total = repeats * len(measures)
    done = 0
    for round_index in range(repeats):
        for index in order_of_round(len(measures), round_index):
            measure = measures[index]
            progress.show(done, total, measure.name)
            samples[measure.name].append(measure.take())
            done += 1
    return samples


def main(name: str, description: str | None, prepare: Prepare, argv: Sequence[str] | None = None) -> int:
    """Run the benchmark as its command line says; returns the exit code."""
    arguments = _parser(name, description).parse_args(argv)
    repeats = arguments.repeats or (REPEATS_QUICK if arguments.quick else REPEATS)
    progress = Progress(name, sys.stderr)
    previous = signal.signal(signal.SIGTERM, _on_terminate)
    try:
        with tempfile.TemporaryDirectory(prefix=f"neve-bench-{name}-", dir=arguments.dir) as directory:
            settings = Settings(directory=Path(directory), quick=arguments.quick)
            facts = machine.facts(settings.directory)
            _warn_of_load(facts)
            with prepare(settings) as plan:
                samples = take_samples(plan.measures, repeats=repeats, progress=progress)
        rows = make_rows(samples, plan.comparisons, plan.derived)
        progress.clear()
        _print_report(name, facts, rows, repeats=repeats, quick=arguments.quick)
        if arguments.json is not None:
            meta = {**facts, "repeats": repeats, "quick": arguments.quick}
            _write_json(arguments.json, to_document(name, meta, rows))
    except KeyboardInterrupt:
        progress.clear()
        print(f"{name}: interrupted, nothing is reported", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BenchError, OSError) as error:
        progress.clear()
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, previous)
    return EXIT_MISSED if arguments.strict and missed(rows) else EXIT_RAN


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)  # unwinds, so that processes end and files go


def _parser(name: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=_writable_file, metavar="FILE", help="also write the rows to this file")
    parser.add_argument("--quick", action="store_true", help="short samples: to see that it runs")
    parser.add_argument(
        "--repeats",
        type=_positive,
        metavar="N",
        help=f"rounds, of which medians are taken (default {REPEATS}, with --quick {REPEATS_QUICK})",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument(
        "--dir",
        type=_folder,
        metavar="DIR",
        help="where to put files while it runs (default: the system's folder for temporary files)",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return path


def _writable_file(text: str) -> Path:
    """Refused before minutes of measuring, not after."""
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def _warn_of_load(facts: dict[str, Any]) -> None:
    if facts["load_average"] > LOAD_PER_CORE_MAX * facts["cores"]:
        print(
            f"note: the load average is {facts['load_average']:.1f} on {facts['cores']} cores; "
            "other work on this machine will move the numbers",
            file=sys.stderr,
        )


def _print_report(name: str, facts: dict[str, Any], rows: Sequence[Row], *, repeats: int, quick: bool) -> None:
    commit, _, changes = facts["commit"].partition("+")
    rounds = f"medians of {repeats} rounds{', quick' if quick else ''}"
    print(
        f"{name}: {rounds}; {facts['cores']} cores ({facts['processor']}), Linux {facts['kernel']}, "
        f"Python {facts['python']}, {facts['filesystem']}, commit {commit[:12]}"
        f"{' with changes' if changes else ''}\n"
    )
    print(render_table(rows))
    judged = [row for row in rows if row.met is not None]
    if judged:
        missing = missed(rows)
        print(f"\ntargets: {len(judged) - len(missing)} of {len(judged)} met")
        for row in missing:
            assert row.ratio is not None
            print(f"  missed: {row.name}: {row.ratio:.3g} × {row.baseline_name}, the target is {row.target}")


def _write_json(path: Path, document: dict[str, Any]) -> None:
    """By way of a second file, so that a reader never sees half of it."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text)  # /dev/stdout, a named pipe: to replace it would be to destroy it
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
