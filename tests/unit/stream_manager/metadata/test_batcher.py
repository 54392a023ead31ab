"""Joining changes into transactions: guarded, exactly once, whatever the store answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.meta.election import Election, Leadership
from neve.meta.memory.client import MemoryClient, MemoryStore
from neve.meta.memory.link import Fault
from neve.meta.txn import KeyRange, Put
from neve.proto.errors import (
    InvalidArgument,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    NotLeader,
    NotOwner,
    PermissionDenied,
    TooLarge,
    VersionConflict,
)
from neve.stream_manager.metadata.batcher import ITEMS_MAX, Batcher
from neve.stream_manager.metadata.changes import Changes
from neve.stream_manager.metadata.record_kinds import NAME, NODE, Name
from neve.stream_manager.metadata.records import NodeEntry
from neve.stream_manager.metadata.state import State
from tests.sim import loop as sim_loop

ROOT = b"/test/"
LEASE_TTL_S = 36_000  # virtual: faults must not end the term


class Rig:
    """A leader's batcher, and what memory holds by it."""

    def __init__(self, etcd: MemoryStore, store: MemoryClient, leadership: Leadership, lanes: int) -> None:
        self.etcd = etcd
        self.store = store
        self.leadership = leadership
        self.state = State(ROOT)
        self.deposed: list[str] = []
        self.applied: list[tuple[Changes, int]] = []
        self.batcher = Batcher(
            store,
            leadership,
            root=ROOT,
            lane_revisions=[0] * lanes,
            apply=self._apply,
            on_deposed=self.deposed.append,
        )

    @classmethod
    async def make(cls, *, lanes: int = 2) -> Rig:
        etcd = MemoryStore()
        store = etcd.client(call_timeout_s=1.0)
        lease = await store.grant_lease(LEASE_TTL_S)
        leadership = await Election(store, ROOT + b"leader").campaign(b"me", lease)
        return cls(etcd, store, leadership, lanes)

    def _apply(self, changes: Changes, revision: int) -> None:
        assert isinstance(changes, Changes)
        self.applied.append((changes, revision))
        self.state.apply(changes, revision)

    async def commit(self, changes: Changes) -> int:
        return await self.batcher.commit(changes)

    def node(self, node_id: int, rack: str = "") -> Changes:
        """Put a node as a successor of what memory has."""
        changes = Changes(ROOT)
        changes.put(NODE, self.state.nodes.get(node_id), NodeEntry(node_id, f"node{node_id}:1", rack=rack))
        return changes

    def stored(self) -> dict[int, NodeEntry]:
        kvs = self.etcd.key_space.read(KeyRange.prefix(ROOT + b"nodes/")).kvs
        nodes = [NODE.decode(b"", kv.value, kv.mod_revision) for kv in kvs]
        return {node.node_id: node for node in nodes}

    def puts_of(self, node_id: int) -> int:
        """How often etcd took a put of this node."""
        kvs = self.etcd.key_space.read(KeyRange(ROOT + b"nodes/%016x" % node_id)).kvs
        return kvs[0].version if kvs else 0


class Sendings:
    """Holds every transaction back until the test lets it be answered."""

    def __init__(self, rig: Rig) -> None:
        self.sizes: list[int] = []  # how many nodes each puts
        self._gates: list[asyncio.Event] = []
        self._txn = rig.store.txn
        rig.store.txn = self._held  # type: ignore[method-assign]

    async def _held(self, compares: Any, success: Any, failure: Any = ()) -> Any:
        self.sizes.append(sum(isinstance(op, Put) and op.key.startswith(ROOT + b"nodes/") for op in success))
        gate = asyncio.Event()
        self._gates.append(gate)
        await gate.wait()
        return await self._txn(compares, success, failure)

    def answer(self, index: int) -> None:
        self._gates[index].set()


async def outcome(work: Awaitable[int]) -> int | NeveError:
    try:
        return await work
    except NeveError as error:
        return error


@pytest.mark.sim(seed=1)
async def test_changes_that_come_together_share_one_transaction() -> None:
    rig = await Rig.make()
    before = rig.etcd.key_space.revision
    revisions = await asyncio.gather(*(rig.commit(rig.node(number)) for number in range(1, 31)))
    assert rig.etcd.key_space.revision == before + 1
    assert set(revisions) == {before + 1}
    assert rig.state.nodes == rig.stored()


@pytest.mark.sim(seed=1)
async def test_a_batch_never_has_more_operations_than_etcd_takes() -> None:
    rig = await Rig.make(lanes=1)
    count = 3 * ITEMS_MAX + 5
    await asyncio.gather(*(rig.commit(rig.node(number)) for number in range(1, count + 1)))
    assert len(rig.stored()) == count
    assert rig.batcher.counters.batches == 4


@pytest.mark.sim(seed=1)
async def test_what_comes_while_batches_are_in_flight_gathers_until_all_are_answered_or_a_batch_is_full() -> None:
    rig = await Rig.make(lanes=3)
    sendings = Sendings(rig)
    first = asyncio.ensure_future(rig.commit(rig.node(1)))
    await asyncio.sleep(0.001)
    full = [asyncio.ensure_future(rig.commit(rig.node(2 + number))) for number in range(ITEMS_MAX)]
    late = [asyncio.ensure_future(rig.commit(rig.node(900)))]
    await asyncio.sleep(0.1)
    assert sendings.sizes == [1, ITEMS_MAX]
    sendings.answer(0)
    await first
    late.append(asyncio.ensure_future(rig.commit(rig.node(901))))
    await asyncio.sleep(0.1)
    assert sendings.sizes == [1, ITEMS_MAX]
    sendings.answer(1)
    await asyncio.gather(*full)
    await asyncio.sleep(0.1)
    assert sendings.sizes == [1, ITEMS_MAX, 2]
    sendings.answer(2)
    await asyncio.gather(*late)
    assert rig.state.nodes == rig.stored()


@pytest.mark.sim(seed=1)
async def test_nobody_waits_for_a_transaction_whose_outcome_is_in_doubt() -> None:
    rig = await Rig.make(lanes=2)
    original = rig.store.txn
    in_doubt = True

    async def txn(compares: Any, success: Any, failure: Any = ()) -> Any:
        if in_doubt and any(isinstance(op, Put) and op.key == ROOT + b"nodes/%016x" % 1 for op in success):
            raise MaybeApplied(detail="nobody knows")
        return await original(compares, success, failure)

    rig.store.txn = txn  # type: ignore[method-assign]
    first = asyncio.ensure_future(rig.commit(rig.node(1)))
    await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        for number in range(2, 6):
            await rig.commit(rig.node(number))
    assert not first.done()
    in_doubt = False
    await first
    assert rig.state.nodes == rig.stored()
    before = rig.batcher.counters.batches
    await asyncio.gather(*(rig.commit(rig.node(number, rack="r")) for number in range(1, 6)))
    assert rig.batcher.counters.batches == before + 1  # and all is counted as before


@pytest.mark.sim(seed=1)
async def test_a_change_that_no_transaction_can_take_is_refused() -> None:
    rig = await Rig.make()
    changes = Changes(ROOT)
    for number in range(1, ITEMS_MAX + 2):
        changes.put(NODE, None, NodeEntry(number, "node:1"))
    with pytest.raises(TooLarge):
        await rig.commit(changes)
    changes = Changes(ROOT)
    changes.put(NODE, None, NodeEntry(1, "x" * 2_000_000))
    with pytest.raises(TooLarge):
        await rig.commit(changes)
    assert rig.stored() == {}


@pytest.mark.sim(seed=1)
async def test_one_stale_change_does_not_sink_the_others() -> None:
    rig = await Rig.make()
    await rig.commit(rig.node(1))
    stale = Changes(ROOT)
    stale.put(NODE, replace(rig.state.nodes[1], mod_revision=1), NodeEntry(1, "stale:1"))
    results = await asyncio.gather(
        outcome(rig.commit(rig.node(2))),
        outcome(rig.commit(stale)),
        outcome(rig.commit(rig.node(3))),
    )
    assert isinstance(results[0], int)
    assert isinstance(results[1], VersionConflict)
    assert results[1].version_now == rig.state.nodes[1].mod_revision
    assert isinstance(results[2], int)
    assert rig.stored() == rig.state.nodes
    assert rig.state.nodes[1].wire_address == "node1:1"


@pytest.mark.sim(seed=1)
async def test_an_owner_who_lost_the_lock_changes_nothing() -> None:
    rig = await Rig.make()
    token = await rig.store.put(ROOT + b"locks/a", b"first")
    held = rig.node(1)
    held.require_owner("a", token)
    await rig.commit(held)
    await rig.store.put(ROOT + b"locks/a", b"second")
    late = rig.node(2)
    late.require_owner("a", token)
    with pytest.raises(NotOwner):
        await rig.commit(late)
    assert 2 not in rig.stored()


@pytest.mark.sim(seed=1)
async def test_a_deposed_manager_changes_nothing_and_is_told() -> None:
    """T14: the transaction compares the leader's key, whatever the manager believes."""
    rig = await Rig.make()
    await asyncio.sleep(0.1)
    rig.store.interrupt_watches(3600.0)  # it does not hear of its end: only etcd can tell
    await rig.etcd.client().delete(rig.leadership.key)
    await asyncio.sleep(0.1)
    rig.leadership.ensure()
    result = await outcome(rig.commit(rig.node(1)))
    assert isinstance(result, NotLeader)
    assert rig.deposed
    assert rig.stored() == {}
    assert isinstance(await outcome(rig.commit(rig.node(2))), NotLeader)


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOST_AFTER_APPLY],
        [Fault.LOST_BEFORE_APPLY],
        [Fault.LOST_BEFORE_APPLY, Fault.LOST_AFTER_APPLY, Fault.LOST_AFTER_APPLY],
        [Fault.UNAVAILABLE, Fault.LOST_AFTER_APPLY, Fault.UNAVAILABLE],
    ],
)
async def test_t16_an_unknown_outcome_is_settled_and_applied_once(faults: list[Fault]) -> None:
    rig = await Rig.make(lanes=1)
    await rig.commit(rig.node(1))
    rig.store.plan.scripted.extend(faults)
    revision = await rig.commit(rig.node(1, rack="r1"))
    assert rig.puts_of(1) == 2
    assert rig.state.nodes == rig.stored()
    assert rig.state.nodes[1].mod_revision == revision
    await rig.commit(rig.node(1, rack="r2"))  # the lane goes on
    assert rig.state.nodes == rig.stored()


@pytest.mark.sim(seed=1)
async def test_a_transaction_that_arrives_after_it_was_given_up_does_nothing() -> None:
    """Sent, delayed, sent again and refused: then the reason for the refusal goes away, and the first one arrives."""
    rig = await Rig.make(lanes=1)
    await rig.store.put(ROOT + b"names/x", b"taken")
    original = rig.store.txn
    delayed: list[tuple[Any, Any, Any]] = []

    async def txn(compares: Any, success: Any, failure: Any = ()) -> Any:
        if not delayed and any(isinstance(op, Put) and op.key.startswith(ROOT + b"names/") for op in success):
            delayed.append((compares, success, failure))
            raise MaybeApplied(detail="on its way")
        return await original(compares, success, failure)

    rig.store.txn = txn  # type: ignore[method-assign]
    changes = Changes(ROOT)
    changes.put(NAME, None, Name("x", 1))
    assert isinstance(await outcome(rig.commit(changes)), VersionConflict)
    await rig.store.delete(ROOT + b"names/x")
    assert delayed
    late = await original(*delayed[0])
    assert not late.succeeded
    assert await rig.store.get(ROOT + b"names/x") is None


@pytest.mark.sim(seed=1)
async def test_a_transaction_in_doubt_that_cannot_be_ruled_out_ends_the_term() -> None:
    """Sent with an unknown outcome, sent again and refused by a compare; then what would rule it out is forbidden."""
    rig = await Rig.make(lanes=1)
    await rig.store.put(ROOT + b"names/x", b"taken")
    original = rig.store.txn
    sent = 0

    async def txn(compares: Any, success: Any, failure: Any = ()) -> Any:
        nonlocal sent
        sent += 1
        if sent == 1:
            raise MaybeApplied(detail="on its way")
        if sent == 3:
            raise PermissionDenied(detail="the role was taken away")
        return await original(compares, success, failure)

    rig.store.txn = txn  # type: ignore[method-assign]
    changes = Changes(ROOT)
    changes.put(NAME, None, Name("x", 1))
    assert isinstance(await outcome(rig.commit(changes)), NotLeader)
    assert sent == 3
    assert len(rig.deposed) == 1
    assert "the role was taken away" in rig.deposed[0]


@pytest.mark.sim(seed=1)
async def test_a_store_that_refuses_everything_is_an_error_and_not_a_hang() -> None:
    rig = await Rig.make()
    rig.store.plan.unavailable_share = 1.0
    assert isinstance(await outcome(rig.commit(rig.node(1))), MetaUnavailable)
    rig.store.plan.unavailable_share = 0.0
    await rig.commit(rig.node(1))
    assert rig.state.nodes == rig.stored()


@pytest.mark.sim(seed=1)
async def test_the_end_of_the_term_ends_all_that_waits() -> None:
    rig = await Rig.make(lanes=1)
    rig.store.stall()
    works = [asyncio.ensure_future(outcome(rig.commit(rig.node(number)))) for number in (1, 2)]
    await asyncio.sleep(0.1)
    works.append(asyncio.ensure_future(outcome(rig.commit(rig.node(3)))))
    await asyncio.sleep(0.1)
    rig.batcher.end("the lease is lost")
    results = await asyncio.gather(*works)
    assert all(isinstance(result, NotLeader) for result in results), results
    assert rig.applied == []


async def _random_run(seed: int, lanes: int, faults: float) -> None:
    """Every mutation is applied exactly once or fails, and memory has what etcd has."""
    rig = await Rig.make(lanes=lanes)
    rng = random.Random(seed)
    plan = rig.store.plan
    plan.rng = random.Random(seed + 1)
    plan.delay_s_max = 0.02
    plan.lost_before_apply_share = plan.lost_after_apply_share = plan.unavailable_share = faults
    busy: set[int] = set()
    succeeded: Counter[int] = Counter()

    async def mutate(number: int) -> None:
        node_id = rng.randrange(1, 12)
        while node_id in busy:  # as locks would have it
            await asyncio.sleep(0.01)
        busy.add(node_id)
        try:
            changes = rig.node(node_id, rack=f"r{number}")
            if rng.random() < 0.1:
                changes.require_owner("nobody", 12345)
            result = await outcome(rig.commit(changes))
            if isinstance(result, int):
                succeeded[node_id] += 1
                assert rig.state.nodes[node_id].rack == f"r{number}"
        finally:
            busy.discard(node_id)

    works = []
    for number in range(50):
        works.append(asyncio.ensure_future(mutate(number)))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.05)
    await asyncio.gather(*works)
    assert rig.state.nodes == rig.stored()
    for node_id in range(1, 12):
        assert rig.puts_of(node_id) == succeeded[node_id], node_id
    assert not rig.deposed


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), lanes=st.integers(1, 4), faults=st.sampled_from([0.0, 0.05, 0.1, 0.2]))
def test_every_mutation_is_applied_once_or_not_at_all(seed: int, lanes: int, faults: float) -> None:
    sim_loop.run(_random_run(seed, lanes, faults), seed=seed % 1000, real_limit_s=60)


@pytest.mark.sim(seed=1)
async def test_a_malformed_change_does_not_sink_the_others() -> None:
    rig = await Rig.make()
    malformed = rig.node(2)
    malformed.values[b""] = b"x"  # etcd refuses a transaction with an empty key
    results = await asyncio.gather(*(outcome(rig.commit(changes)) for changes in (rig.node(1), malformed, rig.node(3))))
    assert [type(result) for result in results] == [int, InvalidArgument, int]
    assert sorted(rig.stored()) == [1, 3]
    assert rig.stored() == rig.state.nodes
    await rig.commit(rig.node(2))  # the lane goes on
    assert not rig.deposed


@pytest.mark.sim(seed=1)
@pytest.mark.parametrize("written_first", [True, False])
async def test_what_one_change_compares_is_not_written_by_another_in_the_same_transaction(written_first: bool) -> None:
    """Both compare the key as absent, and both would hold: an order to delete what is just being linked (24)."""
    rig = await Rig.make()
    absent = Changes(ROOT)
    absent.require(ROOT + b"nodes/%016x" % 7, 0)
    changes = [rig.node(7), absent] if written_first else [absent, rig.node(7)]
    results = await asyncio.gather(*(outcome(rig.commit(each)) for each in changes))
    assert rig.batcher.counters.batches == 2
    assert 7 in rig.stored()
    if written_first:
        assert isinstance(results[1], VersionConflict)
    else:
        assert isinstance(results[0], int)
        assert isinstance(results[1], int)
        assert results[0] < results[1]


async def test_a_batch_whose_task_has_not_begun_is_told_of_the_end_of_the_term() -> None:
    rig = await Rig.make()
    committing = asyncio.ensure_future(outcome(rig.commit(rig.node(1))))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(rig.batcher.end, "over")  # before its task's first step
    assert isinstance(await committing, NotLeader)
