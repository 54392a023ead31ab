"""neve kv: objects from the command line, over partitions in a dict on real sockets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neve.client.command.samples import SampleFile
from neve.tools.main import main
from tests.unit.client.objects.rig import wire_cluster
from tests.unit.client.objects.scripted_partitions import CLUSTER, ScriptedCluster

Neve = Callable[..., int]


@pytest.fixture
def cluster() -> Iterator[tuple[ScriptedCluster, str]]:
    with wire_cluster(servers=2, split_keys=(b"m",)) as made:
        yield made


@pytest.fixture
def neve(cluster: tuple[ScriptedCluster, str]) -> Neve:
    def run(verb: str, *arguments: str) -> int:
        return main(["kv", verb, "--managers", cluster[1], "--cluster", CLUSTER, "--timeout", "5", *arguments])

    return run


def test_put_get_head_scan_and_delete(neve: Neve, tmp_path: Path, capfdbinary: Any) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(bytes(range(256)) * 40_000)
    assert neve("put", "big", str(source)) == 0
    assert neve("get", "big", "-o", str(target)) == 0
    assert target.read_bytes() == source.read_bytes()
    assert neve("put", "a/b", "--value", "hello", "--if-absent") == 0
    capfdbinary.readouterr()
    assert neve("get", "a/b") == 0
    assert capfdbinary.readouterr().out == b"hello"
    assert neve("get", "a/b", "--offset", "1", "--length", "3") == 0
    assert capfdbinary.readouterr().out == b"ell"
    assert neve("head", "a/b", "--json") == 0
    head = json.loads(capfdbinary.readouterr().out)
    assert (head["key"], head["size_bytes"]) == ("a/b", 5)
    assert neve("head", "a/b") == 0
    assert b"modified" in capfdbinary.readouterr().out
    assert neve("put", "a/b", "--value", "x", "--if-version", str(head["version"] + 1)) == 1
    assert b"the condition is not met" in capfdbinary.readouterr().err
    assert neve("scan", "a/", "--json") == 0
    assert [json.loads(line)["key"] for line in capfdbinary.readouterr().out.splitlines()] == ["a/b"]
    assert neve("scan", "--keys") == 0
    assert capfdbinary.readouterr().out == b"a/b\nbig\n"
    assert neve("scan", "--limit", "1") == 0
    assert b"a/b" in capfdbinary.readouterr().out
    assert neve("delete", "a/b") == 0
    assert neve("delete", "a/b") == 1
    assert neve("get", "a/b") == 1
    assert b"no such object: a/b" in capfdbinary.readouterr().err


def test_stdin_and_keys_of_any_bytes(
    neve: Neve,
    monkeypatch: pytest.MonkeyPatch,
    cluster: tuple[ScriptedCluster, str],
    capfdbinary: Any,
    tmp_path: Path,
) -> None:
    (tmp_path / "input").write_bytes(b"from a pipe")
    with (tmp_path / "input").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert neve("put", r"\x00\xff") == 0
    assert cluster[0].value(b"\x00\xff") == b"from a pipe"
    capfdbinary.readouterr()
    assert neve("scan", r"\x00", "--keys") == 0
    assert capfdbinary.readouterr().out == b"\\x00\\xff\n"  # as it can be typed
    assert neve("get", "") == 1
    assert b"key" in capfdbinary.readouterr().err
    assert neve("put", "ümlaut", "--value", "ä", "--ttl", "1h") == 0
    assert cluster[0].value("ümlaut".encode()) == "ä".encode()


def test_without_a_cluster_it_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "get", "a", "--managers", "127.0.0.1:1", "--timeout", "0.5"]) == 1
    told = capfd.readouterr().err
    assert "no partition manager can be reached at 127.0.0.1:1" in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize("mix", ["A", "B", "C", "D", "E", "F", "put"])
def test_bench_runs_every_mix(neve: Neve, mix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    samples = tmp_path / "samples.json"
    arguments = ["--mix", mix, "--objects", "200", "--size", "100", "--duration", "0.3", "--workers", "8"]
    assert neve("bench", *arguments, "--json", str(samples), "--json-report") == 0
    report = json.loads(capfd.readouterr().out)
    kinds = {
        "A": {"read", "update"},
        "B": {"read", "update"},
        "C": {"read"},
        "D": {"read", "insert"},
        "E": {"scan", "insert"},
        "F": {"read", "read-modify-write"},
        "put": {"update"},
    }
    assert set(report["kinds"]) <= kinds[mix]
    assert report["operations"] == sum(kind["operations"] for kind in report["kinds"].values()) > 0
    assert report["errors_total"] == 0
    assert sum(1 for _ in SampleFile.open(samples).samples()) == report["operations"]


def test_bench_reports_for_people(neve: Neve, capfd: pytest.CaptureFixture[str]) -> None:
    assert neve("bench", "--mix", "A", "--objects", "50", "--duration", "0.2") == 0
    told = capfd.readouterr()
    assert "loaded 50 objects" in told.err
    assert "p99 ms" in told.out
    assert "errors      0" in told.out
