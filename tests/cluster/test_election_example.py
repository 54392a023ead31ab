"""The example that `make demo` runs shows what it says, and its exit code tells the truth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cluster.etcd import EtcdCluster, dying_with_parent, free_ports

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
