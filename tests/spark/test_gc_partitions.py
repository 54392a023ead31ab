"""GC of partitions' logs, on a cluster of real processes, under writes and deletes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neve.client import Client, KeyValueClient, SyncKeyValueClient
from neve.partition_server.log import log_format
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NotFound
from neve.rpc.wire.client import WireChannel
from tests.cluster.local_cluster import SETTINGS, LocalCluster
from tests.spark import programs
from tests.spark.driver import SparkDriver
from tests.spark.faulty import ATTEMPTS, DIE, GONE, RAISE, fault
from tests.spark.held import HeldCall

pytestmark = pytest.mark.slow

KEYS = 220
VALUE_BYTES = 8_000  # stays in the log
SMALL_BYTES = 50  # goes into tables
EXTENT_BYTES = 256 << 10
THRESHOLD_BYTES = 4 << 10

Model = dict[bytes, tuple[int, bytes]]  # key → version and value


@pytest.fixture(scope="module")
def store(module_tmp_path: Path) -> Iterator[LocalCluster]:
    settings = [
        *SETTINGS,
        f"manager.defaults.extent_bytes_max={EXTENT_BYTES}",
        "manager.collecting.grace_s=1",
        "manager.collecting.interval_s=1",
        "pserver.engine.log_garbage_ratio=100",  # the server by itself moves nothing: that is GC's here
    ]
    words = ("--managers", "1", "--nodes", "3", "--partition-managers", "1", "--partition-servers", "1")
    with LocalCluster(module_tmp_path, *words, settings=settings) as made:
        yield made


def _kv(store: LocalCluster) -> SyncKeyValueClient:
    return SyncKeyValueClient(store.facts["partition_managers"], cluster=store.facts["cluster"])


async def _regions(store: LocalCluster) -> list[pm.Region]:
    channel = WireChannel(store.facts["partition_managers"][0], cluster=store.facts["cluster"])
    try:
        reply = await channel.call(methods.PARTITION_MANAGER_LIST_REGIONS, pm.ListRegionsRequest(), timeout_s=20)
        return list(reply.message.regions)
    finally:
        await channel.close()


async def _flush(store: LocalCluster) -> None:
    for region in await _regions(store):
        channel = WireChannel(region.address, cluster=store.facts["cluster"])
        try:
            request = ps.FlushPartitionRequest(partition_id=region.partition_id)
            await channel.call(methods.PARTITION_SERVER_FLUSH_PARTITION, request, timeout_s=60)
        finally:
            await channel.close()


def _write(store: LocalCluster, model: Model, seed: int) -> None:
    asyncio.run(_write_all(store, model, random.Random(seed)))


async def _write_all(store: LocalCluster, model: Model, rng: random.Random) -> None:
    """Puts, overwrites and deletes, of large and small values."""

    async def change(kv: KeyValueClient, key: bytes) -> None:
        if rng.random() < 0.25:
            await kv.delete(key)
            model.pop(key, None)
        else:
            value = rng.randbytes(VALUE_BYTES if rng.random() < 0.8 else SMALL_BYTES)
            model[key] = (await kv.put(key, value)).version, value

    async with KeyValueClient(store.facts["partition_managers"], cluster=store.facts["cluster"]) as kv:
        for _ in range(2):
            chosen = rng.sample(range(KEYS), KEYS * 3 // 4)
            await asyncio.gather(*(change(kv, f"key{number:05d}".encode()) for number in chosen))


async def _count_live(store: LocalCluster, model: Model) -> dict[tuple[int, int], tuple[int, int]]:
    """(partition, extent) → (length, live bytes), by the log and by what the writer knows: no table is read."""
    counted: dict[tuple[int, int], tuple[int, int]] = {}
    async with Client(store.facts["managers"], cluster=store.facts["cluster"]) as client:
        for region in await _regions(store):
            live: dict[int, int] = defaultdict(int)
            async for record in client.read(region.log_stream_id):
                found = log_format.decode(bytes(record.payload))
                if found.kind not in (log_format.Kind.PUT, log_format.Kind.MOVE):
                    continue
                [entry] = found.entries
                inside = entry.key >= region.start and (not region.end or entry.key < region.end)
                large = entry.size_bytes >= THRESHOLD_BYTES  # small ones are in the tables
                if inside and large and entry.key in model and model[entry.key][0] == entry.version:
                    live[record.position.extent_id] += entry.size_bytes
            stream = await client.stream(region.log_stream_id)
            for info in await client.admin.describe_extents(stream.extent_ids):
                key = (region.partition_id, info.extent_id)
                counted[key] = (info.seal.length, live[info.extent_id])
    return counted


def _gc(spark: SparkDriver, store: LocalCluster, *more: str) -> dict[str, Any]:
    return _run(spark, store, "gc", "--grace", "1ms", *more)


def _run(spark: SparkDriver, store: LocalCluster, job: str, *more: str) -> dict[str, Any]:
    done = _try(spark, store, job, *more)
    assert done["code"] == 0, done
    said: dict[str, Any] = json.loads(done["out"])
    return said


def _try(spark: SparkDriver, store: LocalCluster, job: str, *more: str) -> dict[str, Any]:
    done: dict[str, Any] = spark.call(programs.run_main, module=job, arguments=_words(store, *more))
    return done


def _words(store: LocalCluster, *more: str) -> list[str]:
    return ["--managers", ",".join(store.facts["managers"]), "--cluster", store.facts["cluster"], "--json", *more]


def _faulty_gc(spark: SparkDriver, store: LocalCluster, planted: dict[str, Any], *more: str) -> dict[str, Any]:
    words = _words(store, "--grace", "1ms", *more)
    done: dict[str, Any] = spark.call(programs.run_faulty, module="gc", arguments=words, planted=planted)
    return done


def _has(region: pm.Region, key: bytes) -> bool:
    return bool(region.start <= key and (not region.end or key < region.end))


def _options(store: LocalCluster, **more: object) -> dict[str, str]:
    said = {"managers": ",".join(store.facts["managers"]), "cluster": store.facts["cluster"], **more}
    return {name: str(value) for name, value in said.items()}


def _check_all(store: LocalCluster, model: Model) -> None:
    with _kv(store) as kv:
        for number in range(KEYS):
            key = f"key{number:05d}".encode()
            if key in model:
                found = kv.get(key)
                assert (found.info.version, bytes(found.value)) == model[key]
            else:
                with pytest.raises(NotFound):
                    kv.get(key)


def _extent_files(store: LocalCluster, extent_ids: set[int]) -> list[Path]:
    names = {f"{extent_id:016x}.ext" for extent_id in extent_ids}
    return [path for path in store.data.glob("node*/disk*/extents/*/*.ext") if path.name in names]


def test_gc_proposes_exactly_the_dead_bytes_returns_their_space_and_keeps_every_live_key(
    spark: SparkDriver, store: LocalCluster, tmp_path: Path
) -> None:
    model: Model = {}
    _write(store, model, seed=1)
    asyncio.run(_flush(store))
    _write(store, model, seed=2)
    asyncio.run(_flush(store))

    counted = asyncio.run(_count_live(store, model))
    said = _gc(spark, store)
    logs = [row for row in said["rows"] if row["partition_id"]]
    assert len(logs) == len(counted)
    free = [row for row in logs if row["reason"] not in ("it is open", "it is to be replayed")]
    assert len(free) >= 5
    for row in free:
        length, live = counted[row["partition_id"], row["extent_id"]]
        assert row["live_bytes"] == live, row
        assert row["size_bytes"] == 3 * length
        assert row["action"] == ("reclaim" if live <= length / 2 else "keep"), row
    usage = _run(spark, store, "usage")
    assert sum(each["log_bytes"] for each in usage["partitions"]) == sum(length for length, _ in counted.values())
    assert usage["total"]["live_bytes"] < usage["total"]["bytes"]
    proposed = {row["extent_id"] for row in free if row["action"] == "reclaim"}
    assert proposed
    assert len(_extent_files(store, proposed)) == 3 * len(proposed)

    regions = len(asyncio.run(_regions(store)))
    # The log as a table: its records' keys, block by block, as the writer knows them.
    log_stream = next(region.log_stream_id for region in asyncio.run(_regions(store)) if _has(region, b"key"))
    found = spark.call(programs.rows, options=_options(store, stream=log_stream, columns="log"), columns=["key", "seq"])
    versions = {key.encode("latin-1"): seq for key, seq in sorted(found, key=lambda row: row[1] or 0) if key}
    assert all(versions[key] == version for key, (version, _) in model.items())

    # T36: a task over tables or logs that fails for ever means that nothing is proposed; one that is repeated, nothing.
    failed = _faulty_gc(spark, store, fault("entries", RAISE), "--apply")
    assert (failed["code"], failed["out"]) == (1, "")
    assert "a planted fault" in failed["err"]
    repeated = _faulty_gc(spark, store, fault("entries", DIE, attempts=1))
    # Of the logs alone: what the servers have merged meanwhile has left other streams.
    assert [row for row in json.loads(repeated["out"])["rows"] if row["partition_id"]] == logs
    assert len(_extent_files(store, proposed)) == 3 * len(proposed)
    # An extent that a server's merge has deleted under the run: everything is read again.
    again = json.loads(_faulty_gc(spark, store, fault("entries", GONE, folder=tmp_path))["out"])
    assert [row for row in again["rows"] if row["partition_id"]] == logs
    assert len(list(tmp_path.glob("gone-*"))) == ATTEMPTS

    # T37: a split while a run reads tables and logs; then it applies what it found.
    busy = max(free, key=lambda row: row["size_bytes"])["partition_id"]
    words = _words(store, "--grace", "1ms", "--apply")
    with HeldCall(spark, tmp_path / "held", "entries", programs.run_faulty, module="gc", arguments=words) as held:
        store.neve("split", str(busy), "--at", "key00110")
    during = held.answer
    # What it looked at may have changed under it: then it proposes nothing at all, and says why (T36).
    assert (during["code"], bool(during["out"])) in ((0, True), (1, False)), during
    runs = [json.loads(during["out"])] if during["out"] else []
    assert len(asyncio.run(_regions(store))) == regions + 1
    _write(store, model, seed=3)
    _check_all(store, model)

    # Both sides of the split give their part back; then nobody refers to the extents, and their space returns.
    asyncio.run(_flush(store))
    again = _gc(spark, store, "--apply", "--live-share", "0.9")
    assert again["applied"]["failed"] == []
    runs.append(again)
    punched = {extent_id for run in runs for each in run["applied"]["reclaimed"] for extent_id in each["punched"]}
    assert punched
    _check_all(store, model)
    asyncio.run(_until_gone(store, punched))
    _check_all(store, model)


async def _until_gone(store: LocalCluster, extent_ids: set[int]) -> None:
    """Extents that a partition gave back and that no stream has any more leave the disks."""
    async with Client(store.facts["managers"], cluster=store.facts["cluster"]) as client:
        listed: set[int] = set()
        async for stream in client.streams():
            listed.update(stream.extent_ids)
    gone = extent_ids - listed
    assert gone
    async with asyncio.timeout(60):
        while _extent_files(store, gone):
            await asyncio.sleep(0.2)
