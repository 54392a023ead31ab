"""The election example shows what it says and its exit codes tell the truth; `make demo` cleans up after itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.etcd import EtcdCluster, dying_with_parent, free_ports

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "election.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = dying_with_parent(sys.executable, EXAMPLE, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_the_election_example_elects_three_leaders_and_refuses_the_deposed_one(one_etcd: EtcdCluster) -> None:
    run = _run(one_etcd.endpoints[0])
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count(": leads") == 3
    assert run.stdout.count(": wrote") == 3
    assert run.stdout.count(": write REFUSED") == 1
    assert "All as it must be." in run.stdout


def test_the_election_example_fails_without_an_etcd() -> None:
    run = _run(f"127.0.0.1:{free_ports(1)[0]}")
    assert run.returncode == 1
    assert "NOT as it must be: MetaUnavailable" in run.stderr


def test_a_demo_that_is_terminated_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "ETCD_LISTEN_CLIENT_URLS": "not for this etcd"}
    demo = subprocess.Popen(dying_with_parent(sys.executable, DEMO), stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert demo.stdout is not None
        while "ready after" not in (line := demo.stdout.readline()):
            assert line, "the demo has ended"
        children = _processes_with(f"TMPDIR={tmp_path}")
        assert len(children) > 8, "the demo, its supervisor, etcd, three managers and four nodes"
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=60)
        assert demo.returncode == 128 + signal.SIGTERM
    finally:
        demo.kill()
        demo.communicate()
    _await_none_with(f"TMPDIR={tmp_path}")
    assert not list(tmp_path.iterdir())


def test_what_a_demo_has_started_ends_with_it_however_it_ends(tmp_path: Path) -> None:
    """A signal while a command is being started ends the demo before it knows of the command."""
    variable = f"TMPDIR={tmp_path}"
    command = dying_with_parent(sys.executable, DEMO)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as demo:
        try:
            begins = f"{sys.executable} -m neve.client.command wbench"
            while not (started := [pid for pid in _processes_with(variable) if _command_of(pid).startswith(begins)]):
                assert demo.poll() is None, "the demo has ended"
                time.sleep(0.05)
            os.kill(started[0], signal.SIGSTOP)  # it does not end by itself
        finally:
            demo.kill()
    _await_none_with(variable)


def _await_none_with(variable: str) -> None:
    for _ in range(400):  # the kernel is on its way; a bound, not an expectation
        if not _processes_with(variable):
            break
        time.sleep(0.05)
    assert not [_command_of(pid) for pid in _processes_with(variable)]


def _command_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""  # it has ended


def _processes_with(variable: str) -> list[int]:
    """Processes that were started with this variable; one that has ended has none any more."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
