"""The progress of a Spark job, shown on the terminal.

Invariants: nothing is shown where stderr is no terminal, but for one line every `LINE_S` seconds, so that a log of a
            long job tells that it lives; stdout is left to the result.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.5
LINE_S = 30.0


class JobProgress:
    """A context. `step` names what is being done now."""

    def __init__(self, spark: SparkSession, step: str, err: TextIO | None = None) -> None:
        self._err = sys.stderr if err is None else err
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._step = step
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
            console=Console(file=self._err),
            transient=True,
            disable=not self._err.isatty(),
        )
        self._task = self._bar.add_task(step, total=None)

    def step(self, words: str) -> None:
        self._step = words

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        self._bar.stop()

    def _watch(self) -> None:
        told_s = time.monotonic()
        while not self._ends.wait(LOOK_S):
            done, total = self._tasks()
            self._bar.update(self._task, description=self._step, completed=done, total=total or None)
            if not self._err.isatty() and time.monotonic() - told_s >= LINE_S:
                told_s = time.monotonic()
                print(f"{self._step}: {done} of {total} tasks", file=self._err, flush=True)

    def _tasks(self) -> tuple[int, int]:
        """(done, all) of the stages under way."""
        done = total = 0
        for stage_id in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage_id)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
        return done, total
