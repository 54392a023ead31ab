"""The way into the processes: closed descriptors, Ctrl-C at once, outputs that take nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from neve.tools import entry_points

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
TIMEOUT_S = 120.0  # a bound for a very slow machine
ENVIRONMENT = {**os.environ, "NEVE_MANAGERS": "127.0.0.1:9"}  # where nobody listens


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """With the commands of this checkout, installed or not."""
    python = f"{sys.executable} -c 'import sys; from neve.tools import entry_points as e; sys.exit(e.{{}}())'"
    command = command.replace("stream-client", python.format("stream_client"))
    command = command.replace("neve-extent-node", python.format("neve_extent_node"))
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=TIMEOUT_S, check=False
    )


def entered(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from neve.rpc.entry import enter; sys.exit(enter({module!r}, {module!r}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": str(folder)},
        timeout=TIMEOUT_S,
        check=False,
    )


def test_every_installed_command_comes_in_this_way_and_nothing_slow_is_imported_before() -> None:
    assert {name: f"neve.tools.entry_points:{name.replace('-', '_')}" for name in SCRIPTS} == SCRIPTS
    assert all(callable(getattr(entry_points, name.replace("-", "_"))) for name in SCRIPTS)
    code = "import sys, neve.tools.entry_points; print(*sorted(each for each in sys.modules if each[:4] == 'neve'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["neve", "neve.rpc", "neve.rpc.entry", "neve.tools", "neve.tools.entry_points"]


@pytest.mark.parametrize("redirection", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_descriptor_is_as_dev_null(redirection: str) -> None:
    ended = shell(f"stream-client list --timeout 300ms {redirection}")
    assert ended.returncode == 1  # and not 134, an abort
    assert ended.stdout == ""
    if "2>" not in redirection:
        assert ended.stderr.startswith("stream-client: no stream manager can be reached")
        assert ended.stderr.count("\n") == 1


def test_a_server_with_closed_descriptors_says_what_is_wrong() -> None:
    ended = shell("neve-extent-node --set nonsense=1 <&- >&-")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_outputs_that_take_nothing_are_no_traceback() -> None:
    gone = shell("stream-client list --help | true; exit ${PIPESTATUS[0]}")
    assert (gone.returncode, gone.stderr) == (141, "")
    full = shell("stream-client list --help >/dev/full")
    assert (full.returncode, full.stderr) == (1, "stream-client: the output is lost: No space left on device\n")
    assert shell("stream-client list --timeout 300ms 2>/dev/full").returncode == 1


def test_an_interruption_while_modules_are_imported_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')\n")
    ended = entered("slow", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_an_interruption_outside_of_a_command_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("def main():\n    raise KeyboardInterrupt\n")
    ended = entered("quick", tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "")
