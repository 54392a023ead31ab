"""Who a node is, whether it lives, and what is placed on it."""

from __future__ import annotations

from typing import Any

import pytest

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AlreadyExists, InvalidArgument, NotEnoughNodes, NotFound, WrongCluster
from neve.rpc.service import Call
from neve.stream_manager.metadata import describe
from neve.stream_manager.metadata.records import Extent, Replay
from neve.stream_manager.streams import reads
from neve.stream_manager.term.context import PlacementRequest
from tests.unit.stream_manager.nodes_rig import Rig, error_of, mutation, simulated

CALL = Call(None, deadline_s=0.0, principal="", peer="")  # type: ignore[arg-type]
GIB = 1 << 30


def disk(uuid: str, *, free: int = 100 * GIB, state: en.DiskInfo.State = en.DiskInfo.WRITABLE) -> en.DiskInfo:
    return en.DiskInfo(disk_uuid=uuid, state=state, capacity_bytes=200 * GIB, free_bytes=free, reason="as told")


def registration(node_id: int, *, process_id: int = 0, port: int = 3501, **fields: Any) -> sm.RegisterNodeRequest:
    return sm.RegisterNodeRequest(
        **{
            "cluster": "test",
            "node_id": node_id,
            "wire_address": f"host{node_id}:{port}",
            "process_id": process_id or 1000 + node_id,
            "disks": [disk(f"disk-{node_id}")],
            **fields,
        }
    )


def beat(node_id: int, *, process_id: int = 0, **fields: Any) -> sm.HeartbeatRequest:
    made = {"node_id": node_id, "process_id": process_id or 1000 + node_id, "disks": [disk(f"disk-{node_id}")]}
    return sm.HeartbeatRequest(**{**made, **fields})


async def register(rig: Rig, node_id: int, **fields: Any) -> sm.RegisterNodeReply:
    return await rig.part.registry.register(registration(node_id, **fields), mutation())


async def heartbeat(rig: Rig, node_id: int, **fields: Any) -> sm.HeartbeatReply:
    return rig.part.registry.heartbeat(beat(node_id, **fields))


async def keep_alive(rig: Rig, seconds: float, *node_ids: int) -> None:
    for _ in range(int(seconds)):
        for node_id in node_ids:
            await heartbeat(rig, node_id)
        await rig.part.registry.run_once(rig.ctx.clock())
        await rig.wait(1.0)


def chosen(rig: Rig, replicas: int = 3, **fields: Any) -> list[int]:
    request = PlacementRequest(replicas=replicas, extent_bytes_max=GIB, **fields)
    return [choice.node_id for choice in rig.part.registry.choose(request)]


async def set_mode(rig: Rig, node_id: int, mode: sm.NodeMode, maintenance_s: int = 0) -> sm.NodeRecord:
    request = sm.SetNodeModeRequest(node_id=node_id, mode=mode, maintenance_s=maintenance_s)
    return (await rig.part.set_node_mode(request, mutation())).node


# --- identity -------------------------------------------------------------------------------------------------


@simulated
async def test_a_node_registers_and_is_in_etcd() -> None:
    async with Rig(manual=True) as rig:
        place = sm.NodeLocation(region="eu", rack="r1", labels={"b": "2", "a": "1"})
        reply = await register(rig, 1, location=place)
        assert (reply.node_id, reply.cluster, reply.heartbeat_ms) == (1, "test", 1000)
        await rig.depose()
        await rig.lead()
        node = rig.ctx.state.nodes[1]
        assert (node.wire_address, node.region, node.rack) == ("host1:3501", "eu", "r1")
        assert node.labels == (("a", "1"), ("b", "2"))
        assert [disk.disk_uuid for disk in node.disks] == ["disk-1"]


@simulated
async def test_a_node_of_another_cluster_is_refused() -> None:
    async with Rig(manual=True) as rig:
        text = await error_of(register(rig, 1, cluster="other"), WrongCluster)
        assert "this is cluster 'test', the request is for cluster 'other'" in text
        assert rig.ctx.state.nodes == {}


@simulated
async def test_a_node_without_an_id_gets_one_and_the_same_when_it_asks_again() -> None:
    async with Rig(manual=True) as rig:
        first = (await register(rig, 0, process_id=77)).node_id
        assert first > 0
        assert (await register(rig, 0, process_id=77)).node_id == first
        assert (await register(rig, 0, process_id=78)).node_id != first
        assert rig.ctx.state.nodes == {}  # it registers when it has formatted its disks


@simulated
async def test_an_id_that_an_operator_named_is_not_given_to_another_node() -> None:
    async with Rig(manual=True) as rig:
        next_id = (await register(rig, 0, process_id=1)).node_id + 1
        await register(rig, next_id)
        assert (await register(rig, 0, process_id=2)).node_id != next_id


@simulated
async def test_a_second_live_process_with_the_same_id_is_refused_and_a_restarted_one_is_not() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1, process_id=5)
        await heartbeat(rig, 1, process_id=5)
        text = await error_of(register(rig, 1, process_id=6, port=9999), AlreadyExists)
        assert "node 1 exists already" in text
        assert "process 0000000000000005 at host1:3501 was alive 0.0 s ago" in text
        await register(rig, 1, process_id=6)  # the port is taken over: the old one cannot be there any more
        assert (await heartbeat(rig, 1, process_id=5)).register_again
        assert not (await heartbeat(rig, 1, process_id=6)).register_again
        await rig.wait(5.0)  # silent for long enough to be suspect
        await register(rig, 1, process_id=7, port=9999)
        assert rig.ctx.state.nodes[1].wire_address == "host1:9999"


@simulated
async def test_a_new_leader_does_not_take_a_second_process_for_the_node_before_the_first_was_heard() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1, process_id=5)
        await rig.depose()
        await rig.lead()
        await error_of(register(rig, 1, process_id=6, port=9999), AlreadyExists)
        await register(rig, 1, process_id=7)  # at the same address it is a restart


@simulated
async def test_a_disk_belongs_to_one_node() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1, disks=[disk("a"), disk("b")])
        text = await error_of(register(rig, 2, disks=[disk("c"), disk("b")]), InvalidArgument)
        assert "disk b belongs to node 1" in text
        assert 2 not in rig.ctx.state.nodes


@simulated
async def test_a_disk_that_is_not_told_of_any_more_is_kept_while_replicas_are_on_it() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1)
        extent = await rig.sealed_stream(replicas=1)
        used = extent.replicas[0].disk_uuid
        process_id = rig.ctx.state.nodes[1].process_id
        where = {"process_id": process_id, "wire_address": rig.nodes[1].address}
        await register(rig, 1, disks=[disk("new"), disk("other")], **where)
        assert {d.disk_uuid: d.state for d in rig.ctx.state.nodes[1].disks} == {
            used: en.DiskInfo.OFFLINE,
            "new": en.DiskInfo.WRITABLE,
            "other": en.DiskInfo.WRITABLE,
        }
        await register(rig, 1, disks=[disk("new")], **where)
        assert [d.disk_uuid for d in rig.ctx.state.nodes[1].disks] == [used, "new"]


PLACES: dict[str, str] = {}


def locate(address: str) -> str | None:
    return PLACES.get(address)


@simulated
async def test_nodes_move_when_the_resolver_says_so() -> None:
    PLACES["host1:3501"] = "/eu/r1"
    async with Rig(manual=True, topology=f"python:{__name__}:locate") as rig:
        await register(rig, 1, location=sm.NodeLocation(region="own", rack="word"))
        await register(rig, 2, location=sm.NodeLocation(region="own", rack="word"))
        where = {n.node_id: (n.region, n.rack) for n in rig.ctx.state.nodes.values()}
        assert where == {1: ("eu", "r1"), 2: ("own", "word")}
        PLACES["host1:3501"] = "/eu/r2"
        await keep_alive(rig, 70, 1, 2)
        await rig.part.relocation.run_once(rig.ctx.clock())
        assert rig.ctx.state.nodes[1].rack == "r1"  # answers are remembered
        rig.part.relocation.reload()
        await rig.part.relocation.run_once(rig.ctx.clock())
        assert rig.ctx.state.nodes[1].rack == "r2"


@simulated
async def test_what_cannot_be_a_registration_is_refused() -> None:
    async with Rig(manual=True) as rig:
        await error_of(register(rig, 1, wire_address="nowhere"), InvalidArgument)
        await error_of(register(rig, 1, disks=[disk("a"), disk("a")]), InvalidArgument)
        await error_of(register(rig, 1, disks=[disk("")]), InvalidArgument)


@simulated
async def test_a_repeated_registration_is_answered_and_changes_nothing() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        revision = rig.ctx.state.nodes[1].mod_revision
        await register(rig, 1)
        replayed = mutation(call_id=9, replayed=Replay(0, 0, 0, node_id=1))
        assert (await rig.part.registry.register(registration(1, port=4444), replayed)).node_id == 1
        assert rig.ctx.state.nodes[1].mod_revision == revision


@simulated
async def test_heartbeats_change_memory_only() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        revision = await rig.manager.store.revision()
        for _ in range(20):
            await heartbeat(rig, 1, load=sm.NodeLoad(append_bytes_per_s=5.0), disks=[disk("disk-1", free=7)])
        assert await rig.manager.store.revision() == revision
        record = rig.part.node_record(rig.ctx.state.nodes[1])
        assert record.load.append_bytes_per_s == 5.0
        assert record.disks[0].free_bytes == 7
        assert record.health == sm.NODE_HEALTH_ALIVE


@simulated
async def test_a_node_that_the_manager_does_not_know_is_told_to_register() -> None:
    async with Rig(manual=True) as rig:
        assert (await heartbeat(rig, 1)).register_again
        await register(rig, 1)
        reply = await heartbeat(rig, 1)
        assert not reply.register_again
        assert reply.leader.create_revision == rig.ctx.leader.create_revision
        assert reply.report_replicas  # of a new term: once
        assert not (await heartbeat(rig, 1)).report_replicas


@simulated
async def test_a_new_leader_asks_every_node_what_it_holds() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        await heartbeat(rig, 1)
        await rig.depose()
        await rig.lead()
        assert (await heartbeat(rig, 1)).report_replicas


# --- health ---------------------------------------------------------------------------------------------------


@simulated
async def test_a_silent_node_is_declared_dead_in_etcd_and_alive_when_it_is_steady_again() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        await register(rig, 2)
        await keep_alive(rig, 8, 1, 2)
        await keep_alive(rig, 10, 1)
        assert rig.ctx.state.dead_nodes() == {2}
        assert rig.part.registry.seems_down(2)
        assert not rig.part.registry.seems_down(1)
        await keep_alive(rig, 2, 1, 2)
        assert rig.ctx.state.dead_nodes() == {2}  # not steady yet
        await keep_alive(rig, 4, 1, 2)
        assert rig.ctx.state.dead_nodes() == set()
        assert not rig.part.registry.seems_down(2)


@simulated
async def test_nobody_is_dead_because_the_manager_is_new_but_the_dead_stay_dead() -> None:
    async with Rig(manual=True) as rig:
        for node_id in (1, 2):
            await register(rig, node_id)
        await keep_alive(rig, 8, 1, 2)
        await keep_alive(rig, 12, 1)
        await rig.depose()
        await rig.wait(60)
        await rig.lead()
        await rig.part.registry.run_once(rig.ctx.clock())
        assert rig.ctx.state.dead_nodes() == {2}
        await keep_alive(rig, 11)
        assert rig.ctx.state.dead_nodes() == {2}
        await keep_alive(rig, 3)  # grace and dead_after_s are over
        assert rig.ctx.state.dead_nodes() == {1, 2}


@simulated
async def test_a_node_in_maintenance_is_not_dead_until_its_time_is_over() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        await keep_alive(rig, 5, 1)
        await set_mode(rig, 1, sm.NODE_MODE_MAINTENANCE, maintenance_s=60)
        await keep_alive(rig, 50)
        assert rig.ctx.state.dead_nodes() == set()
        await keep_alive(rig, 12)
        assert rig.ctx.state.dead_nodes() == {1}
        assert rig.ctx.state.nodes[1].mode == sm.NODE_MODE_NORMAL


# --- placement ------------------------------------------------------------------------------------------------


@simulated
async def test_t44_placement_uses_the_free_space_that_nodes_report() -> None:
    async with Rig(manual=True) as rig:
        for node_id in (1, 2, 3, 4):
            await register(rig, node_id)
        await heartbeat(rig, 4, disks=[disk("disk-4", free=0)])
        for _ in range(20):
            assert set(chosen(rig)) == {1, 2, 3}
        await heartbeat(rig, 3, disks=[disk("disk-3", state=en.DiskInfo.READ_ONLY)])
        text = ""
        with pytest.raises(NotEnoughNodes) as caught:
            chosen(rig)
        text = str(caught.value)
        assert "3 nodes are needed, 2 can take an extent" in text
        assert "node 3: no writable disk (disk disk-3: as told)" in text
        assert "node 4: no writable disk has 1 bytes free" in text
        await heartbeat(rig, 4, disks=[disk("disk-4", free=5 * GIB)])  # there is room again
        assert set(chosen(rig)) == {1, 2, 4}


@simulated
async def test_nodes_that_must_not_take_an_extent_do_not() -> None:
    async with Rig(manual=True) as rig:
        for node_id in (1, 2, 3, 4, 5):
            await register(rig, node_id)
        await set_mode(rig, 2, sm.NODE_MODE_READ_ONLY)
        await set_mode(rig, 3, sm.NODE_MODE_DRAINING)
        await set_mode(rig, 4, sm.NODE_MODE_MAINTENANCE, maintenance_s=60)
        await set_mode(rig, 5, sm.NODE_MODE_DECOMMISSIONED)
        assert chosen(rig, 1) == [1]
        with pytest.raises(NotEnoughNodes) as caught:
            chosen(rig, 2)
        for told in ("2: read-only by order", "3: draining", "4: in maintenance", "5: decommissioned"):
            assert f"node {told}" in str(caught.value)
        await set_mode(rig, 2, sm.NODE_MODE_NORMAL)
        assert set(chosen(rig, 2)) == {1, 2}


@simulated
async def test_a_region_that_is_stopped_gets_nothing_until_it_goes_on() -> None:
    async with Rig(manual=True) as rig:
        for node_id, region in ((1, "eu"), (2, "us"), (3, "eu")):
            await register(rig, node_id, location=sm.NodeLocation(region=region))
        stop = sm.SetPlacementRequest(region="us", stopped=True)
        await rig.part.set_placement(stop, mutation())
        await rig.depose()
        await rig.lead()  # it is remembered
        with pytest.raises(NotEnoughNodes, match="node 2: region 'us' is stopped"):
            chosen(rig, 3)
        assert set(chosen(rig, 2)) == {1, 3}
        await rig.part.set_placement(sm.SetPlacementRequest(region="us"), mutation())
        assert set(chosen(rig, 3)) == {1, 2, 3}
        await error_of(rig.part.set_placement(sm.SetPlacementRequest(), mutation()), InvalidArgument)


@simulated
async def test_a_new_leader_can_place_before_the_first_heartbeat() -> None:
    async with Rig(manual=True) as rig:
        for node_id in (1, 2, 3):
            await register(rig, node_id)
        await rig.depose()
        await rig.lead()
        assert set(chosen(rig)) == {1, 2, 3}
        assert not rig.part.registry.seems_down(1)


@simulated
async def test_an_unknown_policy_is_refused_and_the_default_is_known() -> None:
    async with Rig(manual=True) as rig:
        rig.part.registry.check_policy("")
        rig.part.registry.check_policy("weighted")
        with pytest.raises(InvalidArgument, match="nearest"):
            rig.part.registry.check_policy("nearest")


@simulated
async def test_described_replicas_are_in_order_those_that_failed_last_and_unconfirmed_ones_behind() -> None:
    async with Rig(manual=True) as rig:
        for node_id in (1, 2, 3):
            await rig.start_node_at(node_id, "eu", f"r{node_id}")
        extent = await rig.sealed_stream()

        def order(of: Extent) -> list[int]:
            info = describe.extent_info(rig.ctx.state, of)
            reads.in_read_order([info], rig.part.failures)
            return [one.replica.node_id for one in info.replicas]

        before = order(extent)
        assert sorted(before) == [1, 2, 3]
        rig.part.bad.suspect(extent.extent_id, 2, "a reader met a wrong CRC")
        assert order(extent) == [*(node_id for node_id in before if node_id != 2), 2]
        assert order(extent._replace(confirmed=(2,)))[0] == 2


# --- modes ----------------------------------------------------------------------------------------------------


@simulated
async def test_orders_that_make_no_sense_are_refused() -> None:
    async with Rig(manual=True) as rig:
        await error_of(set_mode(rig, 9, sm.NODE_MODE_DRAINING), NotFound)
        await register(rig, 1)
        await error_of(set_mode(rig, 1, sm.NODE_MODE_UNSPECIFIED), InvalidArgument)
        await error_of(set_mode(rig, 1, sm.NODE_MODE_MAINTENANCE), InvalidArgument)
        await error_of(set_mode(rig, 1, sm.NODE_MODE_NORMAL, maintenance_s=5), InvalidArgument)


@simulated
async def test_an_empty_node_is_decommissioned_at_once_and_for_ever() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        assert (await set_mode(rig, 1, sm.NODE_MODE_DECOMMISSIONED)).mode == sm.NODE_MODE_DECOMMISSIONED
        await error_of(set_mode(rig, 1, sm.NODE_MODE_NORMAL), InvalidArgument)
        assert "was decommissioned" in await error_of(register(rig, 1), InvalidArgument)


@simulated
async def test_a_repeated_order_is_answered_and_not_executed_again() -> None:
    async with Rig(manual=True) as rig:
        await register(rig, 1)
        await set_mode(rig, 1, sm.NODE_MODE_READ_ONLY)
        request = sm.SetNodeModeRequest(node_id=1, mode=sm.NODE_MODE_NORMAL)
        reply = await rig.part.set_node_mode(request, mutation(call_id=3, replayed=Replay(0, 0, 0, node_id=1)))
        assert reply.node.mode == sm.NODE_MODE_READ_ONLY
