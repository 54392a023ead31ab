"""What looks at stories is looked at: what readers saw and is not there, and errors that nobody has looked at."""

from __future__ import annotations

import asyncio
import gc

import pytest

from neve.client.streams.core.batch import Ticket
from neve.client.streams.types import Position
from neve.extent_node.disk import attributes
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.scrubber import Scrubber
from neve.proto import extent_node_pb2 as en
from neve.proto.errors import NotFound, SealUnavailable
from tests.sim import stories
from tests.sim.checks import checkers, wire_watch
from tests.sim.checks.coverage import Coverage
from tests.sim.cluster import SimCluster, simulated
from tests.sim.processes.client import OPTIONS
from tests.sim.troubles.swarm import Shape
from tests.sim.troubles.troubles import Kind

GONE_STREAM = 99  # that somebody has merged into the one that there is


@simulated(nodes=3)
async def test_a_record_is_in_the_extents_that_its_blocks_fill(cluster: SimCluster) -> None:
    cluster.etcd.seals.update({1: 4000, 2: 500, 3: 0})
    cluster.etcd.behind.update({1: 2, 2: 3, 3: 4})
    assert checkers.spanned(cluster, Position(1, 1000), 2500) == {1}
    assert checkers.spanned(cluster, Position(1, 4000 - 2500 - 3 * 8), 2500) == {1}
    assert checkers.spanned(cluster, Position(1, 4000 - 2500 - 3 * 8 + 1), 2500) == {1, 2}
    assert checkers.spanned(cluster, Position(1, 3900), 2500) == {1, 2, 3, 4}
    assert checkers.spanned(cluster, Position(4, 3900), 2500) == {4}  # it is open: nothing is behind it


@pytest.mark.parametrize(("order", "is_right"), [((0, 1, 3), True), ((0, 3, 1), False), ((0, 4), False)])
@simulated(nodes=3)
async def test_who_has_read_a_stream_that_was_merged_must_find_it_in_the_other_one(
    cluster: SimCluster, order: tuple[int, ...], is_right: bool
) -> None:
    stream = await cluster.create_stream(replicas=3)
    await (await (await cluster.client("writer")).writer(stream.id)).append_some(4, 300)
    await cluster.settle()
    ledger = cluster.ledger
    records = ledger.sightings[-1].records
    records_known = [*records, records[0]._replace(position=Position(77, 0))]
    ledger.merged[GONE_STREAM] = stream.id
    sighting = ledger.see(GONE_STREAM, "reader", from_start=True)
    sighting.records = [records_known[number] for number in order]
    if is_right:
        checkers.check_readers(cluster)
    else:
        with pytest.raises(AssertionError, match="which the merge has lost"):
            checkers.check_readers(cluster)
    del ledger.merged[GONE_STREAM]
    with pytest.raises(AssertionError, match="which is gone"):
        checkers.check_readers(cluster)
    ledger.deleted[GONE_STREAM] = None
    checkers.check_readers(cluster)


@pytest.mark.parametrize(("sizes", "removed", "is_right"), [((2500, 300), False, False), ((2500, 300), True, True)])
@simulated(nodes=3)
async def test_a_large_record_that_is_gone_is_explained_by_the_removal_of_its_own_extents_alone(
    cluster: SimCluster, sizes: tuple[int, ...], removed: bool, is_right: bool
) -> None:
    stream = await cluster.create_stream(replicas=3)
    writer = await (await cluster.client("writer")).writer(stream.id)
    for size_bytes in sizes:
        await writer.append(size_bytes)
    await cluster.settle()
    ledger = cluster.ledger
    judge = ledger.sightings[-1]
    assert len(judge.records[0].payload) > OPTIONS.block_payload_bytes_max
    sighting = ledger.see(stream.id, "reader", from_start=True)
    sighting.records = [*judge.records]
    extent_id = judge.records[0].position.extent_id
    ledger.removed[stream.id] = {extent_id if removed else extent_id + 1000}
    del judge.records[0]
    if is_right:
        checkers.check_readers(cluster)
    else:
        with pytest.raises(AssertionError, match="which is gone"):
            checkers.check_readers(cluster)


async def _fails() -> None:
    raise NotFound(kind="stream", name="7")


@pytest.mark.parametrize("killed", [False, True])
def test_an_error_that_nobody_looks_at_fails_a_story_unless_its_process_was_killed(killed: bool) -> None:
    @simulated(nodes=3)
    async def story(cluster: SimCluster) -> None:
        client = await cluster.client("careless")
        client.process.spawn(_fails())
        await asyncio.sleep(0)
        if killed:
            client.kill()
        await asyncio.sleep(0.1)
        gc.collect()

    if killed:
        story()
    else:
        with pytest.raises(AssertionError, match="never retrieved"):
            story()


@pytest.mark.parametrize("killed", [False, True])
def test_a_task_of_a_node_that_dies_fails_a_story_unless_the_node_is_killed_first(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(_: Scrubber) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("no more scrubbing")

    monkeypatch.setattr(Scrubber, "run", dies)

    @simulated(nodes=3, node_options={"scrub_interval_s": 60.0})
    async def story(cluster: SimCluster) -> None:
        if killed:
            for node in cluster.nodes.values():
                node.kill()
        await asyncio.sleep(2)

    if killed:
        story()
    else:
        with pytest.raises(AssertionError, match=r"scrubber has died: .*no more scrubbing"):
            story()


def test_a_record_that_is_acknowledged_with_its_first_block_fails_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticket, "note", lambda ticket, piece: not ticket.pieces and not ticket.pieces.append(piece))

    @simulated(nodes=3)
    async def story(cluster: SimCluster) -> None:
        stream = await cluster.create_stream(replicas=3)
        writer = await (await cluster.client("writer")).writer(stream.id)
        await writer.append(9500)

    with pytest.raises(AssertionError, match=r"are not on node . \(G1\)"):
        story()


@pytest.mark.parametrize(
    ("kinds", "needed"),
    [("LENGTH LENGTH DOUBTFUL", False), ("DOUBTFUL DOUBTFUL DOUBTFUL", False), ("LENGTH DOUBTFUL DAMAGED", True)],
)
@simulated(nodes=3)
async def test_an_operator_is_needed_only_where_rule_18_chooses_nothing(
    cluster: SimCluster, kinds: str, needed: bool
) -> None:
    stream = await cluster.create_stream(replicas=3)
    await (await cluster.client("writer")).writer(stream.id)
    extent = cluster.tail(stream.id)
    for node_id, kind in zip(extent.node_ids, kinds.split(), strict=True):
        told = en.LengthAnswer(kind=kind)
        cluster.wire.fences[f"node{node_id}", extent.extent_id] = told
    error = SealUnavailable(extent_id=extent.extent_id)
    if needed:
        checkers.check_unavailable(cluster, error)
    else:
        with pytest.raises(AssertionError, match="rule 18 chooses 0"):
            checkers.check_unavailable(cluster, error)


def test_calls_that_are_too_many_to_judge_their_answers_fail_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_watch, "CALLS_KEPT_MAX", 1)

    @simulated(nodes=3)
    async def story(cluster: SimCluster) -> None:
        stream = await cluster.create_stream(replicas=3)
        await (await (await cluster.client("writer")).writer(stream.id)).append()

    with pytest.raises(AssertionError, match="too many to judge"):
        story()


@pytest.mark.parametrize(
    ("durable", "excused", "is_right"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_a_seal_that_was_confirmed_and_is_gone_fails_a_story_unless_the_disks_were_lost(
    durable: bool, excused: bool, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_only(replica: Replica, seal: attributes.Seal) -> None:
        replica.fs.set_xattr(replica.fd, attributes.SEAL, attributes.encode_seal(seal))
        replica.fs.truncate(replica.fd, seal.length)

    if not durable:
        monkeypatch.setattr(Replica, "persist_seal", set_only)

    @simulated(nodes=3)
    async def story(cluster: SimCluster) -> None:
        cluster.expected_errors = ("bad_replica_found",)
        stream = await cluster.create_stream(replicas=3)
        await (await (await cluster.client("writer")).writer(stream.id)).append_some(8, 900)  # more than an extent
        await cluster.until(lambda: any(each.all_confirmed for each in cluster.state.extents.values()), "one is sealed")
        node = cluster.nodes[1]
        if excused:
            cluster.unreliable.add(1)
        node.power_cut()
        await node.start()
        await cluster.wait(3)  # it has told of its replicas
        assert bool(cluster.wire.seals_checked) != excused

    if is_right:
        story()
    else:
        with pytest.raises(AssertionError, match=r"node1 says of extent .*, and had confirmed its seal at .* \(20\)"):
            story()


@simulated()
async def test_a_trouble_that_came_to_nothing_explains_nothing(cluster: SimCluster) -> None:
    story = stories.Story(cluster, 1, Shape.of(1), lambda _: None, Coverage(), events_max=0)
    explained: list[bool] = []

    def fail() -> bool:
        explained.append(story._explains("disk_offline", cluster.nodes[story.victim].host))
        return False

    kind = Kind("disk errors", fail)
    story._cause_some([kind], {kind.name: 1.0})
    assert all(explained)  # while it is being caused
    assert not story._explains("disk_offline", cluster.nodes[story.victim].host)
    happens = Kind("disk errors", lambda: True)
    story._cause_some([happens], {happens.name: 1.0})
    story._cause_some([kind], {kind.name: 1.0})
    assert story._explains("disk_offline", cluster.nodes[story.victim].host)
