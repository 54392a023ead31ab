"""The partition layer on real processes: servers are killed and stopped, ranges are moved, split and merged, all of it
under writes. Every acknowledged put is readable in the end, and nothing is there that nobody put. How long keys were
without a server is printed (`pytest -s`)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from neve.client.objects.client import KeyValueClient
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError
from neve.rpc.wire.client import WireChannel
from tests.cluster.partition_cluster import LEASE_S, PartitionedCluster, Writers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(module_tmp_path: Path) -> Iterator[PartitionedCluster]:
    with PartitionedCluster(module_tmp_path) as running:
        yield running


async def test_a_killed_servers_keys_are_served_after_its_lease(cluster: PartitionedCluster) -> None:
    async with cluster.watched() as watcher, KeyValueClient(cluster.managers) as kv:
        writers = Writers(kv, tag="kill")
        await writers.until_all_go_on()
        loop = asyncio.get_running_loop()
        killed_s = loop.time()
        cluster.kill("pserver1")
        await writers.until_all_go_on()
        print(
            f"\nunavailable after kill -9 of a partition server: {writers.longest_gap_s(killed_s):.2f} s, "
            f"of which the lease is up to {LEASE_S} s",
        )
        assert set((await cluster.homes()).values()) == {2}
        await writers.finish()
        cluster.bring_back("pserver1")
        await writers.until(lambda: len(watcher.state.servers) == 2, "it has registered again")
    assert watcher.revisions > 1


async def test_t11_a_server_that_was_stopped_past_its_lease_answers_nothing(cluster: PartitionedCluster) -> None:
    async with cluster.watched(), KeyValueClient(cluster.managers) as kv:
        region = await cluster.region("a")
        name = f"pserver{region['server_id']}"
        await kv.put(b"a/stopped", b"before")
        writers = Writers(kv, tag="stop")
        await writers.until_all_go_on()
        cluster.send(name, signal.SIGSTOP)
        stopped_s = asyncio.get_running_loop().time()
        channel = WireChannel(region["address"], cluster="main")
        try:
            queued = asyncio.ensure_future(
                channel.call(methods.PARTITION_SERVER_GET, ps.GetRequest(key=b"a/stopped"), timeout_s=60.0)
            )
            await kv.put(b"a/stopped", b"after")
            await writers.until_all_go_on()
            print(f"\nunavailable after SIGSTOP: {writers.longest_gap_s(stopped_s):.2f} s")
            cluster.send(name, signal.SIGCONT)
            with pytest.raises(NeveError):
                await queued
            for _ in range(20):
                with pytest.raises(NeveError):
                    await channel.call(methods.PARTITION_SERVER_GET, ps.GetRequest(key=b"a/stopped"), timeout_s=5.0)
        finally:
            await channel.close()
        assert (await kv.get(b"a/stopped")).value == b"after"
        await writers.finish()


async def test_moves_splits_and_merges_under_writes_lose_and_double_nothing(cluster: PartitionedCluster) -> None:
    async with cluster.watched() as watcher, KeyValueClient(cluster.managers) as kv:
        await writers_registered(watcher)
        writers = Writers(kv, tag="reshape")
        await writers.until_all_go_on()
        loop = asyncio.get_running_loop()
        gaps = {}

        async def timed(what: str, *words: str) -> list[dict[str, object]]:
            begun_s = loop.time()
            shown = json.loads(await cluster.neve(*words, "--json"))
            await writers.until_all_go_on()
            gaps[what] = writers.longest_gap_s(begun_s)
            return list(shown)

        for key in ("a", "v"):
            region = await cluster.region(key)
            other = 3 - region["server_id"]
            (moved,) = await timed("move", "move", str(region["partition_id"]), str(other))
            assert moved["server_id"] == other
        left, right = await timed("split", "split", str((await cluster.region("o"))["partition_id"]), "--at", "o/t")
        assert (left["end"], right["start"]) == ("o/t", "o/t")
        chosen = await timed("split", "split", str((await cluster.region("h"))["partition_id"]))
        assert len(chosen) == 2
        for one, two in ((left, right), chosen):
            (merged,) = await timed("merge", "merge", str(one["partition_id"]), str(two["partition_id"]))
            assert (merged["start"], merged["end"]) == (one["start"], two["end"])
        await writers.finish()
        print("\nlongest time without an acknowledgement: " + ", ".join(f"{k} {v:.2f} s" for k, v in gaps.items()))
    assert len(watcher.maps[-1].regions) == 4


async def test_a_killed_manager_costs_no_write_and_the_next_one_splits(cluster: PartitionedCluster) -> None:
    async with cluster.watched() as watcher, KeyValueClient(cluster.managers) as kv:
        writers = Writers(kv, tag="manager")
        await writers.until_all_go_on()
        cluster.kill("pmanager1")
        await writers.until_all_go_on()
        region = await cluster.region("v")
        await cluster.neve("split", str(region["partition_id"]), "--at", "w")
        await writers.until_all_go_on()
        await writers.finish()
        cluster.bring_back("pmanager1")
        assert watcher.maps[-1].find(b"w").start == b"w"


async def test_a_server_told_to_stop_hands_over_without_waiting_for_its_lease(cluster: PartitionedCluster) -> None:
    async with cluster.watched() as watcher, KeyValueClient(cluster.managers) as kv:
        await writers_registered(watcher)
        writers = Writers(kv, tag="term")
        await writers.until_all_go_on()
        begun_s = asyncio.get_running_loop().time()
        cluster.send("pserver2", signal.SIGTERM)
        await writers.until(lambda: len(watcher.state.servers) == 1, "its registration is gone")
        await writers.until_all_go_on()
        print(f"\nunavailable after SIGTERM: {writers.longest_gap_s(begun_s):.2f} s")
        assert set((await cluster.homes()).values()) == {1}
        await writers.finish()
        cluster.bring_back("pserver2")
        await writers_registered(watcher)


async def writers_registered(watcher: object) -> None:
    """Both servers are there."""
    async with asyncio.timeout(60.0):
        while len(watcher.state.servers) < 2:  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
