"""The GC job on a cluster of real processes: extents without references, and files that metadata does not list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neve.client.streams.client import Client
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.stream_manager.metadata import records
from neve.stream_manager.metadata.records import read_stream, stream_bytes
from tests.cluster.checking import CheckingWriter, check_stream
from tests.cluster.node import Extent, wire_channel
from tests.cluster.stream_cluster import CLUSTER, StreamCluster
from tests.spark import programs
from tests.spark.driver import SparkDriver
from tests.spark.faulty import DIE, RAISE, fault
from tests.spark.held import HeldCall

pytestmark = pytest.mark.slow

GRACE_S = 6
STRANGE_EXTENT_ID = 1 << 40


@pytest.fixture(scope="module")
def cluster(module_tmp_path: Path) -> Iterator[StreamCluster]:
    settings = [f"collecting.grace_s={GRACE_S}", "collecting.interval_s=1"]
    made = StreamCluster(module_tmp_path, managers=1, nodes=3, manager_settings=settings)
    asyncio.run(made.__aenter__())
    yield made
    made.close()


async def _write(client: Client, name: str, count: int) -> int:
    stream = await client.create_stream(name=name, replicas=3, extent_bytes_max=20_000)
    async with client.writer(stream.id) as writer:
        for number in range(count):
            await writer.append_many([f"{number}/{at}".encode() * 20 for at in range(50)])
    return stream.id


async def _lose_references(cluster: StreamCluster, count: int) -> list[int]:
    """As a bug or a restored backup would: extents that are in metadata, and in no stream's list."""
    async with cluster.client() as client:
        stream_id = await _write(client, "leaky", 60)
        await cluster.until_recovered()
        described = await client.admin.describe()
    for server in cluster.managers:
        server.kill()
    async with await EtcdStore.connect(EtcdConfig(tuple(described.meta_endpoints))) as store:
        key = described.meta_root.encode() + records.STREAMS + f"{stream_id:016x}".encode()
        found = await store.get(key)
        assert found is not None
        stream, young = read_stream(found.value, found.mod_revision)
        lost = stream.extent_ids[1 : 1 + count]
        left = tuple(extent_id for extent_id in stream.extent_ids if extent_id not in lost)
        await store.put(key, stream_bytes(stream._replace(extent_ids=left), young))
    for server in cluster.managers:
        server.start()
    await cluster.until_all_alive()
    return list(lost)


async def _make_orphan(cluster: StreamCluster) -> None:
    """A file that no metadata speaks of."""
    async with cluster.client() as client:
        [node] = [each for each in await client.admin.nodes() if each.node_id == cluster.node_id(cluster.nodes[0])]
    async with wire_channel(node.wire_address) as channel:
        status = await cluster.ask_status()
        assert status is not None
        await Extent(channel, STRANGE_EXTENT_ID).create(status.leader)


def _words(cluster: StreamCluster, *more: str) -> list[str]:
    return ["--managers", ",".join(cluster.addresses), "--cluster", CLUSTER, "--json", *more]


def _gc(spark: SparkDriver, cluster: StreamCluster, *more: str) -> dict[str, Any]:
    done: dict[str, Any] = spark.call(programs.run_main, module="gc", arguments=_words(cluster, *more))
    return done


def _faulty_gc(spark: SparkDriver, cluster: StreamCluster, planted: dict[str, Any], *more: str) -> dict[str, Any]:
    done: dict[str, Any] = spark.call(
        programs.run_faulty, module="gc", arguments=_words(cluster, *more), planted=planted
    )
    return done


def _files_of(cluster: StreamCluster, extent_id: int) -> list[Path]:
    return sorted(cluster.folder.glob(f"node*/disk1/extents/*/{extent_id:016x}.ext"))


def _deletes(said: dict[str, Any]) -> list[int]:
    return sorted(row["extent_id"] for row in said["rows"] if row["action"] == "delete")


@pytest.fixture(scope="module")
def lost(cluster: StreamCluster) -> list[int]:
    """Extents that nobody needs, older than the grace period."""
    found = asyncio.run(_lose_references(cluster, 4))
    asyncio.run(asyncio.sleep(GRACE_S))
    return found


def test_t36_a_run_that_misses_a_task_or_a_node_proposes_nothing_and_one_that_repeats_tasks_the_same(
    spark: SparkDriver, cluster: StreamCluster, lost: list[int], tmp_path: Path
) -> None:
    wanted = ["--grace", "1s", "--apply", "--output", str(tmp_path / "none")]

    def refused(done: dict[str, Any], word: str) -> None:
        assert (done["code"], done["out"]) == (1, ""), done
        assert word in done["err"]
        assert not (tmp_path / "none").exists()
        asyncio.run(_still_there(cluster, lost))

    # A task that fails for ever, and a Python process of Spark that is killed for ever.
    refused(_faulty_gc(spark, cluster, fault("extents", RAISE), *wanted), "a planted fault")
    refused(_faulty_gc(spark, cluster, fault("files", DIE), *wanted), "Python worker exited")
    # Only at first: Spark repeats them, and what the first attempt gave counts for nothing.
    for planted in (fault("extents", DIE, attempts=1), fault("files", RAISE, attempts=1)):
        said = json.loads(_faulty_gc(spark, cluster, planted, "--grace", "1s")["out"])
        assert _deletes(said) == lost

    cluster.nodes[1].kill()
    refused(_gc(spark, cluster, *wanted), "a task failed")
    cluster.nodes[1].start()
    asyncio.run(cluster.until_all_alive())

    # A node that goes when the run has begun.
    with HeldCall(
        spark, tmp_path / "held", "extents", programs.run_faulty, module="gc", arguments=_words(cluster, *wanted)
    ) as held:
        cluster.nodes[2].kill()
    refused(held.answer, "a task failed")
    cluster.nodes[2].start()
    asyncio.run(cluster.until_all_alive())


def test_t38_unreferenced_extents_are_deleted_once_and_their_space_comes_back(
    spark: SparkDriver, cluster: StreamCluster, lost: list[int], tmp_path: Path
) -> None:
    asyncio.run(_make_orphan(cluster))
    assert all(len(_files_of(cluster, extent_id)) == 3 for extent_id in lost)

    young = json.loads(_gc(spark, cluster, "--grace", "1h")["out"])
    assert {row["action"] for row in young["rows"]} == {"keep"}

    said = json.loads(_gc(spark, cluster, "--grace", "1s", "--output", str(tmp_path / "plan"))["out"])
    assert _deletes(said) == lost
    assert all(len(_files_of(cluster, extent_id)) == 3 for extent_id in lost), "without --apply nothing is changed"
    plan = spark.call(programs.parquet, path=str(tmp_path / "plan"), columns=["action", "extent_id"])
    assert sorted(plan) == sorted([row["action"], row["extent_id"]] for row in said["rows"])

    # Two runs, and the first one's orders once more; what was deleted is not deleted again.
    first = json.loads(_gc(spark, cluster, "--grace", "1s", "--apply")["out"])
    assert sorted(first["applied"]["deleted"]) == lost
    asyncio.run(_propose_again(cluster, first))
    again = json.loads(_gc(spark, cluster, "--grace", "1s", "--apply")["out"])
    assert _deletes(again) == []

    async def gone() -> bool:
        return not any(_files_of(cluster, extent_id) for extent_id in [*lost, STRANGE_EXTENT_ID])

    asyncio.run(cluster.until(gone, "their files are gone from extents/"))


async def _propose_again(cluster: StreamCluster, said: dict[str, Any]) -> None:
    proposals = [(row["extent_id"], row["eversion"]) for row in said["rows"] if row["action"] == "delete"]
    async with cluster.client() as client:
        reply = await client.admin.delete_extents(proposals, revision=said["revision"])
    assert list(reply.deleted) == []


async def _still_there(cluster: StreamCluster, extent_ids: list[int]) -> None:
    async with cluster.client() as client:
        found = await client.admin.describe_extents(extent_ids)
    assert sorted(info.extent_id for info in found) == extent_ids


async def _write_during(spark: SparkDriver, cluster: StreamCluster, rows: str, folder: Path) -> dict[str, Any]:
    """Writers that roll into new extents all the time; a run stands still while some of them are made."""
    async with cluster.client() as client:
        stream = await client.create_stream(name=f"during-{rows}", replicas=3, extent_bytes_max=5_000)
        writer = CheckingWriter(client, stream.id, f"during-{rows}")
        writing = asyncio.create_task(writer.run())
        # Above the time that an allocation takes: its files are there before metadata lists them.
        words = _words(cluster, "--grace", "5s", "--apply")
        held = HeldCall(spark, folder, rows, programs.run_faulty, module="gc", arguments=words)
        await asyncio.to_thread(held.__enter__)
        before = set((await client.stream(stream.id)).extent_ids)
        async with asyncio.timeout(60):
            while len(set((await client.stream(stream.id)).extent_ids) - before) < 3:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(held.__exit__, None, None, None)
        writer.stop()
        await writing
        assert len(writer.written.acknowledged) > 50
        await check_stream(client, stream.id, writer.written)
    done = held.answer
    assert done["code"] == 0, done
    said: dict[str, Any] = json.loads(done["out"])
    return said


@pytest.mark.parametrize("rows", ["extents", "files"])
def test_t37_what_is_made_and_written_during_a_run_is_never_proposed(
    spark: SparkDriver, cluster: StreamCluster, tmp_path: Path, rows: str
) -> None:
    """Files that come when metadata was read look as if metadata did not list them."""
    said = asyncio.run(_write_during(spark, cluster, rows, tmp_path / "held"))
    assert {row["action"] for row in said["rows"]} <= {"keep"}
