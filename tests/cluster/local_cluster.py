"""`neve up` as a user runs it, and the commands beside it, for tests.

Invariants: the cluster ends with its context, and must have stopped cleanly; nothing outlives the test run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, Self

from tests.cluster.etcd import dying_with_parent

TIMEOUT_S = 180.0  # a bound for a very slow machine, not an expectation

NEVE = (sys.executable, "-m", "neve.tools.main")
STREAM_CLIENT = (sys.executable, "-m", "neve.client.command")

# Short delays, as in stream_cluster.py.
SETTINGS = (
    "manager.lease_ttl_s=3",
    "manager.health.suspect_after_s=2",
    "manager.health.dead_after_s=4",
    "manager.health.stabilise_s=1",
    "manager.health.leader_grace_s=3",
    "manager.recovery.delay_s=1",
    "manager.recovery.poll_s=0.3",
    "manager.limits.extent_bytes_min=1",
    "node.scrub_bytes_per_s=0",
    "node.report_interval_s=2",
    "pmanager.lease_ttl_s=3",
    "pserver.lease_ttl_s=4",
)


class LocalCluster:
    """A context; `facts` is what the ready line says."""

    def __init__(self, data: Path, *arguments: str, settings: Sequence[str] = SETTINGS) -> None:
        self.data = data
        assignments = [word for setting in settings for word in ("--set", setting)]
        command = [*NEVE, "up", "--data", str(data), "--free-ports", "--json", "--quiet", *assignments, *arguments]
        self._process = subprocess.Popen(
            dying_with_parent(*command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self._events: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.facts: dict[str, Any] = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put({"event": "gone"})

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of that name."""
        while True:
            found = self._events.get(timeout=TIMEOUT_S)
            if found["event"] == event:
                return found
            assert found["event"] != "gone", f"`neve up` ended before it said {event}\n{self.logs()}"

    def __enter__(self) -> Self:
        try:
            self.facts = self.wait_for("ready")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
        if kind is not None:
            print(self.logs())
            return
        assert code == 0, f"`neve up` ended with {code}"
        assert self.wait_for("stopped")["clean"]

    def logs(self, lines: int = 20) -> str:
        found = sorted((self.data / "logs").glob("*.log"))
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) for path in found
        )

    @property
    def environment(self) -> dict[str, str]:
        facts = self.facts
        return {
            **os.environ,
            "NEVE_MANAGERS": ",".join(facts["managers"]),
            "NEVE_PARTITION_MANAGERS": ",".join(facts["partition_managers"]),
            "NEVE_CLUSTER": facts["cluster"],
        }

    def run(self, *command: str, code: int = 0, stdin: bytes | None = None) -> tuple[str, str]:
        """A command to its end: stdout and stderr."""
        result = subprocess.run(
            command, env=self.environment, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        out, err = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        assert result.returncode == code, f"{command} ended with {result.returncode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return out, err

    def stream_client(self, *words: str, code: int = 0, stdin: bytes | None = None) -> tuple[str, str]:
        return self.run(*STREAM_CLIENT, *words, code=code, stdin=stdin)

    def neve(self, *words: str, code: int = 0) -> tuple[str, str]:
        return self.run(*NEVE, *words, code=code, stdin=b"")

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A command that goes on."""
        return subprocess.Popen(dying_with_parent(*command), env=self.environment, text=True, **options)
