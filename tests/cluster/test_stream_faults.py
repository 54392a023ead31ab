"""Real processes die, hang and run out of room while a stream is written: nothing acknowledged is lost or doubled.

Goal:   after each fault every acknowledged record is there once and in order, the replicas of sealed extents are equal
        byte for byte, and the cluster has healed: no extent lacks a replica.
Method: a checking writer appends steadily while the fault happens; then everything is read back and compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neve.client.streams.client import Client
from neve.client.streams.types import Position, Stream
from neve.proto import extent_node_pb2 as pb
from tests.cluster.checking import CheckingWriter, Written, check_stream, writing
from tests.cluster.etcd import dying_with_parent
from tests.cluster.stream_cluster import ServerProcess, StreamCluster, small_disks_work

pytestmark = pytest.mark.slow

EXTENT_BYTES = 256 << 10  # small, so that extents are rolled and sealed while the faults happen


async def new_stream(client: Client) -> Stream:
    return await client.create_stream(replicas=3, extent_bytes_max=EXTENT_BYTES)


async def check_all(cluster: StreamCluster, client: Client, stream: Stream, *written: Written) -> None:
    await cluster.until_all_alive()
    await cluster.until_recovered()
    count = await check_stream(client, stream.id, *written)
    assert count >= sum(len(each.acknowledged) for each in written)
    await client.seal(stream.id)
    await cluster.until_recovered()
    extents = (await client.stream(stream.id)).extent_ids
    assert len(extents) > 1
    assert await cluster.check_sealed_replicas(client, stream.id) == len(extents)
    assert await check_stream(client, stream.id, *written) == count


async def kill_and_restart(cluster: StreamCluster, writer: CheckingWriter, server: ServerProcess) -> None:
    server.kill()
    await writer.until_acknowledged(100)  # it goes on without
    server.start()
    await cluster.until_all_alive()


async def test_every_kind_of_process_is_killed_one_after_another_and_the_leader_twice(tmp_path: Path) -> None:
    async with StreamCluster(tmp_path) as cluster, cluster.client() as client:
        stream = await new_stream(client)
        killed = Written("killed", killed=True)
        async with writer_child(cluster, stream, killed) as (child, reading):
            child.kill()
            await reading
            assert await child.wait() == -signal.SIGKILL
        async with writing(client, stream.id, "successor") as writer:  # waits for the lease to end
            await writer.until_acknowledged(100)
            for node in cluster.nodes[:2]:
                await kill_and_restart(cluster, writer, node)
            leader = await cluster.leader()
            await kill_and_restart(cluster, writer, next(each for each in cluster.managers if each is not leader))
            for _ in range(2):
                await kill_and_restart(cluster, writer, await cluster.leader())
            cluster.kill_etcd()
            cluster.restart_etcd()
            await cluster.leader()
            await writer.until_acknowledged(100)
        await check_all(cluster, client, stream, killed, writer.written)


async def test_a_node_that_hangs_is_gone_around_and_comes_back_without_harm(tmp_path: Path) -> None:
    async with StreamCluster(tmp_path) as cluster, cluster.client() as client:
        stream = await new_stream(client)
        async with writing(client, stream.id) as writer:
            await writer.until_acknowledged(100)
            tail = (await client.stream(stream.id)).extent_ids[-1]
            (info,) = await client.admin.describe_extents([tail])
            ids = {each.replica.node_id for each in info.replicas}
            node = next(server for server in cluster.nodes if cluster.node_id(server) in ids)  # one that is written to
            node.pause()
            await cluster.until_dead(node)
            await cluster.until(lambda: holds_nothing(cluster, client, stream, node), "its replicas are made elsewhere")
            await writer.until_acknowledged(100)  # while it hangs
            node.resume()
            await cluster.until_all_alive()
            await writer.until_acknowledged(100)
        await check_all(cluster, client, stream, writer.written)


async def test_a_writer_that_hangs_past_its_lease_acknowledges_nothing_behind_its_successor(tmp_path: Path) -> None:
    async with StreamCluster(tmp_path) as cluster, cluster.client() as client:
        stream = await new_stream(client)
        paused = Written("paused")
        async with writer_child(cluster, stream, paused) as (child, reading):
            child.send_signal(signal.SIGSTOP)
            async with writing(client, stream.id, "successor") as writer:  # waits for the lease to end
                await writer.until_acknowledged(100)
                child.send_signal(signal.SIGCONT)
                await reading  # it notices, and ends
                await writer.until_acknowledged(400)
            assert await child.wait() == 0
            assert writer.written.openings == 1  # nobody has put the successor out
        await check_all(cluster, client, stream, paused, writer.written)


@contextlib.asynccontextmanager
async def writer_child(
    cluster: StreamCluster, stream: Stream, written: Written
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Future[None]]]:
    """A writer that is a process of its own and has begun; the future is done when it has said its last word."""
    command = dying_with_parent(sys.executable, "-m", "tests.cluster.writer_child", written.name, str(stream.id))
    child = await asyncio.create_subprocess_exec(
        *command, *cluster.addresses, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    reading = asyncio.ensure_future(read_child(child, written))
    try:
        while len(written.acknowledged) < 100:
            assert not reading.done(), "the writer ended by itself"
            await asyncio.sleep(0.05)
        yield child, reading
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        await asyncio.gather(reading, return_exceptions=True)


async def read_child(child: asyncio.subprocess.Process, written: Written) -> None:
    """Until it says that it ends, or is cut short in the middle of a word."""
    assert child.stdout is not None
    while (line := (await child.stdout.readline()).decode()).endswith("\n"):
        word, _, rest = line.strip().partition(" ")
        if word == "end":
            return
        number, _, value = rest.partition(" ")
        if word == "ack":
            written.acknowledged[int(number)] = Position.parse(value)
        else:
            written.unknown[int(number)] = value
    assert written.killed, "the writer ended without a word"


async def test_a_full_disk_is_gone_around_and_used_again_when_it_has_room(tmp_path: Path) -> None:
    """A node on a small file system of its own, filled to the last byte under the writer (real ENOSPC)."""
    probe = tmp_path / "probe"
    probe.mkdir()
    if not small_disks_work(probe):
        pytest.skip("a small file system for one node needs user namespaces and a tmpfs with extended attributes")
    settings = ("store.usage_interval_s=5",)  # the writes find out first
    manager_settings = ("placing.free_bytes_min=1",)
    async with (
        StreamCluster(
            tmp_path / "c", node_settings=settings, manager_settings=manager_settings, small_disk="node2"
        ) as cluster,
        cluster.client() as client,
    ):
        full = cluster.servers["node2"]
        stream = await new_stream(client)
        async with writing(client, stream.id) as writer:
            while not await holds_tail(cluster, client, stream, full):
                await writer.until_acknowledged(20)
            filler = cluster.disk_folder(full) / "filler"
            fill(filler)
            await writer.until_acknowledged(400)  # some extents further
            await cluster.until(lambda: disk_is(cluster, full, pb.DiskInfo.READ_ONLY), "the node says that it is full")
            assert "No space left on device" in full.log()  # by the disk's word, not by a mark's
            assert not await holds_tail(cluster, client, stream, full)
            filler.unlink()
            await cluster.until(lambda: disk_is(cluster, full, pb.DiskInfo.WRITABLE), "the node says that it has room")
            await writer.until_acknowledged(100)
        await check_all(cluster, client, stream, writer.written)


def fill(path: Path) -> None:
    """To the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


async def holds_nothing(cluster: StreamCluster, client: Client, stream: Stream, server: ServerProcess) -> bool:
    infos = await client.admin.describe_extents((await client.stream(stream.id)).extent_ids)
    node_id = cluster.node_id(server)
    return all(each.replica.node_id != node_id for info in infos for each in info.replicas)


async def holds_tail(cluster: StreamCluster, client: Client, stream: Stream, server: ServerProcess) -> bool:
    tail = (await client.stream(stream.id)).extent_ids[-1]
    infos = await client.admin.describe_extents([tail])
    node_id = cluster.node_id(server)
    return any(each.replica.node_id == node_id for info in infos for each in info.replicas)


async def disk_is(cluster: StreamCluster, server: ServerProcess, state: pb.DiskInfo.State) -> bool:
    status = await cluster.ask_status()
    node_id = cluster.node_id(server)
    return status is not None and any(
        node.node_id == node_id and disk.state == state for node in status.nodes for disk in node.disks
    )


async def test_a_node_lost_for_ever_is_replaced_by_copies_elsewhere(tmp_path: Path) -> None:
    async with StreamCluster(tmp_path) as cluster, cluster.client() as client:
        stream = await new_stream(client)
        lost = cluster.nodes[0]
        lost_id = cluster.node_id(lost)
        async with writing(client, stream.id) as writer:
            await writer.until_acknowledged(1500)
            cluster.lose_for_ever(lost)
            await writer.until_acknowledged(200)
            await cluster.until_dead(lost)
            await writer.until_acknowledged(100)
        await check_all(cluster, client, stream, writer.written)
        extents = await client.admin.describe_extents((await client.stream(stream.id)).extent_ids)
        assert all(each.replica.node_id != lost_id for info in extents for each in info.replicas)
        assert all(len(info.replicas) == 3 for info in extents)
