"""Crash at every step (T12, T21, T26-T28): the process ends before each operation on the disk, and inside writes.

Goal: after any end, every answered append, fence, token, seal and delete is there (G1-G3), and the node goes on.
Method: a scenario runs on a simulated machine until step N, for every N; the machine is then killed or loses power
(losing all that is not synced, or a random part, with several seeds); the store starts again, is compared with the
model of what was promised, finishes the work, loses power once more, and is compared again.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import pytest

from neve.extent_node.store.storage import Storage
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash
from tests.unit.extent_node.store.model import Ending, Model
from tests.unit.extent_node.store.rig import Machine, append_all, block_of, tell_committed

Scenario = Callable[[Storage, Model], Awaitable[None]]

# Power cuts with random results after each step. More of them by NEVE_CRASH_SEEDS=20 find rarer coincidences.
RANDOM_SEEDS = int(os.environ.get("NEVE_CRASH_SEEDS", "1"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of deaths are logged with their tracebacks otherwise, which takes longer than the test."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _blocks(text: str, *sizes: int) -> list[bytes]:
    return [block_of(f"{text}{number}", size) for number, size in enumerate(sizes)]


# --- scenarios -----------------------------------------------------------------------------------------------


async def create_extents(store: Storage, model: Model) -> None:
    await model.create(store, 1, disk=0)
    await model.create(store, 2, disk=1)


async def append_in_place(store: Storage, model: Model) -> None:
    await model.create(store, 1)
    for number in range(3):
        await model.append(store, model.next_segment(1, *_blocks(f"p{number}", 90, 200)))


async def append_journaled(store: Storage, model: Model) -> None:
    for extent_id in (1, 2, 3):
        await model.create(store, extent_id, disk=extent_id % 2)
    for number in range(3):
        segments = [model.next_segment(extent_id, *_blocks(f"j{number}", 60, 150)) for extent_id in (1, 2, 3)]
        await model.append(store, *segments)
    assert store.state.counters.journal_entries >= 6


async def append_without_sync(store: Storage, model: Model) -> None:
    await model.create(store, 1)
    await model.create(store, 2)
    for number in range(3):
        await model.append(store, model.next_segment(1, *_blocks(f"n{number}", 90), no_sync=True))
    await model.append(store, model.next_segment(2, *_blocks("r", 50)))
    # Sync above bytes that are not synced: it must not go to the journal, though one beside it does.
    await model.append(store, model.next_segment(1, *_blocks("s", 50)), model.next_segment(2, *_blocks("t", 50, 60)))
    await model.append(store, model.next_segment(1, *_blocks("u", 90), no_sync=True))


async def raise_and_fence(store: Storage, model: Model) -> None:
    await model.create(store, 1)
    await model.append(store, model.next_segment(1, *_blocks("a", 100), no_sync=True))
    await model.raise_token(store, 1, 20)
    await model.append(store, model.next_segment(1, *_blocks("b", 100), no_sync=True, token=20))
    await model.fence(store, 1)
    await model.create(store, 2)
    await model.fence(store, 2)


async def seal_with_a_cut(store: Storage, model: Model) -> None:
    await model.create(store, 1)
    await model.create(store, 2)
    await model.append(store, model.next_segment(1, *_blocks("w", 70, 80, 90)), model.next_segment(2, *_blocks("x", 9)))
    await model.append(store, model.next_segment(1, *_blocks("y", 70)), model.next_segment(2, *_blocks("z", 9)))
    extent = model.extent(1)
    extent.sync_end = extent.any_end = extent.boundaries[2]  # other replicas had less: nothing above was acknowledged
    await model.seal(store, 1, extent.boundaries[2])
    await model.fence(store, 2)
    await model.seal(store, 2, len(model.extent(2).sequence))


async def delete_extents(store: Storage, model: Model) -> None:
    for extent_id in (1, 2):
        await model.create(store, extent_id)
    await model.append(store, model.next_segment(1, *_blocks("d", 80)), model.next_segment(2, *_blocks("e", 80)))
    await model.append(store, model.next_segment(1, *_blocks("f", 80)), model.next_segment(2, *_blocks("g", 80)))
    await model.seal(store, 2, len(model.extent(2).sequence))
    await model.delete(store, 1)
    await model.delete(store, 2)
    await model.delete(store, 3)


async def turn_the_journal(store: Storage, model: Model) -> None:
    """More than the ring holds: segments are filled, freed and used again, and one is added."""
    for extent_id in (1, 2, 3):
        await model.create(store, extent_id, disk=extent_id % 2)
    for number in range(9):
        segments = [model.next_segment(extent_id, *_blocks(f"r{number}", 1500)) for extent_id in (1, 2, 3)]
        await model.append(store, *segments)
    assert store.state.counters.segments_recycled > 0


async def stop_cleanly(store: Storage, model: Model) -> None:
    await append_journaled(store, model)
    await model.append(store, model.next_segment(1, *_blocks("n", 90), no_sync=True))
    await store.stop(clean=True)
    for extent in model.extents.values():
        extent.sync_end = extent.any_end
        extent.no_sync_sent = False


async def many_at_once(store: Storage, model: Model) -> None:
    """What a busy node does, in one go."""
    for extent_id in (1, 2, 3, 4):
        await model.create(store, extent_id, disk=extent_id % 2)
    for number in range(2):
        segments = [
            model.next_segment(extent_id, *_blocks(f"m{number}", 300), no_sync=extent_id == 4)
            for extent_id in (1, 2, 3, 4)
        ]
        await model.append(store, *segments)
    await tell_committed(store, 1, model.extent(1).any_end)
    await model.seal(store, 3, len(model.extent(3).sequence))
    await model.delete(store, 2)
    await append_all(store, *(model.next_segment(extent_id, *_blocks("end", 300)) for extent_id in (1, 4)))


class Case(NamedTuple):
    scenario: Scenario
    disks: int = 1
    segment_bytes: int = 32 << 10

    def machine(self) -> Machine:
        return Machine(self.disks, segment_bytes=self.segment_bytes)


CASES = {
    "create": Case(create_extents, disks=2),
    "append_in_place": Case(append_in_place),
    "append_journaled": Case(append_journaled, disks=2),
    "append_without_sync": Case(append_without_sync),
    "raise_and_fence": Case(raise_and_fence),
    "seal": Case(seal_with_a_cut),
    "delete": Case(delete_extents),
    "journal_ring": Case(turn_the_journal, disks=2, segment_bytes=12 << 10),
    "clean_stop": Case(stop_cleanly, disks=2),
    "many_at_once": Case(many_at_once, disks=2),
}


# --- running them --------------------------------------------------------------------------------------------


def _run_until(machine: Machine, scenario: Scenario, model: Model) -> bool:
    """Whether it came to its end."""

    async def work(store: Storage) -> None:
        await scenario(store, model)

    try:
        machine.run(work)
    except SimulatedCrash:
        return False
    return True


def _end(fs: SimFileSystem, ending: Ending) -> None:
    if ending == "kill":
        fs.crash()
    else:
        fs.power_cut(ending)


def _recover(machine: Machine, model: Model, ending: Ending) -> None:
    async def check(store: Storage) -> None:
        await model.check(store, machine.fs, ending)

    async def check_and_repeat(store: Storage) -> None:
        await model.check(store, machine.fs, ending)
        await model.repeat(store)

    async def check_and_finish(store: Storage) -> None:
        await model.check(store, machine.fs, ending)
        await model.finish(store)

    if ending == "kill":
        # What a killed process had set and not synced can be seen, and may not be taken for durable.
        machine.run(check_and_repeat)
        ending = "lose_all"
        _end(machine.fs, ending)
    machine.run(check_and_finish)
    _end(machine.fs, "lose_all")
    machine.run(check)
    _end(machine.fs, "kill")


def _steps(name: str, fresh: Machine) -> range:
    """The steps at which to stop. Those of the start are the same for all scenarios: one of them goes through them."""
    scenario = CASES[name].scenario
    trial, started = fresh.clone(), fresh.fs.steps

    async def work(store: Storage) -> None:
        nonlocal started
        if name != "create":
            started = trial.fs.steps
        await scenario(store, Model())

    trial.run(work)
    assert trial.fs.steps > started + 10
    return range(started + 1, trial.fs.steps + 2)


@pytest.mark.parametrize("name", CASES)
def test_t27_t21_a_crash_at_every_step_loses_nothing_that_was_answered(name: str) -> None:
    scenario = CASES[name].scenario
    fresh = CASES[name].machine()
    for step in _steps(name, fresh):
        for when in ("before", "torn"):
            machine = fresh.clone()
            machine.fs.stop_at(step, when)
            model = Model()
            _run_until(machine, scenario, model)
            if when == "torn" and "pwrite" not in machine.fs.log[-2]:
                continue  # the same as before
            endings: list[tuple[Ending, int]] = [("kill", 0), ("lose_all", 0)]
            endings += [("random", seed) for seed in range(RANDOM_SEEDS)]
            for ending, seed in endings:
                ended, told = machine.clone(), copy.deepcopy(model)
                ended.fs.rng.seed(f"{name} {step} {seed}")
                _end(ended.fs, ending)
                try:
                    _recover(ended, told, ending)
                except BaseException:
                    print(f"scenario {name}, stopped {when} step {step}, then {ending} with seed {seed}")
                    print("\n".join(list(ended.fs.log)[-150:]))
                    raise


# --- dying again while starting ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["append_journaled", "append_without_sync", "seal", "delete"])
@pytest.mark.parametrize("first_ending", ["kill", "lose_all", "random"])
def test_t27_a_crash_at_every_step_of_the_start_after_a_crash_forgets_nothing(name: str, first_ending: Ending) -> None:
    """A scenario, an ending in the middle of it, a start that dies at every step, another ending, another start."""
    scenario = CASES[name].scenario
    fresh, model = CASES[name].machine(), Model()
    steps = _steps(name, fresh)
    fresh.fs.stop_at(steps[len(steps) * 4 // 5], "before")
    assert not _run_until(fresh, scenario, model)
    fresh.fs.rng.seed(name)
    _end(fresh.fs, first_ending)

    async def start_only(store: Storage) -> None:
        await store.verified()

    trial = fresh.clone()
    trial.run(start_only)
    for step in range(fresh.fs.steps + 1, trial.fs.steps + 1):
        machine = fresh.clone()
        machine.fs.stop_at(step, "before")
        with contextlib.suppress(SimulatedCrash):
            machine.run(start_only)
        endings: list[Ending] = ["kill", "lose_all"]
        for ending in endings:
            ended, told = machine.clone(), copy.deepcopy(model)
            ended.fs.rng.seed(f"{name} {step}")
            _end(ended.fs, ending)
            try:
                _recover(ended, told, _rougher(first_ending, ending))
            except BaseException:
                print(f"scenario {name}, {first_ending}, the start stopped at {step}, then {ending}")
                print("\n".join(list(ended.fs.log)[-150:]))
                raise


def _rougher(first: Ending, second: Ending) -> Ending:
    order: list[Ending] = ["kill", "lose_all", "random"]
    return max(first, second, key=order.index)
