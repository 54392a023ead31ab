"""A Spark driver as a process of its own, for tests: it keeps one session and runs functions of `tests.spark.programs`.

pyspark forks to start Java, and the fork of a process that has used gRPC, as tests do, may not survive. So the session
lives in a child, which takes a line of JSON {"function": …, "arguments": {…}} at a time and answers one with what the
function returned, or with its traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.etcd import dying_with_parent

ROOT = Path(__file__).resolve().parents[2]
MARK = "ANSWER "
CALL_TIMEOUT_S = 240.0  # a bound for a very busy machine, not an expectation


class FunctionFailed(AssertionError):
    """What the function raised in the driver, as text."""


class SparkDriver:
    """`master` as for Spark; a context."""

    def __init__(
        self,
        master: str = "local[2]",
        *,
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **(environment or {}),
        }
        command = [sys.executable, "-m", "tests.spark.driver", master, json.dumps(settings or {})]
        self._process = subprocess.Popen(
            dying_with_parent(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=variables,
        )

    def call(self, function: Callable[..., Any], *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Run a function of tests.spark.programs on the session; what it returns, as JSON can carry it.

        A driver that does not answer in time is killed: what it does by then nobody knows.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(timeout_s, give_up)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"function": function.__name__, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    answer = json.loads(line.removeprefix(MARK))
                    if "error" in answer:
                        raise FunctionFailed(answer["error"])
                    return answer["value"]
        finally:
            timer.cancel()
        told = f"the driver did not answer in {timeout_s:.0f} s" if late.is_set() else "the driver ended"
        raise AssertionError(f"{function.__name__}: {told}\n{self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-5000:]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()


def serve(master: str, settings: dict[str, str]) -> None:
    from neve.pipeline.session import open_session
    from tests.spark import programs

    with open_session(master, "neve-tests", settings=settings) as spark:
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer = {"value": getattr(programs, order["function"])(spark, **order["arguments"])}
            except Exception:  # noqa: BLE001  # the test sees it
                answer = {"error": traceback.format_exc()}
            print(MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
