"""`spark.read.format("neve")` on a cluster of real processes, on local[2]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from neve.client.streams.types import Position
from tests.cluster.stream_cluster import StreamCluster
from tests.spark import programs
from tests.spark.conftest import disks_of, options_of
from tests.spark.driver import FunctionFailed, SparkDriver

pytestmark = pytest.mark.slow

RECORDS = 12_000
EXTENT_BYTES = 200_000


def record(number: int) -> bytes:
    return f"{number}:".encode() + b"x" * (number % 90)


async def _fill(cluster: StreamCluster, name: str, first: int, count: int) -> list[tuple[int, int, bytes]]:
    """Append to a stream; where each record is."""
    async with cluster.client() as client:
        try:
            stream_id = (await client.stream(name)).id
        except Exception:  # noqa: BLE001  # there is none yet
            stream_id = (await client.create_stream(name=name, replicas=3, extent_bytes_max=EXTENT_BYTES)).id
        payloads = [record(number) for number in range(first, first + count)]
        async with client.writer(stream_id) as writer:
            positions: list[Position] = []
            for start in range(0, count, 500):
                positions += await writer.append_many(payloads[start : start + 500])
    return [(place.extent_id, place.offset, payload) for place, payload in zip(positions, payloads, strict=True)]


@pytest.fixture(scope="module")
def written(cluster: StreamCluster) -> list[tuple[int, int, bytes]]:
    placed = asyncio.run(_fill(cluster, "events", 0, RECORDS))
    assert len({extent_id for extent_id, _, _ in placed}) > 3
    return placed


@pytest.mark.parametrize("local", [False, True], ids=["from_nodes", "from_files"])
def test_a_scan_gives_every_acknowledged_record_once_with_its_bytes(
    spark: SparkDriver, cluster: StreamCluster, written: list[tuple[int, int, bytes]], local: bool
) -> None:
    more = {"disks": disks_of(cluster)} if local else {}
    options = options_of(cluster, stream="events", columns="payload", sliceBytes=40_000, batchRows=700, **more)
    found = spark.call(programs.rows, options=options, columns=["extent_id", "offset", "type", "crc_ok", "payload"])
    wanted = [[extent_id, offset, 1, True, payload.decode()] for extent_id, offset, payload in written]
    assert sorted(found) == sorted(wanted)
    options = options_of(cluster, stream="events", sliceBytes=40_000, **more)
    seen = spark.call(programs.summary, options=options)
    size_bytes = sum(len(payload) for _, _, payload in written)
    assert (seen["rows"], seen["distinct"], seen["bytes"], seen["revisions"]) == (RECORDS, RECORDS, size_bytes, 1)
    assert seen["tasks"] > 10  # slices of extents, not extents


def test_filters_on_extent_offset_and_type_are_the_scans_own(
    spark: SparkDriver, cluster: StreamCluster, written: list[tuple[int, int, bytes]]
) -> None:
    middle = sorted({extent_id for extent_id, _, _ in written})[1]
    options = options_of(cluster, stream="events", sliceBytes=40_000)
    where = f"extent_id = {middle} AND offset >= 1000 AND offset < 90000 AND type = 1"
    seen = spark.call(programs.filtered_rows_of_scan, options=options, where=where)
    assert seen["rows"] == sum(extent == middle and 1000 <= offset < 90000 for extent, offset, _ in written)
    assert seen["filters_left"] == 0
    other = spark.call(programs.filtered_rows_of_scan, options=options, where="length > 50 AND type = 1")
    assert other["rows"] == sum(len(payload) > 50 for _, _, payload in written)
    assert other["filters_left"] == 1
    none = spark.call(programs.filtered_rows_of_scan, options=options, where="type IN (2, 3)")
    assert none["rows"] == 0


def test_each_replica_can_be_read_by_itself_and_shows_its_damage(
    spark: SparkDriver, cluster: StreamCluster, written: list[tuple[int, int, bytes]]
) -> None:
    """Bit flips in one replica: seen in it, and never in what any replica gives."""
    extent_id = written[0][0]
    options = options_of(cluster, extents=extent_id, columns="payload")
    [extent] = spark.call(
        programs.rows, options=options_of(cluster, extents=extent_id, rows="extents"), columns=["node_ids", "length"]
    )
    node_id = extent[0][0]
    server = next(each for each in cluster.nodes if cluster.node_id(each) == node_id)
    name = f"{extent_id:016x}"
    path = cluster.disk_folder(server) / "extents" / name[-2:] / f"{name}.ext"
    here = [(offset, payload) for extent, offset, payload in written if extent == extent_id]
    bad = [here[3][0], here[40][0], here[41][0]]
    with path.open("r+b") as file:  # in place: it keeps its attributes, and nobody's mapping becomes shorter
        for offset in bad:
            file.seek(offset + 9)
            [byte] = file.read(1)
            file.seek(offset + 9)
            file.write(bytes([byte ^ 0x10]))
    places: tuple[dict[str, str], ...] = ({}, {"disks": disks_of(cluster)})
    for place in places:
        found = spark.call(
            programs.rows, options={**options, **place, "replica": "each"}, columns=["node_id", "offset", "crc_ok"]
        )
        assert len(found) == 3 * len(here)
        assert sorted(offset for node, offset, ok in found if not ok) == bad
        assert {node for node, _, ok in found if not ok} == {node_id}
    for place in places:  # the reader tells the manager, who has it repaired
        whole = spark.call(programs.rows, options={**options, **place}, columns=["offset", "payload"], order="offset")
        assert whole == [[offset, payload.decode()] for offset, payload in here]


def test_the_metadata_of_an_older_revision_can_be_asked_for(
    spark: SparkDriver, cluster: StreamCluster, written: list[tuple[int, int, bytes]]
) -> None:
    options = options_of(cluster, rows="extents")
    before = spark.call(programs.rows, options=options, columns=["extent_id", "revision"], order="extent_id")
    revision = before[0][1]
    asyncio.run(_fill(cluster, "later", 0, 10))
    now = spark.call(programs.rows, options=options, columns=["extent_id", "revision"], order="extent_id")
    then = spark.call(
        programs.rows,
        options={**options, "revision": str(revision)},
        columns=["extent_id", "revision"],
        order="extent_id",
    )
    assert then == before
    assert len(now) > len(then)
    assert {row[1] for row in now} != {revision}


def test_a_stream_is_followed_over_restarts_without_loss_or_repetition(
    spark: SparkDriver, cluster: StreamCluster, tmp_path: Path
) -> None:
    asyncio.run(_fill(cluster, "followed", 0, 5_000))
    options = options_of(cluster, stream="followed", columns="payload")
    how: dict[str, Any] = {"checkpoint": str(tmp_path), "query": "followed"}
    first = spark.call(programs.follow, options=options, maxBytesPerTrigger="100000", **how)
    assert (first["rows"], first["distinct"]) == (5_000, 5_000)
    assert first["batches"] > 1
    asyncio.run(_fill(cluster, "followed", 5_000, 3_000))
    second = spark.call(programs.follow, options=options, **how)
    assert (second["rows"], second["distinct"]) == (8_000, 8_000)


def test_wrong_options_are_refused_by_name(spark: SparkDriver, cluster: StreamCluster) -> None:
    for wrong, word in (
        ({"strem": "events"}, "strem"),
        ({"stream": "nothing-of-this-name"}, "nothing-of-this-name"),
        ({"columns": "extent,payload"}, "columns"),
        ({"stream": "events", "node": 1}, "choose by one"),
        ({"replica": "some"}, "replica"),
    ):
        with pytest.raises(FunctionFailed, match=word):
            spark.call(programs.summary, options=options_of(cluster, **wrong))


def test_a_lost_node_is_read_from_another_replica(
    spark: SparkDriver, cluster: StreamCluster, written: list[tuple[int, int, bytes]]
) -> None:
    """The last test of the module: the node stays away."""
    cluster.nodes[0].kill()
    options = options_of(cluster, stream="events", columns="payload", sliceBytes=40_000)
    seen = spark.call(programs.summary, options=options)
    assert (seen["rows"], seen["distinct"]) == (RECORDS, RECORDS)
