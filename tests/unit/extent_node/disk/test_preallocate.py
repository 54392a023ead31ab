"""Blocks that are reserved ahead of appends: by a step, by larger ones for a writer in haste, and by no more than there
is room for."""

from __future__ import annotations

import asyncio
from typing import Any

from neve.extent_node.disk.disk import DiskState, Marks
from neve.extent_node.disk.file_system import Usage
from neve.extent_node.store.storage import Storage
from tests.sim.disks.nodes import File
from tests.unit.extent_node.store.rig import EXTENT_BYTES_MAX, Machine, append, block_of, create

KIB = 1 << 10
STEP_BYTES, STEP_BYTES_MAX = 8 * KIB, 64 * KIB
BLOCK = block_of("x", 1016)
assert len(BLOCK) == 1 * KIB


def machine_with(**changes: Any) -> Machine:
    settings: dict[str, Any] = {"preallocate_bytes": STEP_BYTES, "preallocate_bytes_max": STEP_BYTES_MAX, **changes}
    return Machine(**settings)


def reserved_bytes(machine: Machine) -> int:
    """What the file of extent 1 has on its disk."""
    file = machine.fs._tree.node("/disk0/extents/01/0000000000000001.ext")
    assert isinstance(file, File)
    return file.allocated_bytes


async def write(store: Storage, machine: Machine, *, to_bytes: int, pause_s: float) -> list[int]:
    """Append up to this length; how much was reserved ahead of each append's end when it was answered."""
    ahead = []
    for offset in range(store.state.replicas[1].state.length, to_bytes, KIB):
        await append(store, 1, offset, BLOCK)
        await asyncio.sleep(pause_s)
        ahead.append(reserved_bytes(machine) - offset - KIB)
    return ahead


def test_a_writer_that_takes_its_time_has_half_a_step_to_one_and_a_half_ahead_of_it() -> None:
    machine = machine_with()

    async def work(store: Storage) -> None:
        await create(store, 1)
        ahead = await write(store, machine, to_bytes=256 * KIB, pause_s=0.5)
        assert min(ahead) >= STEP_BYTES // 2
        assert max(ahead) <= STEP_BYTES * 3 // 2

    machine.run(work)


def test_a_writer_in_haste_gets_larger_steps_and_smaller_ones_when_it_slows_down() -> None:
    machine = machine_with()

    async def work(store: Storage) -> None:
        await create(store, 1)
        ahead = await write(store, machine, to_bytes=256 * KIB, pause_s=0.001)
        assert STEP_BYTES_MAX <= max(ahead) <= STEP_BYTES_MAX * 3 // 2
        assert min(ahead[128:]) >= STEP_BYTES_MAX // 2
        ahead = await write(store, machine, to_bytes=768 * KIB, pause_s=0.5)
        assert max(ahead[256:]) <= STEP_BYTES * 3 // 2

    machine.run(work)


def test_no_more_is_reserved_than_an_extent_can_have() -> None:
    machine = machine_with()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await write(store, machine, to_bytes=EXTENT_BYTES_MAX, pause_s=0.001)
        assert reserved_bytes(machine) == EXTENT_BYTES_MAX

    machine.run(work)


def test_nothing_is_reserved_if_it_is_switched_off() -> None:
    machine = machine_with(preallocate_bytes=0)

    async def work(store: Storage) -> None:
        await create(store, 1)
        assert set(await write(store, machine, to_bytes=64 * KIB, pause_s=0.001)) == {0}

    machine.run(work)


def test_after_a_restart_it_is_reserved_ahead_again() -> None:
    machine = machine_with()

    async def first(store: Storage) -> None:
        await create(store, 1)
        await write(store, machine, to_bytes=3 * KIB, pause_s=0.001)

    async def second(store: Storage) -> None:
        (ahead,) = await write(store, machine, to_bytes=4 * KIB, pause_s=0.001)
        assert ahead >= STEP_BYTES // 2

    machine.run(first)
    machine.restart(second)


def test_a_large_step_that_does_not_fit_is_a_small_one_and_the_disk_stays_writable() -> None:
    machine = machine_with()

    async def work(store: Storage) -> None:
        await create(store, 1)
        disk = store.state.replicas[1].disk
        await write(store, machine, to_bytes=64 * KIB, pause_s=0.001)
        assert store.state.replicas[1].allocation_bytes > STEP_BYTES
        end = reserved_bytes(machine)
        machine.fs.fill("/disk0", leave_bytes=2 * STEP_BYTES)
        await write(store, machine, to_bytes=end + STEP_BYTES // 2, pause_s=0.001)
        assert disk.state is DiskState.WRITABLE
        assert reserved_bytes(machine) <= end + 2 * STEP_BYTES
        assert store.state.replicas[1].reserved_bytes <= reserved_bytes(machine)
        assert machine.fs.usage("/disk0").free_bytes > 0  # others find some, too

    machine.run(work)


def test_steps_stay_small_on_a_disk_that_they_would_bring_to_its_mark() -> None:
    machine = machine_with(marks=Marks(high=0.9, low=0.8))
    machine.fs.fill("/disk0", leave_bytes=STEP_BYTES_MAX)
    machine.fs.set_capacity("/disk0", 8 * STEP_BYTES_MAX)  # an eighth is not to be used

    async def work(store: Storage) -> None:
        await create(store, 1)
        replica = store.state.replicas[1]
        replica.disk.note_usage(Usage(capacity_bytes=8 * STEP_BYTES_MAX, free_bytes=STEP_BYTES_MAX))
        ahead = await write(store, machine, to_bytes=64 * KIB, pause_s=0.001)
        assert max(ahead) <= STEP_BYTES * 3 // 2
        assert replica.disk.state is DiskState.WRITABLE

    machine.run(work)
