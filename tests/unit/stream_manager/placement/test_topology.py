"""Where nodes stand, by file, script and callable."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from neve.extent_node.registration import CALL_TIMEOUT_S
from neve.proto.errors import InvalidArgument
from neve.stream_manager.placement.topology import Place, Topology, resolver_for


def locate_for_test(address: str) -> str | None:
    if address.startswith("broken"):
        raise RuntimeError("no such rack")
    return {"a:1": "/eu/r1", "odd:1": "eu-r1"}.get(address)


async def locate_later(address: str) -> str | None:
    return locate_for_test(address)


def rewrite(path: Path, text: str) -> None:
    """With another time stamp, however quickly it follows."""
    before_ns = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before_ns + 10**9, before_ns + 10**9))


async def test_a_file_knows_addresses_and_hosts(tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    path.write_text('[nodes]\n"10.0.0.7:3501" = "/eu/r1"\n"10.0.0.7" = "/eu/r2"\n')
    topology = Topology(resolver_for(f"file:{path}"))
    assert await topology.locate("10.0.0.7:3501") == Place("eu", "r1")
    assert await topology.locate("10.0.0.7:3502") == Place("eu", "r2")
    assert await topology.locate("10.0.0.8:3501") is None


async def test_a_changed_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps({"nodes": {"a": "/eu/r1"}}))
    topology = Topology(resolver_for(f"file:{path}"))
    assert await topology.locate("a:1") == Place("eu", "r1")
    rewrite(path, json.dumps({"nodes": {"a": "/eu/r9"}}))
    assert await topology.locate("a:1") == Place("eu", "r9")
    rewrite(path, "{")
    assert await topology.locate("a:1") == Place("eu", "r9")
    path.unlink()
    assert await topology.locate("a:1") == Place("eu", "r9")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.toml", "nodes = 3", "a table `nodes` is required"),
        ("t.toml", '[nodes]\na = "r1"', "'r1' is not of the form /region/rack"),
        ("t.toml", '[nodes]\na = "/eu/"', "is not of the form"),
        ("t.toml", "[nodes]\na = 1", "is not of the form"),
        ("t.json", "{", "Expecting"),
        ("t.toml", "=", "Invalid"),
    ],
)
def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=complaint):
        resolver_for(f"file:{path}")


@pytest.mark.parametrize(
    "spec",
    [
        "racks",
        "file:",
        "file:/no/such/file",
        "script:/no/such/script",
        "python:os:no_such",
        "python:no.such:x",
        "python:os:sep",
    ],
)
def test_a_wrong_resolver_is_refused_at_the_start(spec: str) -> None:
    with pytest.raises(InvalidArgument, match="topology"):
        resolver_for(spec)


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "where"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"script:{path}"


async def test_a_script_is_asked_once_until_a_reload(tmp_path: Path) -> None:
    topology = Topology(resolver_for(script(tmp_path, f'echo "$1" >> {tmp_path}/asked; echo /eu/r1')))
    assert await topology.locate("a:1") == Place("eu", "r1")
    assert await topology.locate("a:1") == Place("eu", "r1")
    assert (tmp_path / "asked").read_text() == "a:1\n"
    topology.reload()
    await topology.locate("a:1")
    assert (tmp_path / "asked").read_text() == "a:1\na:1\n"


@pytest.mark.parametrize("body", ["exit 3", "echo nonsense", "echo /eu/r1; echo /eu/r2", "kill -9 $$"])
async def test_a_script_that_fails_costs_only_its_answer_and_is_asked_again(tmp_path: Path, body: str) -> None:
    topology = Topology(resolver_for(script(tmp_path, body)))
    assert await topology.locate("a:1") is None
    assert topology.failures == 1
    script(tmp_path, "echo /eu/r7")
    assert await topology.locate("a:1") == Place("eu", "r7")


async def test_a_script_that_says_nothing_does_not_know(tmp_path: Path) -> None:
    topology = Topology(resolver_for(script(tmp_path, "true")))
    assert await topology.locate("a:1") is None
    assert topology.failures == 0


@pytest.mark.parametrize("function", ["locate_for_test", "locate_later"])
async def test_a_callable_answers_or_fails_alone(function: str) -> None:
    topology = Topology(resolver_for(f"python:{__name__}:{function}"))
    assert await topology.locate("a:1") == Place("eu", "r1")
    assert await topology.locate("b:1") is None
    assert topology.failures == 0
    assert await topology.locate("broken:1") is None
    assert await topology.locate("odd:1") is None
    assert topology.failures == 2


async def never(address: str) -> str | None:
    await asyncio.Event().wait()
    return None


@pytest.mark.sim(seed=1)
async def test_a_callable_that_hangs_costs_only_its_answer() -> None:
    topology = Topology(resolver_for(f"python:{__name__}:never"))
    async with asyncio.timeout(CALL_TIMEOUT_S):  # a node's registration would have ended
        assert await topology.locate("a:1") is None
    assert topology.failures == 1


async def test_without_a_resolver_nodes_speak_for_themselves() -> None:
    assert await Topology(resolver_for("")).locate("a:1") is None
