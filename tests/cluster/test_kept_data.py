"""Data that an earlier commit has written is read, and takes appends and puts, by the code of today.

Each folder in kept/ has a small cluster's data, moved here after a clean stop (make_kept_data.py says how it was
made). Today's code starts the nodes on other ports, first alone: each must tell of its replicas what it told before,
seals, tokens and all. Then it starts the others, over an etcd that has the kept keys.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from neve.client import Client, ConnectFailed, KeyValueClient, NotFound, Position, Record
from neve.tools.local import layout as local_layout
from tests.cluster.kept_cluster import KeptCluster

KEPT = Path(__file__).parent / "kept"
COMMITS = sorted(path.name for path in KEPT.iterdir() if path.is_dir())

# Of the streams, one is read before anybody owns it again, all others after a writer has appended to them.
READ_UNOWNED = "events"
NEW_RECORDS = [b"appended by later code", b"", b"x" * 9000]


def test_there_is_kept_data() -> None:
    assert "80cb0fa" in COMMITS


@pytest.mark.parametrize("commit", COMMITS)
async def test_what_an_earlier_commit_has_written_opens_reads_and_takes_more(commit: str, tmp_path: Path) -> None:
    needs_extended_attributes(tmp_path)
    contents = json.loads((KEPT / commit / "contents.json").read_text())
    with KeptCluster(tmp_path) as cluster:
        await cluster.restore_etcd(json.loads((KEPT / commit / "etcd.json").read_text()))
        unpack(KEPT / commit / "nodes.tar.xz", tmp_path)
        cluster.start([local_layout.NODE])  # alone: managers would have what is missing made anew
        await check_replicas(cluster, contents["replicas"])
        cluster.start([kind for kind in local_layout.STOP_ORDER if kind != local_layout.NODE])
        await cluster.until_all_alive()
        for stream in contents["streams"]:
            check_description(stream, await cluster.described(stream["id"]))
        assert limits_of(await cluster.neve("quota")) == limits_of(contents["quotas"])
        check_regions(contents["regions"], (await cluster.neve("partitions"))["regions"])
        async with cluster.client() as neve:
            await check_streams(cluster, neve, contents)
        async with cluster.objects() as kv:
            await check_objects(kv, contents)
        await cluster.until_rested()
        cluster.stop()


# --- bringing it back --------------------------------------------------------------------------------------------


def needs_extended_attributes(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.neve.probe", b"1")
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        pytest.skip(
            f"the file system of {folder} keeps no user extended attributes, in which replicas have their state"
        )


def unpack(archive: Path, folder: Path) -> None:
    flags = ["--xattrs", "--xattrs-include=user.*", "--no-same-owner"]
    subprocess.run(["tar", *flags, "-C", str(folder), "-xJf", str(archive)], check=True)
    attributes = {name for path in folder.rglob("*.ext") for name in os.listxattr(path)}
    assert "user.neve.meta" in attributes, "tar has restored no extended attributes"


async def check_replicas(cluster: KeptCluster, kept: list[dict[str, Any]]) -> None:
    extent_ids = sorted({each["extent"] for each in kept})
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        try:
            found[:] = await cluster.replicas(extent_ids)
        except ConnectFailed:  # it starts
            return False
        return True

    await cluster.until(told, "all nodes answer")
    assert found == kept


# --- streams -----------------------------------------------------------------------------------------------------


def check_description(kept: dict[str, Any], now: dict[str, Any]) -> None:
    """All is as it was, but that a tail which nobody owns may be sealed by now, with another one behind it."""
    before, after = list(kept["extents"]), list(now["extents"])
    for was, then in zip(before, after, strict=False):
        assert then == was or (was["length"] is None and then == {**was, "length": then["length"]}), kept["name"]
    assert len(after) - len(before) in (0, 1), "at most one extent behind a sealed tail"
    if len(after) > len(before):
        assert after[len(before) - 1]["length"] is not None, "it stands behind an open one"
    dynamic = ("extents", "records")
    assert {**now, "extents": []} == {**{name: kept[name] for name in kept if name not in dynamic}, "extents": []}


def limits_of(quotas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is used: that changes when a tail is sealed, since an open extent counts with its limit."""
    return [{name: quota[name] for name in quota if name not in ("extents", "bytes")} for quota in quotas]


async def check_streams(cluster: KeptCluster, neve: Client, contents: dict[str, Any]) -> None:
    for name in contents["deleted_streams"]:
        with pytest.raises(NotFound):
            await neve.stream(name)
    listed = {stream.id async for stream in neve.streams()}
    assert listed >= {stream["id"] for stream in contents["streams"]}
    for stream in contents["streams"]:
        expected = stream["records"]
        if stream["name"] == READ_UNOWNED:
            await until_read(cluster, neve, stream["id"], len(expected))
        if stream["sealed"]:
            assert [digest_of(record) async for record in neve.read(stream["id"])] == expected
            continue
        async with neve.writer(stream["id"]) as writer:
            positions = [await writer.append(record) for record in NEW_RECORDS]
        found = [record async for record in neve.read(stream["id"])]
        assert [digest_of(record) for record in found[: len(expected)]] == expected, stream["name"]
        appended = list(zip(positions, NEW_RECORDS, strict=True))
        assert [(each.position, bytes(each.payload)) for each in found[len(expected) :]] == appended, stream["name"]
        for each in expected[:3]:
            record = await neve.read_record(stream["id"], Position(each["extent"], each["offset"]))
            assert digest_of(record) == each


async def until_read(cluster: KeptCluster, neve: Client, stream_id: int, count: int) -> None:
    """Nodes forget by a restart how far readers may go in an open extent: the manager seals it when nobody owns it."""

    async def read() -> bool:
        return len([None async for _ in neve.read(stream_id)]) == count

    await cluster.until(read, f"all {count} records of stream {stream_id} can be read")


def digest_of(record: Record) -> dict[str, Any]:
    payload = bytes(record.payload)
    return {
        "extent": record.position.extent_id,
        "offset": record.position.offset,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }


# --- objects -----------------------------------------------------------------------------------------------------


def check_regions(kept: list[dict[str, Any]], now: Iterable[dict[str, Any]]) -> None:
    assert [{name: region[name] for name in kept[0]} for region in now] == kept


async def check_objects(kv: KeyValueClient, contents: dict[str, Any]) -> None:
    assert [each async for each in objects_of(kv)] == contents["objects"]
    for key in contents["deleted_keys"]:
        with pytest.raises(NotFound):
            await kv.get(key.encode())
    for each in contents["objects"]:
        key = each["key"].encode()
        again = await kv.put(key, b"put by later code", if_version=each["version"])
        assert again.version > each["version"]
        assert (await kv.get(key)).value == b"put by later code"
    new = [b"%s/new" % region["start"].encode() for region in contents["regions"]]
    for key in new:
        await kv.put(key, b"n" * 9000, if_absent=True)
        assert (await kv.get(key)).value == b"n" * 9000
    found = [info.key async for info in kv.scan()]
    assert found == sorted([*new, *(each["key"].encode() for each in contents["objects"])])


async def objects_of(kv: KeyValueClient) -> AsyncIterator[dict[str, Any]]:
    async for each in kv.scan():
        value = (await kv.get(each.key)).value
        yield {
            "key": each.key.decode(),
            "version": each.version,
            "modified_ms": each.modified_ms,
            "expires_ms": each.expires_ms,
            "bytes": len(value),
            "sha256": hashlib.sha256(value).hexdigest(),
        }
