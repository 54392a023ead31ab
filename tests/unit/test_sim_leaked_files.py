"""What a node may have on its disks is told from what it may not: a file that a disk is spoiled with is found."""

from __future__ import annotations

import errno

import pytest

from tests.sim.checks.leaked_files import leaked_files
from tests.sim.cluster import SimCluster, simulated
from tests.sim.disks.disk import SimFileSystem
from tests.sim.processes.node import SimNode

STRANGE = (
    "/disk0/extents/07/0000000000000007.ext",
    "/disk0/extents/07/0000000000000007.idx",
    "/disk0/extents/07/readme",
    "/disk0/quarantine/0000000000000007-0000000000000001-5.ext",
    "/disk0/tombstones/0000000000000007.0000000000000001.5",
    "/disk0/tmp/0000000000000007.copy",
    "/disk0/trash/0000000000000007-0000000000000001-5.ext",
    "/disk0/core",
    "/journal/0007.seg",
    "/journal/label.old",
)


def put(node: SimNode, path: str) -> None:
    node.fs.close(node.fs.open(path, create=True))


async def with_a_sealed_extent(cluster: SimCluster) -> tuple[SimNode, int]:
    stream = await cluster.create_stream(replicas=3)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    await writer.append()
    tail = cluster.tail(stream.id)
    await client.run(client.neve.admin.seal_stream(stream.id))
    await cluster.until(lambda: cluster.state.extents[tail.extent_id].all_confirmed, "it is sealed")
    return cluster.nodes[tail.node_ids[0]], tail.extent_id


@pytest.mark.parametrize("path", STRANGE)
@simulated(seed=1)
async def test_a_file_that_has_no_business_there_is_found(cluster: SimCluster, path: str) -> None:
    node = cluster.nodes[1]
    assert leaked_files(node, cluster.state.extents) == []
    put(node, path)
    assert leaked_files(node, cluster.state.extents) == [f"{path} on {node.host}"]


@simulated(seed=1)
async def test_an_extent_and_its_index_are_a_leak_once_no_record_gives_them_to_the_node(cluster: SimCluster) -> None:
    node, extent_id = await with_a_sealed_extent(cluster)
    assert leaked_files(node, cluster.state.extents) == []
    path = node.extent_path(extent_id)
    assert node.fs.stat(path.replace(".ext", ".idx")) is not None
    assert leaked_files(node, {}) == [f"{path} on {node.host}", f"{path.replace('.ext', '.idx')} on {node.host}"]


@simulated(seed=1)
async def test_an_index_of_an_open_extent_is_a_leak(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3)
    writer = await (await cluster.client("writer")).writer(stream.id)
    await writer.append()
    tail = cluster.tail(stream.id)
    node = cluster.nodes[tail.node_ids[0]]
    path = node.extent_path(tail.extent_id).replace(".ext", ".idx")
    put(node, path)
    assert f"{path} on {node.host}" in leaked_files(node, cluster.state.extents)


@simulated(seed=1)
async def test_a_disk_that_its_node_calls_full_or_does_not_tell_of_keeps_the_cluster_from_being_in_order(
    cluster: SimCluster,
) -> None:
    await cluster.until_in_order()
    disk = next(iter(cluster.nodes[1].store.state.disks.values()))
    disk.marks = type(disk.marks)(high=0.0, low=-1.0)  # full, whatever room there is
    disk.note_full("a test")
    await cluster.until(lambda: bool(cluster.lacking()), "the leader hears of it")
    assert cluster.lacking() == ["node1 tells of 0 writable disks, and has 1"]


def test_a_disk_filled_to_the_last_block_takes_no_name_and_no_attribute_and_tells_so() -> None:
    fs = SimFileSystem()
    fs.make_dirs("/disk0/a")
    fs.make_dirs("/disk0/b")
    fd = fs.open("/disk0/a/file", create=True)
    fs.set_xattr(fd, "user.one", b"1")
    fs.fill("/disk0", to_the_last_block=True)
    refused: list[str] = []
    fs.on_full = refused.append
    calls = (
        lambda: fs.set_xattr(fd, "user.one", b"2"),
        lambda: fs.set_xattr(fd, "user.two", b"2"),
        lambda: fs.open("/disk0/a/new", create=True),
        lambda: fs.make_dirs("/disk0/c"),
        lambda: fs.rename("/disk0/a/file", "/disk0/b/file"),
        lambda: fs.lock("/disk0/lock"),
        lambda: fs.pwrite(fd, [b"x"], 0),
    )
    for call in calls:
        with pytest.raises(OSError, match="No space left") as failed:
            call()
        assert failed.value.errno == errno.ENOSPC
    assert len(refused) == len(calls)
    fs.set_xattr(fd, "user.one", b"1")  # as it was
    fs.rename("/disk0/a/file", "/disk0/a/other")  # in its own place
    fs.unfill("/disk0")
    fs.set_xattr(fd, "user.one", b"2")
