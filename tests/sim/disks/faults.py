"""Where a simulated disk stops and fails: around every call of it.

Invariants: calls that change something are steps, numbered from 1; stopping at each step in turn visits every point at
            which a process can die between two states of the disk;
            after a stop nothing works until a new process begins: code that goes on past its own end is seen.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

When = Literal["before", "after", "torn"]
Match = Callable[[str, str], bool]  # of (operation, path)

LOG_LINES_MAX = 10_000


class SimulatedCrash(BaseException):
    """The process ended here. Not an Exception: nothing may catch it and go on, and no call works any more."""


@dataclass(slots=True)
class Fault:
    """Fails calls that match, until `left` is used up (None: until cleared)."""

    code: int
    match: Match
    step: int | None
    left: int | None

    def clear(self) -> None:
        self.left = 0


class Faults:
    def __init__(self) -> None:
        self.steps = 0
        self.log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._faults: list[Fault] = []
        self._stop: tuple[int, When] | None = None
        self._stopped = False
        self._mutex = threading.RLock()  # for code that calls from threads; simulated runs have one

    def stop_at(self, step: int, when: When) -> None:
        self._stop = (step, when)

    def fail(self, code: int, *, match: Match, step: int | None, times: int | None) -> Fault:
        fault = Fault(code, match, step, times)
        self._faults.append(fault)
        return fault

    def begin_process(self) -> None:
        """A new process: not stopped, and with no stop ahead. Faults of the disk stay."""
        self._stop, self._stopped = None, False

    def check_alive(self) -> None:
        if self._stopped:
            raise SimulatedCrash("the process has ended; call crash() or power_cut() to begin a new one")

    @contextmanager
    def call(
        self,
        operation: str,
        path: str,
        *,
        changes: bool,
        detail: str = "",
        on_fault: Callable[[], None] | None = None,
    ) -> Iterator[bool]:
        """Around a call: counts, logs, stops, fails. Gives whether a write is to be torn."""
        with self._mutex:
            self.check_alive()
            self.steps += changes
            self.log.append(f"{self.steps if changes else '':>6} {operation} {path} {detail}".rstrip())
            when = self._stop[1] if changes and self._stop is not None and self._stop[0] == self.steps else None
            if when == "before" or (when == "torn" and operation != "pwrite"):
                self._end_process()
            fault = self._next_fault(operation, path, changes=changes)
            try:
                if fault is not None:
                    if on_fault is not None:
                        on_fault()
                    raise OSError(fault.code, os.strerror(fault.code), path)
                yield when == "torn"
            finally:
                if when is not None:
                    self._end_process()

    def _end_process(self) -> None:
        self._stopped = True
        self.log.append("-- stopped")
        raise SimulatedCrash(f"stopped at step {self.steps}")

    def _next_fault(self, operation: str, path: str, *, changes: bool) -> Fault | None:
        if not self._faults:
            return None
        self._faults = [fault for fault in self._faults if fault.left != 0]
        for fault in self._faults:
            is_due = fault.step is None or (changes and fault.step == self.steps)
            if is_due and fault.match(operation, path):
                if fault.left is not None:
                    fault.left -= 1
                return fault
        return None
