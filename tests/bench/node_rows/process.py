"""Extent nodes as processes of a benchmark: started on folders of their own, asked for their memory, always ended.

A node logs to a file in its folder. The kernel ends it with the benchmark (PR_SET_PDEATHSIG), also when that is killed;
Ctrl-C reaches the benchmark alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.processes import ROOT, cpu_s_of
from tests.bench.report import BenchError

CLUSTER = "bench"
NODE_ID = 1

START_TIMEOUT_S = 120.0  # with 100,000 extents, on a loaded machine
END_TIMEOUT_S = 30.0  # a clean stop syncs every open extent
POLL_S = 0.005
LOG_TAIL_LINES = 8

NODE_MODULE = "neve.extent_node"

_STARTED = re.compile(r"node_started .*\bwire=(\S+)")
_PR_SET_PDEATHSIG = 1
_CLEAR_PEAK = "5"  # for clear_refs: see proc(5)

_libc = ctypes.CDLL(None)


def arguments(folder: Path, settings: Mapping[str, str]) -> list[str]:
    """The command line of a node in this folder; `settings` are keys of its configuration, over ours."""
    keys = {
        "cluster": CLUSTER,
        "node_id": str(NODE_ID),
        "format_empty_disks": "true",
        "disks": f'["{disk_folder(folder)}"]',
        "journal": str(journal_folder(folder)),
        "listen.wire": "127.0.0.1:0",
        "scrub_bytes_per_s": "0",  # would read beside what is measured
        **settings,
    }
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def disk_folder(folder: Path) -> Path:
    return folder / "disk"


def journal_folder(folder: Path) -> Path:
    return folder / "journal"


def wire_address(log_text: str) -> str | None:
    """Where the node listens, once its log says so."""
    found = _STARTED.search(log_text)
    return found[1] if found else None


def status_field(text: str, name: str) -> int:
    """A field of /proc/<pid>/status that is in KiB, in bytes."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise BenchError(f"the kernel does not tell a process's {name}")


class NodeProcess:
    """A node that serves. `started_s` is what that took from the beginning of the process."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: str, started_s: float) -> None:
        self.folder = folder
        self.address = address
        self.started_s = started_s
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def disk(self) -> Path:
        return disk_folder(self.folder)

    def extent_path(self, extent_id: int) -> Path:
        return self.disk / "extents" / f"{extent_id & 0xFF:02x}" / f"{extent_id:016x}.ext"

    def empty_trash(self) -> None:
        """Give back the room of deleted extents; what of them was not written to the disk yet never is."""
        for path in (self.disk / "trash").iterdir():
            path.unlink()

    def rss_bytes(self) -> int:
        return status_field(self._proc("status").read_text(), "VmRSS")

    def rss_peak_bytes(self) -> int:
        """Since the start, or since `forget_peak`."""
        return status_field(self._proc("status").read_text(), "VmHWM")

    def forget_peak(self) -> None:
        self._proc("clear_refs").write_text(_CLEAR_PEAK)

    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        return cpu_s_of(self._process.pid)

    def _proc(self, name: str) -> Path:
        if self._process.poll() is not None:
            raise BenchError(f"the node has ended: {_log_tail(self.folder)}")
        return Path(f"/proc/{self._process.pid}/{name}")


@contextmanager
def start(
    folder: Path, settings: Mapping[str, str] | None = None, *, command: Sequence[str] = (NODE_MODULE,)
) -> Iterator[NodeProcess]:
    """Run a node until the block ends. `command` is the module to run, and arguments before the node's own."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "node.log"
    begun_s = time.perf_counter()
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, *arguments(folder, settings or {})],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        address = _await_address(process, folder, begun_s)
        yield NodeProcess(folder, process, address, time.perf_counter() - begun_s)
    finally:
        _end(process)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_address(process: subprocess.Popen[bytes], folder: Path, begun_s: float) -> str:
    while time.perf_counter() - begun_s < START_TIMEOUT_S:
        if address := wire_address((folder / "node.log").read_text()):
            return address
        if process.poll() is not None:
            raise BenchError(f"the node ended with code {process.returncode}: {_log_tail(folder)}")
        time.sleep(POLL_S)
    raise BenchError(f"the node did not start in {START_TIMEOUT_S:.0f} s: {_log_tail(folder)}")


def _log_tail(folder: Path) -> str:
    lines = (folder / "node.log").read_text().splitlines()
    return os.linesep.join(lines[-LOG_TAIL_LINES:]) or "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
