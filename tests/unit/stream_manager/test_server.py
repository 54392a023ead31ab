"""A manager as a process: what signals do to it."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from neve.meta.memory.client import MemoryStore
from neve.proto.placement import PLACEMENT_POLICIES
from neve.stream_manager import server
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import NodeEntry
from neve.stream_manager.nodes.core.health import HealthConfig
from neve.stream_manager.server import StreamManager


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.02)


async def test_a_reload_moves_nodes_to_where_the_topology_now_says(tmp_path: Path) -> None:
    script = tmp_path / "where"  # unlike a file it is not watched: its answers are remembered
    script.write_text("#!/bin/sh\necho /eu/r1\n")
    script.chmod(0o755)
    health = HealthConfig(heartbeat_s=0.05)
    config = ManagerConfig(cluster="test", health=health, topology=f"script:{script}")
    manager = StreamManager(config, rng=random.Random(1), store=MemoryStore().client())
    manager.reload_topology()  # before it has begun there is nothing to reload
    await manager.start()
    try:
        await until(lambda: manager.manager.term is not None)
        ctx = manager.manager.leading().ctx
        changes = ctx.changes()
        changes.put(NODE, None, NodeEntry(1, "host1:3501"))
        await ctx.commit(changes)
        for rack in ("r1", "r2"):
            script.write_text(f"#!/bin/sh\necho /eu/{rack}\n")
            manager.reload_topology()
            await until(lambda rack=rack: ctx.state.nodes[1].rack == rack)  # type: ignore[misc]
    finally:
        await manager.stop()


async def test_sighup_reloads_and_sigterm_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    started = asyncio.Event()

    class Recorder:
        def __init__(self, config: ManagerConfig, *, rng: random.Random) -> None:
            pass

        async def start(self) -> None:
            started.set()

        async def stop(self) -> None:
            done.append("stopped")

        def reload_topology(self) -> None:
            done.append("reloaded")

    monkeypatch.setattr(server, "StreamManager", Recorder)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    serving = asyncio.ensure_future(server.serve(ManagerConfig(cluster="test")))
    try:
        await started.wait()
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: done == ["reloaded"])
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        assert done == ["reloaded", "stopped"]
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def test_a_default_placement_that_is_no_policy_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert server.main(["--set", "cluster=test", "--set", "defaults.placement=foo"]) == 2
    told = capsys.readouterr().err
    assert "invalid defaults.placement: 'foo' is not a policy; the policies are " in told
    assert all(name in told for name in PLACEMENT_POLICIES)
    assert server.load_checked(None, ["cluster=test", "defaults.placement=region"]).defaults.placement == "region"
