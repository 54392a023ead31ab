"""One extent node as a real process: what it acknowledged is there, however it ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from neve.proto import common_pb2, errors, methods
from neve.proto import diagnostics_pb2 as diagnostics
from neve.proto import extent_node_pb2 as pb
from neve.rpc.grpc.client import GrpcChannel
from tests.cluster.node import CLUSTER, Extent, NodeProcess, running_node, wire_channel
from tests.unit.rpc.test_front import http


async def check_content(extent: Extent) -> None:
    """The node proves the acknowledged length, and reads back exactly the acknowledged bytes."""
    answer = await extent.raise_token()
    assert answer.kind == pb.LengthAnswer.LENGTH
    assert answer.length >= extent.acknowledged
    await extent.tell_committed()
    assert await extent.read() == extent.content[: extent.acknowledged]


async def test_a_killed_node_has_everything_that_it_acknowledged(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, disks=2)
    try:
        await node.start()
        async with wire_channel(node.wire) as channel:
            extents = [Extent(channel, number) for number in range(1, 9)]
            for extent in extents:
                await extent.create()

            async def write(extent: Extent) -> None:
                for number in range(1000):
                    await extent.append(f"{extent.extent_id}-{number}".encode() * 50, no_sync=number % 7 == 3)

            writers = [asyncio.ensure_future(write(extent)) for extent in extents]
            while sum(extent.acknowledged for extent in extents) < 200_000:
                await asyncio.sleep(0.01)
            assert await node.send(signal.SIGKILL) == -signal.SIGKILL
            outcomes = await asyncio.gather(*writers, return_exceptions=True)
            assert all(isinstance(outcome, errors.TransportError) for outcome in outcomes)
        await node.start()
        async with wire_channel(node.wire) as channel:
            for extent in extents:
                extent.channel = channel
                await check_content(extent)
                result = await extent.append(b"after the crash")
                # What was sent and not acknowledged may be there; then the next append says so, and nothing is lost.
                assert not result.HasField("error") or result.length > extent.acknowledged
    finally:
        await node.close()


async def test_sigterm_ends_cleanly_under_load_and_nothing_is_doubted(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    try:
        await node.start()
        async with wire_channel(node.wire) as channel:
            extent = Extent(channel, 1)
            await extent.create()

            async def write() -> None:
                for number in range(100_000):
                    await extent.append(f"{number}".encode() * 20, no_sync=True)

            writer = asyncio.ensure_future(write())
            while extent.acknowledged < 20_000:
                await asyncio.sleep(0.01)
            assert await node.send(signal.SIGTERM) == 0
            (outcome,) = await asyncio.gather(writer, return_exceptions=True)
            assert isinstance(outcome, errors.TransportError)
        assert any("node_stopped" in line for line in node.log)
        await node.start()
        async with wire_channel(node.wire) as channel:
            extent.channel = channel
            await check_content(extent)
            sealed = await extent.seal(extent.acknowledged)
            assert sealed.confirmed
            assert await extent.read() == extent.content[: extent.acknowledged]
    finally:
        await node.close()


async def test_the_grpc_door_appends_and_reads_the_same_extents(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_channel(node.wire) as wire:
        grpc = GrpcChannel(node.grpc, cluster=CLUSTER)
        try:
            over_grpc = Extent(grpc, 3)
            await over_grpc.create()
            await over_grpc.append(b"from any language")
            await over_grpc.tell_committed()
            over_wire = Extent(wire, 3)
            assert await over_wire.read() == await over_grpc.read() == over_grpc.content
            with pytest.raises(errors.ReplicaMissing):
                await Extent(grpc, 4).read()
        finally:
            await grpc.close()


async def test_status_metrics_and_diagnostics(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_channel(node.wire) as channel:
        extent = Extent(channel, 1)
        await extent.create()
        await extent.append(b"x" * 1000)
        code, body = await http(node.status, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert code == 200
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        assert samples["neve_node_appends_total"] == 1
        assert samples["neve_node_appended_bytes_total"] == 1008
        assert samples["neve_node_append_seconds_count"] == 1
        assert samples["neve_disk_writable"] == 1
        code, body = await http(node.status, b"GET /ready HTTP/1.1\r\n\r\n")
        assert (code, json.loads(body)["node_id"]) == (200, 1)
        info = await channel.call(methods.DIAGNOSTICS_SERVER_INFO, diagnostics.ServerInfoRequest(), timeout_s=10)
        assert (info.message.kind, info.message.cluster) == ("extent_node", CLUSTER)
        about = await channel.call(methods.EXTENT_NODE_NODE_INFO, pb.NodeInfoRequest(), timeout_s=10)
        assert [disk.state for disk in about.message.disks] == [pb.DiskInfo.WRITABLE]
        listed = await channel.call(methods.EXTENT_NODE_LIST_REPLICAS, pb.ListReplicasRequest(), timeout_s=10)
        assert [replica.extent_id for replica in listed.message.replicas] == [1]


async def test_orders_of_a_deposed_manager_are_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_channel(node.wire) as channel:
        extent = Extent(channel, 1)
        await extent.create()

        def order(create_revision: int) -> pb.DeleteExtentRequest:
            leader = common_pb2.Leader(create_revision=create_revision, address=f"manager{create_revision}:1")
            return pb.DeleteExtentRequest(extent_id=1, eversion=9, leader=leader)

        fence = pb.FenceRequest(extent_id=1, eversion=1, leader=common_pb2.Leader(create_revision=20, address="new:1"))
        await channel.call(methods.EXTENT_NODE_FENCE, fence, timeout_s=10)
        with pytest.raises(errors.NotLeader, match="election 10 is over") as refused:
            await channel.call(methods.EXTENT_NODE_DELETE_EXTENT, order(10), timeout_s=10)
        assert refused.value.leader == "new:1"
        with pytest.raises(errors.InvalidArgument, match="elected manager"):
            await channel.call(methods.EXTENT_NODE_DELETE_EXTENT, order(0), timeout_s=10)
        reply = await channel.call(methods.EXTENT_NODE_DELETE_EXTENT, order(20), timeout_s=10)
        assert reply.message.deleted
        with pytest.raises(errors.ReplicaDeleted):
            await extent.create(fence.leader)


async def test_an_audit_by_order_reads_the_disk_and_not_what_is_open(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_channel(node.wire) as channel:
        extent = Extent(channel, 1)
        await extent.create()
        for _ in range(3):
            await extent.append(b"x" * 1000)
        await extent.seal(extent.acknowledged)
        assert await extent.read() == extent.content  # from here on the node has it open and mapped

        async def audit() -> pb.AuditReplicaReply:
            request = pb.AuditReplicaRequest(extent_id=1)
            return (await channel.call(methods.EXTENT_NODE_AUDIT_REPLICA, request, timeout_s=30)).message

        clean = await audit()
        assert (clean.bad, clean.bytes_read, clean.blocks) == (False, 3 * 1008, 3)
        path = tmp_path / "disk0" / "extents" / "01" / f"{1:016x}.ext"
        path.rename(path.with_suffix(".away"))
        found = await audit()
        assert (found.bad, found.reason) == (True, "its file is gone")
        again = await audit()
        assert (again.bad, bool(again.skipped), again.info.kind) == (False, True, pb.LengthAnswer.DAMAGED)


async def test_a_follower_gets_what_is_committed_later(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, wire_channel(node.wire) as channel:
        extent = Extent(channel, 1)
        await extent.create()
        request = pb.ReadBlockRequest(extent_id=1, max_bytes=1 << 20, follow=True, wait_ms=30_000)
        follower = asyncio.ensure_future(channel.call(methods.EXTENT_NODE_READ_BLOCK, request, timeout_s=60))
        await asyncio.sleep(0.1)
        assert not follower.done()
        await extent.append(b"news")
        await asyncio.sleep(0.1)
        assert not follower.done()  # written here, but not known to be on every replica
        await extent.tell_committed()
        reply = await follower
        assert bytes(reply.attachment) == extent.content


async def test_a_second_process_on_the_same_disk_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path):
        second = NodeProcess(tmp_path)
        with pytest.raises(RuntimeError, match=r"locked|another process"):
            await second.start()
        await second.close()


async def test_t32_a_node_lives_on_without_a_disk_that_is_known_by_its_uuid(tmp_path: Path) -> None:
    uuid = "6d0c3f0e-6f2b-4a57-9d0e-2f6d3f1f8a11"
    async with running_node(tmp_path):
        pass
    folder = tmp_path / "disk1"
    disks = f'disks=["{tmp_path / "disk0"}", {{folder="{folder}", uuid="{uuid}"}}]'
    async with running_node(tmp_path, [disks]) as node, wire_channel(node.wire) as channel:
        await Extent(channel, 1).create()
        about = await channel.call(methods.EXTENT_NODE_NODE_INFO, pb.NodeInfoRequest(), timeout_s=10)
        states = {disk.disk_uuid: (disk.state, disk.reason) for disk in about.message.disks}
        state, reason = states.pop(uuid)
        assert state == pb.DiskInfo.OFFLINE
        assert "not mounted, or it was wiped" in reason
        assert [state for state, _ in states.values()] == [pb.DiskInfo.WRITABLE]
    assert not folder.exists()


async def test_records_of_a_disk_that_is_away_are_kept_and_given_up_by_a_flag(tmp_path: Path) -> None:
    """Killed while the journal alone has a disk's last bytes: without the disk they stay, with it they are back."""
    node = NodeProcess(tmp_path, disks=2)
    try:
        await node.start(["store.journal_extents_min=1", "store.checkpoint_interval_s=3600.0"])
        async with wire_channel(node.wire) as channel:
            extents = [Extent(channel, extent_id) for extent_id in range(1, 5)]
            for extent in extents:
                await extent.create()
                await extent.append(b"x" * 1000)
        assert await node.send(signal.SIGKILL) != 0
        used, other = (tmp_path / name for name in ("disk0", "disk1"))
        if not any((used / "extents").rglob("*.ext")):
            used, other = other, used
        label = json.loads((used / "disk.json").read_text())
        used.rename(tmp_path / "away")
        settings = [f'disks=["{other}", {{folder="{used}", uuid="{label["uuid"]}"}}]']
        await node.start(settings)
        assert any("journal_records_kept" in line and label["uuid"][:18] in line for line in node.log)
        assert await node.send(signal.SIGTERM) == 0
        await node.start(settings, flags=["--give-up-disk", label["uuid"]])
        assert await node.send(signal.SIGTERM) == 0
        assert json.loads((tmp_path / "journal" / "journal.json").read_text())["kept"] == []
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("settings", "code", "complaint"),
    [
        (["cluster=main"], 2, "config key disks: is missing"),
        (["cluster=main", 'disks=["/nowhere/at/all"]', "journal=/nowhere/j", "node_id=1", "no_such=1"], 2, "no_such"),
        (["cluster=main", 'disks=["/proc/neve"]', "journal=/proc/neve-j", "node_id=1"], 1, "cannot run"),
        (["cluster=main", 'disks=["/tmp/no/neve"]', "journal=/tmp/no/neve-j", "node_id=1"], 1, "--format-disk"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_an_exit_code(settings: list[str], code: int, complaint: str) -> None:
    arguments = [word for setting in settings for word in ("--set", setting)]
    result = subprocess.run(
        [sys.executable, "-m", "neve.extent_node", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == code, result.stderr
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
