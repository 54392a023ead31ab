"""Child processes of a benchmark that are ordered about by lines, and never outlive it.

A child reads lines from its standard input and ends when that does, so that even a killed benchmark leaves none
behind. A terminal does not know it: Ctrl-C reaches the benchmark alone, which then ends its children in order.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.bench.report import BenchError

ROOT = Path(__file__).parents[2]

START_TIMEOUT_S = 30.0  # imports of grpc and NumPy take seconds on a loaded machine
END_TIMEOUT_S = 5.0


def cpu_s_of(pid: int) -> float:
    """Processor time that a process has used so far, its own and the kernel's for it."""
    # The name of the program, in parentheses, may hold spaces: count fields from behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def apart(first: int, others: Sequence[int]) -> Iterator[None]:
    """Keep a process on the first core and the others off it, with all of their threads; nothing on a single core.

    Where one wakes the other, a virtual machine's kernel may put both on one core for as long as they run, since it
    takes a halted core for a busy one: they then take turns, and the other core sleeps.
    """
    cores = sorted(os.sched_getaffinity(0))
    try:
        if len(cores) > 1:
            _keep_on(first, cores[:1])
            for pid in others:
                _keep_on(pid, cores[1:])
        yield
    finally:
        for pid in (first, *others):
            _keep_on(pid, cores)


def _keep_on(pid: int, cores: Sequence[int]) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


class Child:
    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_line(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """The next line of its output. A child prints one line at a time and only when asked, or once at its start."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise BenchError(f"{self.name} did not answer in {timeout_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} ended with code {self._process.wait()}; its errors are above")
        return line.strip()

    def cpu_s(self) -> float:
        return cpu_s_of(self._process.pid)

    def ask(self, order: dict[str, Any], *, timeout_s: float) -> float:
        """Send an order, a line of JSON, and return the value that it answers with."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.name} has ended; its errors are above") from None
        answer = json.loads(self.read_line(timeout_s))
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return float(answer["value"])


@contextmanager
def start(module: str, *arguments: str) -> Iterator[Child]:
    """Run `python -m module` until the block ends. Its errors go where ours do."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield Child(" ".join((module, *arguments)), process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already
        process.stdin.close()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        process.stdout.close()
