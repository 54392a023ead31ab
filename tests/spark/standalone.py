"""A real standalone Spark cluster on this machine, from the PySpark package: a master and workers, as processes.

Invariants: all of them end with the context, executors included; ports are chosen by the kernel.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from tests.cluster.etcd import dying_with_parent, free_ports

START_TIMEOUT_S = 120.0  # a bound for a very slow machine, not an expectation
HOME = Path(pyspark.__file__).parent


class StandaloneCluster:
    """`workers` of one core each."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self.folder = folder
        [port] = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port))
        self._count = workers

    def _start(self, name: str, *words: str) -> Path:
        log = self.folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_WORKER_DIR": str(self.folder / name),
        }
        with log.open("wb") as out:
            command = dying_with_parent(str(HOME / "bin" / "spark-class"), *words, "--webui-port", "0")
            self._processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=self.folder))
        return log

    def __enter__(self) -> Self:
        self._until(self._start("master", *self._master), "I have been elected leader")
        logs = [
            self._start(
                f"worker{number}",
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                self.url,
            )
            for number in range(self._count)
        ]
        for log in logs:
            self._until(log, "Successfully registered with master")
        return self

    def _until(self, log: Path, words: str) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while words not in log.read_text(errors="replace"):
            assert time.monotonic() < deadline_s, log.read_text(errors="replace")
            time.sleep(0.1)

    def kill_worker(self, number: int) -> None:
        """With the executors that it runs, as a machine that is gone."""
        _kill_tree(self._processes[1 + number])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            _kill_tree(process)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    process.kill()
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def python_without_neve(folder: Path) -> Path:
    """A Python as a remote worker may have it: what Neve needs is installed, Neve itself is not."""
    script = folder / "python"
    packages = sysconfig.get_paths()["purelib"]
    # -S: no .pth files, by which the checkout is found here. Spark puts its own things on PYTHONPATH.
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script
