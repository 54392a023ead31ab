"""Stream managers as processes of a benchmark: started on an etcd, asked for their memory, always ended.

A manager logs to a file. The kernel ends it with the benchmark, also when that is killed; Ctrl-C reaches the benchmark
alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.node_rows.process import CLUSTER, status_field
from tests.bench.processes import ROOT
from tests.bench.report import BenchError
from tests.cluster.etcd import dying_with_parent

MANAGER_MODULE = "neve.stream_manager"

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
POLL_S = 0.005
LOG_TAIL_LINES = 8

_STARTED = re.compile(r"manager_started .*\bwire=(\S+)")


def arguments(endpoints: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """The command line of a manager; `settings` are keys of its configuration, over ours."""
    quoted = ", ".join(f'"{endpoint}"' for endpoint in endpoints)
    keys = {"cluster": CLUSTER, "listen.wire": "127.0.0.1:0", "etcd.endpoints": f"[{quoted}]", **settings}
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def wire_address(log_text: str) -> str | None:
    """Where the manager listens, once its log says so."""
    found = _STARTED.search(log_text)
    return found[1] if found else None


class ManagerProcess:
    def __init__(self, log_path: Path, process: subprocess.Popen[bytes]) -> None:
        self.address = ""
        self._log_path = log_path
        self._process = process

    def wait_for(self, pattern: re.Pattern[str], *, timeout_s: float) -> str:
        """The first group of the first line of its log that matches."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if found := pattern.search(self._log_path.read_text()):
                return found[1]
            if self._process.poll() is not None:
                raise BenchError(f"the manager ended with code {self._process.returncode}: {self.log_tail()}")
            time.sleep(POLL_S)
        raise BenchError(f"the manager's log has no {pattern.pattern!r} after {timeout_s:.0f} s: {self.log_tail()}")

    def rss_peak_bytes(self) -> int:
        return status_field(Path(f"/proc/{self._process.pid}/status").read_text(), "VmHWM")

    def log_tail(self) -> str:
        lines = self._log_path.read_text().splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:]) or "it said nothing"

    def resign(self) -> None:
        """Tell it to stop, which begins with resigning; `end` waits until it has stopped."""
        self._process.terminate()

    def end(self) -> None:
        self.resign()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def start(
    log_path: Path,
    endpoints: Sequence[str],
    settings: Mapping[str, str] | None = None,
    *,
    module: str = MANAGER_MODULE,
) -> Iterator[ManagerProcess]:
    """Run a manager until the block ends. It may not lead yet when the block begins."""
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            dying_with_parent(sys.executable, "-m", module, *arguments(endpoints, settings or {})),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            cwd=ROOT,
            start_new_session=True,
        )
    manager = ManagerProcess(log_path, process)
    try:
        manager.address = manager.wait_for(_STARTED, timeout_s=START_TIMEOUT_S)
        yield manager
    finally:
        manager.end()
