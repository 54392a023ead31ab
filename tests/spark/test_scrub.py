"""The scrub job on a cluster of real processes: every planted fault, and no other."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from neve.proto import stream_manager_pb2 as sm
from tests.cluster.stream_cluster import CLUSTER, ServerProcess, StreamCluster
from tests.spark import programs
from tests.spark.conftest import disks_of
from tests.spark.driver import SparkDriver
from tests.spark.faults import plant, replica_files

pytestmark = pytest.mark.slow

FAULTS = 100
SEED = 7


async def _write(cluster: StreamCluster) -> list[sm.ExtentInfo]:
    """A stream of many small sealed extents, every replica confirmed, and an open tail."""
    rng = random.Random(SEED)
    async with cluster.client() as client:
        stream = await client.create_stream(name="events", replicas=3, extent_bytes_max=20_000)
        async with client.writer(stream.id) as writer:
            while len((await client.stream(stream.id)).extent_ids) < 62:
                await writer.append_many([rng.randbytes(rng.randrange(20, 900)) for _ in range(150)])
        await cluster.until_recovered()
        infos = await client.admin.describe_extents((await client.stream(stream.id)).extent_ids)
    return list(infos)


@pytest.fixture(scope="module")
def infos(cluster: StreamCluster) -> list[sm.ExtentInfo]:
    return asyncio.run(_write(cluster))


async def _until_replaced(cluster: StreamCluster, infos: list[sm.ExtentInfo], server: ServerProcess) -> None:
    """No extent lists a replica on the server, and all replicas are confirmed."""
    node_id = cluster.node_id(server)
    async with cluster.client() as client:

        async def replaced() -> bool:
            found = await client.admin.describe_extents([info.extent_id for info in infos])
            replicas = [each for info in found for each in info.replicas if info.HasField("seal")]
            return all(each.confirmed and each.replica.node_id != node_id for each in replicas)

        await cluster.until(replaced, f"the replicas of {server.name} are made elsewhere")


def _scrub(spark: SparkDriver, cluster: StreamCluster, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = ["--managers", ",".join(cluster.addresses), "--cluster", CLUSTER, "--json", *more]
    done = spark.call(programs.run_main, module="scrub", arguments=arguments)
    assert done["code"] in (0, 1), done
    return done["code"], json.loads(done["out"])


def _bad(said: dict[str, Any]) -> set[tuple[int, int]]:
    return {(each["extent_id"], each["node_id"]) for each in said["bad"]}


def test_scrub_finds_each_of_100_planted_faults_and_no_other_and_has_them_repaired(
    spark: SparkDriver, cluster: StreamCluster, infos: list[sm.ExtentInfo]
) -> None:
    files = replica_files(cluster, infos)
    code, clean = _scrub(spark, cluster)
    assert (code, clean["bad"], clean["unread"], clean["notes"]) == (0, [], [], [])
    assert clean["replicas"] == 3 * len(infos)

    planted = plant(random.Random(SEED), files, FAULTS)
    assert min(Counter(planted.values()).values()) >= 5, "every kind of fault should be there"

    code, said = _scrub(spark, cluster, "--dry-run", "--disks", disks_of(cluster))  # from the files
    assert code == 1
    assert _bad(said) == set(planted)
    assert (said["unread"], said["changed_meanwhile"], said["reported"]) == ([], [], 0)

    code, said = _scrub(spark, cluster, "--wait", "150s")  # from the nodes
    repaired = {(each["extent_id"], each["node_id"]) for each in said["changed_meanwhile"]}
    assert _bad(said) | repaired == set(planted)  # nodes tell the manager, too, and some may be made anew by now
    assert said["reported"] == len(_bad(said)) > 0
    assert said["still_bad"] == [], cluster.logs(60)
    assert code == 0

    code, after = _scrub(spark, cluster, "--disks", disks_of(cluster))
    assert (code, after["bad"], after["unread"]) == (0, [], [])
    assert after["replicas"] == clean["replicas"]


def test_what_cannot_be_read_is_not_called_bad(
    spark: SparkDriver, cluster: StreamCluster, infos: list[sm.ExtentInfo]
) -> None:
    """The last test of the module: two of its four nodes stay away.

    The replicas of the first are made elsewhere, so all extents lie on the three nodes that are left. When one of them
    goes, there is no fourth for its replicas: metadata stays as it is, however late Spark begins to scan.
    """
    other, server = cluster.nodes[:2]
    other.kill()
    asyncio.run(_until_replaced(cluster, infos, other))
    server.kill()
    code, said = _scrub(spark, cluster, "--dry-run", "--node", str(cluster.node_id(server)))
    assert code == 1
    assert (said["bad"], said["changed_meanwhile"]) == ([], [])
    assert {each["node_id"] for each in said["unread"]} == {cluster.node_id(server)}
    assert len(said["unread"]) == said["replicas"]
    listed = [each.replica.node_id for info in infos for each in info.replicas]
    assert said["replicas"] >= min(Counter(listed).values()) > 0
