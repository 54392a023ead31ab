"""Makes the data of a small cluster that is kept among the tests, with the code of any commit.

    git worktree add ../then COMMIT               # with an environment of its own, in which `neve` is that commit's
    ../then/.venv/bin/python -m tests.cluster.make_kept_data tests/cluster/kept/COMMIT

Run it in the root of this checkout: the tests are this checkout's, and `neve` is what the interpreter imports. It
takes a minute or two. test_kept_data.py finds the folder and tells whether later code reads it. What is kept is never
made anew after a change of the product: it stands for data that users have.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import neve.client
from neve.client import Client, KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.types import Delete, Put
from neve.tools.local import layout as local_layout
from tests.cluster.kept_cluster import CLUSTER, NODES, KeptCluster

SMALL_EXTENT_BYTES = 4096
WIDE_EXTENT_BYTES = 16_384
BLOCK_PAYLOAD_BYTES_MAX = 1500  # larger records go in several blocks
VALUE_IN_LOG_BYTES = 9_000  # above `engine.value_threshold_bytes`
PART_BYTES = 16_384
FOR_EVER_S = 100 * 365 * 24 * 3600.0

rng = random.Random("kept data")


def payloads(count: int, low: int, high: int) -> list[bytes]:
    return [rng.randbytes(rng.randint(low, high)) for _ in range(count)]


async def append(neve: Client, stream_id: int, records: Sequence[bytes]) -> None:
    async with neve.writer(stream_id) as writer:
        for record in records:
            await writer.append(record)


async def make_streams(cluster: KeptCluster) -> list[int]:
    """The ids of all that stay."""
    small: dict[str, Any] = {"replicas": NODES, "extent_bytes_max": SMALL_EXTENT_BYTES}
    async with cluster.client(block_payload_bytes_max=BLOCK_PAYLOAD_BYTES_MAX) as neve:
        events = await neve.create_stream(name="events", **small)
        await append(neve, events.id, payloads(40, 1, 700))
        await append(neve, events.id, payloads(5, 1, 100))  # a second owner

        fast = await neve.create_stream(name="fast", sync=False, **small)
        await append(neve, fast.id, payloads(30, 1, 700))

        wide = await neve.create_stream(name="wide", replicas=NODES, extent_bytes_max=WIDE_EXTENT_BYTES)
        await append(neve, wide.id, [*payloads(6, 5000, 9000), b"", *payloads(2, 1, 10)])

        trimmed = await neve.create_stream(name="trimmed", **small)
        await append(neve, trimmed.id, payloads(60, 300, 700))
        stream = await neve.stream(trimmed.id)
        await neve.punch(trimmed.id, [stream.extent_ids[4]])
        first = [record async for record in neve.read(trimmed.id)]
        kept = next(record.position for record in first if record.position.extent_id == stream.extent_ids[2])
        await neve.truncate(trimmed.id, kept)

        await neve.admin.set_quota("team=search", streams_max=5, bytes_max=1 << 30)
        labelled = await neve.create_stream(
            name="labelled", labels={"team": "search", "kind": "log"}, placement="rack", strict=True, **small
        )
        await append(neve, labelled.id, payloads(10, 1, 700))

        ended = await neve.create_stream(name="ended", **small)
        await append(neve, ended.id, payloads(10, 1, 700))
        await neve.seal(ended.id)

        empty = await neve.create_stream(name="empty", **small)
        unnamed = await neve.create_stream(replicas=NODES)
        await append(neve, unnamed.id, payloads(3, 1, 100))

        gone = await neve.create_stream(name="gone", **small)
        await append(neve, gone.id, payloads(10, 1, 700))
        await neve.delete(gone.id)
    return [each.id for each in (events, fast, wide, trimmed, labelled, ended, empty, unnamed)]


async def make_objects(cluster: KeptCluster) -> list[str]:
    """The keys that were deleted."""
    await cluster.neve("bootstrap", "m", "t")
    options = KeyValueOptions(part_bytes=PART_BYTES)
    managers = cluster.layout.partition_manager_addresses
    async with KeyValueClient(managers, cluster=CLUSTER, options=options) as kv:
        for letter in "aehmqtz":
            for number in range(4):
                await kv.put(f"{letter}/table/{number}".encode(), rng.randbytes(rng.randint(0, 200)))
            await kv.put(f"{letter}/large".encode(), rng.randbytes(VALUE_IN_LOG_BYTES))
        await kv.put(b"a/for-ever", b"with a time to live", ttl_s=FOR_EVER_S)
        for letter in "am":
            await kv.delete(f"{letter}/table/0".encode())
        for region in (await cluster.neve("partitions"))["regions"]:
            await cluster.neve("compact", str(region["partition_id"]))  # everything is in tables now

        first, second, third = (await cluster.neve("partitions"))["regions"]
        await cluster.neve("split", str(first["partition_id"]), "--at", "f")
        await cluster.neve("merge", str(second["partition_id"]), str(third["partition_id"]))
        for letter in "aehmqtz":
            await kv.put(f"{letter}/log".encode(), rng.randbytes(rng.randint(1, 200)))
            await kv.put(f"{letter}/table/1".encode(), b"put again")
            await kv.delete(f"{letter}/table/2".encode())
        await kv.put_stream(b"h/parts", [rng.randbytes(3 * PART_BYTES + 77)])
        await kv.batch([Put(b"a/batch", b"one"), Delete(b"a/table/3"), Put(b"a/batch2", b"two")])
    return ["a/table/0", "m/table/0", "a/table/3", *(f"{letter}/table/2" for letter in "aehmqtz")]


async def contents(cluster: KeptCluster, stream_ids: Sequence[int], deleted_keys: Sequence[str]) -> dict[str, Any]:
    streams = []
    async with cluster.client() as neve:
        for stream_id in stream_ids:
            records = [
                {"extent": record.position.extent_id, "offset": record.position.offset, **digest(record.payload)}
                async for record in neve.read(stream_id)
            ]
            streams.append({**await cluster.described(stream_id), "records": records})
    async with cluster.objects() as kv:
        objects = [
            {
                "key": each.key.decode(),
                "version": each.version,
                "modified_ms": each.modified_ms,
                "expires_ms": each.expires_ms,
                **digest((await kv.get(each.key)).value),
            }
            async for each in kv.scan()
        ]
    regions = (await cluster.neve("partitions"))["regions"]
    names = ("partition_id", "start", "end")
    return {
        "commit": commit_of_neve(),
        "streams": streams,
        "deleted_streams": ["gone"],
        "quotas": await cluster.neve("quota"),
        "regions": [{name: region[name] for name in names} for region in regions],
        "objects": objects,
        "deleted_keys": sorted(deleted_keys),
    }


def digest(payload: bytes | memoryview) -> dict[str, Any]:
    return {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}


def commit_of_neve() -> str:
    root = Path(neve.client.__file__).resolve().parents[1]
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def keep_nodes(folder: Path, archive: Path) -> None:
    names = [f"node{number}" for number in range(1, NODES + 1)]
    for segment in folder.glob("node*/journal/*.seg"):  # mostly zeros, in blocks that were reserved
        subprocess.run(["fallocate", "--dig-holes", str(segment)], check=True)
    flags = ["--xattrs", "--xattrs-include=user.*", "--sparse", "--numeric-owner", "--sort=name"]
    subprocess.run(["tar", *flags, "-C", str(folder), "-cJf", str(archive), *names], check=True)


async def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, KeptCluster(Path(folder)) as cluster:
        cluster.start()
        await cluster.until_all_alive()
        stream_ids = await make_streams(cluster)
        deleted_keys = await make_objects(cluster)
        await cluster.until_rested()
        told = await contents(cluster, stream_ids, deleted_keys)
        async with cluster.client() as neve:
            extent_ids = sorted({extent_id async for stream in neve.streams() for extent_id in stream.extent_ids})
        before_nodes = local_layout.STOP_ORDER[: local_layout.STOP_ORDER.index(local_layout.NODE)]
        cluster.stop(before_nodes)
        told["replicas"] = await cluster.replicas(extent_ids)
        cluster.stop([local_layout.NODE])
        kept = await cluster.keep_etcd()
        keep_nodes(Path(folder), target / "nodes.tar.xz")
    for name, data in (("etcd.json", kept), ("contents.json", told)):
        (target / name).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    asyncio.run(make(folder))
