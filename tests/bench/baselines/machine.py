"""Where a benchmark ran: the facts without which its numbers mean nothing to the next reader."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
ROOT = Path(__file__).parents[3]


def facts(directory: Path) -> dict[str, Any]:
    """`directory` is where the benchmark keeps its files: its file system decides what a sync costs."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _field("/proc/cpuinfo", "model name"),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "filesystem": file_system_of(directory, _read("/proc/self/mounts")),
        "load_average": os.getloadavg()[0],
    }


def commit() -> str:
    """The commit of this checkout, with `+changes` when files differ from it."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return UNKNOWN
    return f"{head}+changes" if _git("status", "--porcelain") else head


def file_system_of(directory: Path, mounts: str) -> str:
    """The type of the file system that holds this folder, from the text of /proc/self/mounts."""
    found, found_at = UNKNOWN, -1
    real = directory.resolve()
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mount_point = Path(words[1])
        depth = len(mount_point.parts)
        if real.is_relative_to(mount_point) and depth >= found_at:  # the last of equals is mounted on top
            found, found_at = words[2], depth
    return found


def _git(*arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return UNKNOWN


def _field(path: str, name: str) -> str:
    """A `name : value` line, as files under /proc have them."""
    for line in _read(path).splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == name:
            return value.strip()
    return UNKNOWN
