"""The GC job on a cluster of real processes: extents without references, and files that metadata does not list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neve.client.client import Client
from neve.meta.etcd import EtcdStore
from neve.meta.etcd_config import EtcdConfig
from neve.stream_manager import record_codec, records
from tests.cluster.checking import CheckingWriter, check_stream
from tests.cluster.node import Extent, wire_channel
from tests.cluster.stream_cluster import CLUSTER, StreamCluster
from tests.spark import programs
from tests.spark.driver import SparkDriver

pytestmark = pytest.mark.slow

GRACE_S = 6
STRANGE_EXTENT_ID = 1 << 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamCluster]:
    settings = [f"collecting.grace_s={GRACE_S}", "collecting.interval_s=1"]
    made = StreamCluster(tmp_path_factory.mktemp("cluster"), managers=1, nodes=3, manager_settings=settings)
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
        stream, young = record_codec.decode_stream(found.value, found.mod_revision)
        lost = stream.extent_ids[1 : 1 + count]
        left = tuple(extent_id for extent_id in stream.extent_ids if extent_id not in lost)
        await store.put(key, record_codec.encode_stream(stream._replace(extent_ids=left), young))
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


def _gc(spark: SparkDriver, cluster: StreamCluster, *more: str) -> dict[str, Any]:
    arguments = ["--managers", ",".join(cluster.addresses), "--cluster", CLUSTER, "--json", *more]
    done: dict[str, Any] = spark.call(programs.run_main, module="gc", arguments=arguments)
    return done


def _files_of(cluster: StreamCluster, extent_id: int) -> list[Path]:
    return sorted(cluster.folder.glob(f"node*/disk1/extents/*/{extent_id:016x}.ext"))


def test_unreferenced_extents_are_proposed_deleted_and_their_space_comes_back(
    spark: SparkDriver, cluster: StreamCluster, tmp_path: Path
) -> None:
    lost = asyncio.run(_lose_references(cluster, 4))
    asyncio.run(_make_orphan(cluster))
    assert all(len(_files_of(cluster, extent_id)) == 3 for extent_id in lost)

    young = json.loads(_gc(spark, cluster, "--grace", "1h")["out"])
    assert {row["action"] for row in young["rows"]} == {"keep"}

    asyncio.run(asyncio.sleep(GRACE_S))
    said = json.loads(_gc(spark, cluster, "--grace", "1s", "--output", str(tmp_path / "plan"))["out"])
    assert sorted(row["extent_id"] for row in said["rows"] if row["action"] == "delete") == lost
    assert all(len(_files_of(cluster, extent_id)) == 3 for extent_id in lost), "without --apply nothing is changed"
    plan = spark.call(programs.parquet, path=str(tmp_path / "plan"), columns=["action", "extent_id"])
    assert sorted(plan) == sorted([row["action"], row["extent_id"]] for row in said["rows"])

    # T36: a node that does not answer, and a metadata store that does not: no plan, nothing deleted.
    cluster.nodes[1].kill()
    hidden = _gc(spark, cluster, "--grace", "1s", "--apply", "--output", str(tmp_path / "none"))
    assert (hidden["code"], hidden["out"]) == (1, "")
    assert "a task failed" in hidden["err"]
    assert not (tmp_path / "none").exists()
    cluster.nodes[1].start()
    asyncio.run(cluster.until_all_alive())
    asyncio.run(_still_there(cluster, lost))

    # T38: two runs; the second finds nothing left to do.
    first = json.loads(_gc(spark, cluster, "--grace", "1s", "--apply")["out"])
    assert sorted(first["applied"]["deleted"]) == lost
    again = json.loads(_gc(spark, cluster, "--grace", "1s", "--apply")["out"])
    assert [row for row in again["rows"] if row["action"] == "delete"] == []

    async def gone() -> bool:
        return not any(_files_of(cluster, extent_id) for extent_id in [*lost, STRANGE_EXTENT_ID])

    asyncio.run(cluster.until(gone, "their files are gone from extents/"))


async def _still_there(cluster: StreamCluster, extent_ids: list[int]) -> None:
    async with cluster.client() as client:
        found = await client.admin.describe_extents(extent_ids)
    assert sorted(info.extent_id for info in found) == extent_ids


async def _write_during(spark: SparkDriver, cluster: StreamCluster) -> list[dict[str, Any]]:
    """Writers that roll into new extents all the time, and GC runs beside them."""
    async with cluster.client() as client:
        stream = await client.create_stream(name="busy", replicas=3, extent_bytes_max=5_000)
        writer = CheckingWriter(client, stream.id, "busy")
        writing = asyncio.create_task(writer.run())
        runs = []
        for _ in range(2):
            done = await asyncio.to_thread(_gc, spark, cluster, "--grace", "1ms", "--apply")
            assert done["code"] == 0, done
            runs.append(json.loads(done["out"]))
        writer.stop()
        await writing
        assert len(writer.written.acknowledged) > 50
        await check_stream(client, stream.id, writer.written)
    return runs


def test_t37_what_is_being_written_during_a_run_is_never_deleted(spark: SparkDriver, cluster: StreamCluster) -> None:
    for said in asyncio.run(_write_during(spark, cluster)):
        assert [row for row in said["rows"] if row["action"] == "delete"] == []
