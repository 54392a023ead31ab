"""Frames of many extents go to the journal as a whole: what becomes of them when something else happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from neve.extent_node.store.config import Counters
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import ExtentSealed, ReplicaMissing
from tests.unit.extent_node.store.rig import (
    Machine,
    append_all,
    block_of,
    create,
    delete,
    fence,
    raise_token,
    seal,
    segment,
)
from tests.unit.extent_node.store.test_hung import Hanging, given_up

EXTENTS = (1, 2, 3)
A, B, C = block_of("a", 100), block_of("b", 300), block_of("c", 50)


def machine_without_checkpoints(**changes: int) -> Machine:
    return Machine(checkpoint_interval_s=3600.0, **changes)


async def frame(store: Storage, offset: int, block: bytes) -> list[pb.SegmentResult]:
    return await append_all(store, *(segment(extent_id, offset, [block]) for extent_id in EXTENTS))


async def begin(store: Storage) -> Counters:
    """Extents whose first bytes are durable, and which know their writer's token; what was counted by then."""
    for extent_id in EXTENTS:
        await create(store, extent_id)
    assert not any(result.HasField("error") for result in await frame(store, 0, A))
    return replace(store.state.counters)


def in_order(machine: Machine, length: int) -> None:
    """After the power was cut, every extent has so many bytes."""

    async def after(store: Storage) -> None:
        for extent_id in EXTENTS:
            assert (await raise_token(store, extent_id, 99)).length == length

    machine.fs.power_cut()
    machine.run(after)


def test_a_frame_of_several_extents_is_one_round_and_survives_the_power() -> None:
    machine = machine_without_checkpoints()

    async def work(store: Storage) -> None:
        before = await begin(store)
        results = await frame(store, len(A), B)
        assert [result.end for result in results] == [len(A + B)] * len(EXTENTS)
        assert store.state.counters.journal_rounds == before.journal_rounds + 1
        assert store.state.counters.journal_entries == before.journal_entries + len(EXTENTS)
        assert store.state.counters.in_place_syncs == before.in_place_syncs
        for extent_id in EXTENTS:
            assert store.state.replicas[extent_id].state.durable_end == len(A + B)

    machine.run(work)
    in_order(machine, len(A + B))


def test_frames_that_come_while_a_round_runs_go_together_in_the_next_one() -> None:
    machine = machine_without_checkpoints()

    async def work(store: Storage) -> None:
        before = await begin(store)
        hanging = Hanging(store)
        frames = []
        for offset, block in ((len(A), A), (len(A + A), B), (len(A + A + B), C)):
            frames.append(asyncio.ensure_future(frame(store, offset, block)))
            await asyncio.sleep(0.01)
        assert not any(each.done() for each in frames)
        await hanging.let_go()
        for results in await asyncio.gather(*frames):
            assert not any(result.HasField("error") for result in results)
        assert store.state.counters.journal_rounds == before.journal_rounds + 2
        assert store.state.counters.in_place_syncs == before.in_place_syncs

    machine.run(work)
    in_order(machine, len(A + A + B + C))


def test_a_frame_above_one_that_was_given_up_does_not_rest_on_it() -> None:
    """Rule 10: the bytes of the frame that was given up are not in the journal, so that those above must not be."""
    machine = machine_without_checkpoints()

    async def work(store: Storage) -> None:
        before = await begin(store)
        hanging = Hanging(store)
        first = asyncio.ensure_future(frame(store, len(A), A))
        await asyncio.sleep(0.01)
        await given_up(frame(store, len(A + A), B))
        last = asyncio.ensure_future(frame(store, len(A + A + B), C))
        await asyncio.sleep(0.01)
        await hanging.let_go()
        for results in await asyncio.gather(first, last):
            assert not any(result.HasField("error") for result in results)
        assert store.state.counters.journal_entries == before.journal_entries + len(EXTENTS)
        assert store.state.counters.in_place_syncs == before.in_place_syncs + len(EXTENTS)

    machine.run(work)
    in_order(machine, len(A + A + B + C))


async def _sealed(store: Storage) -> None:
    await fence(store, 2)
    await seal(store, 2, len(A))


async def _deleted(store: Storage) -> None:
    assert await delete(store, 2)


@pytest.mark.parametrize(
    ("happens", "error"), [(_sealed, ExtentSealed), (_deleted, ReplicaMissing)], ids=["sealed", "deleted"]
)
@pytest.mark.parametrize("in_round", [True, False], ids=["in the round that runs", "before its round"])
def test_a_segment_whose_replica_goes_meanwhile_is_refused_and_the_others_are_taken(
    happens: Callable[[Storage], Awaitable[None]], error: type[ExtentSealed | ReplicaMissing], *, in_round: bool
) -> None:
    machine = machine_without_checkpoints()

    async def work(store: Storage) -> None:
        await begin(store)
        held = store.state.committer.rounds
        waiting: list[Callable[[], None]] = []
        start = held._start_sync
        held._start_sync = lambda ticket, then: waiting.append(lambda: start(ticket, then))  # until it is let go
        first = asyncio.ensure_future(frame(store, len(A), B))
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(frame(store, len(A + B), C))
        await asyncio.sleep(0.01)
        await happens(store)
        assert len(waiting) == 1
        held._start_sync = start
        waiting[0]()
        for results in (await first,) if in_round else (await second,):
            assert [result.error.code for result in results] == [0, error.code, 0]
        await asyncio.gather(first, second)
        for extent_id in (1, 3):
            assert store.state.replicas[extent_id].state.durable_end == len(A + B + C)

    machine.run(work)


def test_a_frame_that_the_journal_has_no_room_for_is_nothing_that_others_rest_on() -> None:
    machine = machine_without_checkpoints()

    async def work(store: Storage) -> None:
        before = await begin(store)
        store.state.committer.rounds._journal.append = lambda entries: 0  # type: ignore[method-assign]
        hanging = Hanging(store)
        pending = asyncio.ensure_future(frame(store, len(A), B))
        await asyncio.sleep(0.01)
        for extent_id in EXTENTS:
            assert store.state.replicas[extent_id].state.journaled_end == len(A)
        await hanging.let_go()
        assert not any(result.HasField("error") for result in await pending)
        assert store.state.counters.journal_full == before.journal_full + len(EXTENTS)
        assert store.state.counters.in_place_syncs == before.in_place_syncs + len(EXTENTS)

    machine.run(work)
    in_order(machine, len(A + B))
