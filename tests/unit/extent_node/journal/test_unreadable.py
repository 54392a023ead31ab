"""A bad sector of the journal: the node lives, whoever may have lost something by it is doubtful, nobody else is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from neve.extent_node.journal.folder import JournalRefused, read_journal_label, slot_path
from neve.extent_node.journal.format import FIRST_POSITION, crc_seed, find_records
from neve.extent_node.journal.segment_reader import PAGE_BYTES, SegmentBytes, read_segment
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash
from tests.unit.extent_node.store.rig import (
    JOURNAL,
    SEGMENT_BYTES,
    TOKEN,
    Machine,
    append_all,
    block_of,
    create,
    fence,
    raise_token,
    seal,
    segment,
)

Kind = pb.LengthAnswer

EXTENTS = (1, 2, 3)
BLOCKS = [block_of(f"block {number}", 1500) for number in range(4)]
END = sum(map(len, BLOCKS))


def filled(**changes: Any) -> Machine:
    """Three extents whose bytes are durable by the journal only, over several pages of its first segment."""
    machine = Machine(journal_extents_min=1, checkpoint_interval_s=3600.0, **changes)

    async def work(store: Storage) -> None:
        for extent_id in EXTENTS:
            await create(store, extent_id)
        offset = 0
        for block in BLOCKS:
            await append_all(store, *(segment(extent_id, offset, [block]) for extent_id in EXTENTS))
            offset += len(block)
        assert store.state.counters.in_place_syncs == 0

    machine.run(work)
    machine.fs.power_cut()
    return machine


async def answers(store: Storage) -> list[tuple[pb.LengthAnswer.Kind, int]]:
    found = [await raise_token(store, extent_id, TOKEN + 1) for extent_id in EXTENTS]
    return [(answer.kind, answer.length) for answer in found]


ALL_THERE = [(Kind.LENGTH, END)] * 3


def last_position(machine: Machine) -> int:
    """Behind the last record of the first segment."""
    label = read_journal_label(machine.fs, JOURNAL)
    seed = crc_seed(bytes.fromhex(label.uuid.replace("-", "")))
    return max(record.end_position for record in find_records(machine.fs.content(slot_path(JOURNAL, 0)), 0, seed))


def test_a_bad_page_with_records_makes_open_replicas_doubtful_and_the_node_lives() -> None:
    whole = filled()
    pages = range(FIRST_POSITION, last_position(whole), PAGE_BYTES)
    assert len(pages) > 3
    for position in pages:
        machine = filled()
        machine.fs.spoil(slot_path(JOURNAL, 0), position)
        assert [kind for kind, _ in machine.run(answers)] == [Kind.DOUBTFUL] * 3, position
        # It is so for good, and once: what was found bad is not looked at again.
        machine.fs.power_cut()
        assert [kind for kind, _ in machine.run(answers)] == [Kind.DOUBTFUL] * 3, position


def test_records_around_a_bad_page_are_replayed_all_the_same() -> None:
    machine = filled()
    machine.fs.spoil(slot_path(JOURNAL, 0), FIRST_POSITION + PAGE_BYTES)

    async def valid_lengths(store: Storage) -> list[int]:
        await store.verified()
        return [(await fence(store, extent_id)).valid_length for extent_id in EXTENTS]

    assert sorted(machine.run(valid_lengths))[-1] >= len(BLOCKS[0])


@pytest.mark.parametrize("slot", [0, 1])
def test_a_bad_page_where_nothing_was_ever_written_costs_nobody_anything(slot: int) -> None:
    machine = filled()
    bad = SEGMENT_BYTES - 1 if slot == 0 else FIRST_POSITION
    machine.fs.spoil(slot_path(JOURNAL, slot), bad)
    assert machine.run(answers) == ALL_THERE
    assert read_journal_label(machine.fs, JOURNAL).bad_slots == (slot,)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_bad_header_is_made_up_for_by_the_records_behind_it(slot: int) -> None:
    machine = filled()
    machine.fs.spoil(slot_path(JOURNAL, slot), 0)
    assert machine.run(answers) == ALL_THERE


def opening(path: str) -> Callable[[str, str], bool]:
    return lambda operation, at: operation == "open" and at == path


def test_a_segment_that_cannot_be_read_at_all_may_have_held_anything() -> None:
    for slot, kind in ((0, Kind.DOUBTFUL), (1, Kind.LENGTH)):
        machine = filled()
        machine.fs.fail(errno.EIO, match=opening(slot_path(JOURNAL, slot)), times=None)
        assert [found for found, _ in machine.run(answers)] == [kind] * 3
        assert read_journal_label(machine.fs, JOURNAL).bad_slots == (slot,)


def test_a_page_that_goes_bad_between_two_readings_of_it_is_not_passed_over() -> None:
    machine = filled()
    readings = 0

    def second_time(operation: str, path: str) -> bool:
        nonlocal readings
        readings += operation == "pread" and path == slot_path(JOURNAL, 0)
        return readings > 1 and operation == "pread" and path == slot_path(JOURNAL, 0)

    machine.fs.fail(errno.EIO, match=second_time, times=None)
    assert [kind for kind, _ in machine.run(answers)] == [Kind.DOUBTFUL] * 3


def test_a_bad_slot_is_not_used_again_and_the_ring_grows_instead() -> None:
    machine = filled()
    machine.fs.spoil(slot_path(JOURNAL, 0), FIRST_POSITION)
    before = machine.fs.content(slot_path(JOURNAL, 0))

    async def work(store: Storage) -> int:
        for extent_id in EXTENTS:
            await seal(store, extent_id, 0)
        for extent_id in (5, 6):
            await create(store, extent_id)
        offset = 0
        for _ in range(60):
            block = block_of("more", 1000)
            await append_all(store, *(segment(extent_id, offset, [block]) for extent_id in (5, 6)))
            offset += len(block)
        assert store.state.counters.journal_entries > 60
        assert store.state.journal.failed == ""
        return offset

    machine.config = replace(machine.config, checkpoint_interval_s=0.01)
    end = machine.run(work)
    assert machine.fs.content(slot_path(JOURNAL, 0)) == before
    assert read_journal_label(machine.fs, JOURNAL).bad_slots == (0,)
    machine.fs.power_cut()

    async def look(store: Storage) -> None:
        for extent_id in (5, 6):
            answer = await raise_token(store, extent_id, TOKEN + 1)
            assert (answer.kind, answer.length) == (Kind.LENGTH, end)

    machine.run(look)


def test_after_a_clean_stop_a_bad_page_is_nobodys() -> None:
    machine = filled()

    async def stop(store: Storage) -> None:
        await store.verified()
        await store.stop(clean=True)

    machine.run(stop)
    machine.fs.spoil(slot_path(JOURNAL, 0), FIRST_POSITION)
    machine.fs.power_cut()
    assert machine.run(answers) == ALL_THERE


def test_a_slot_that_cannot_be_made_ready_is_left_out_and_its_number_given_to_another() -> None:
    machine = filled()
    path = slot_path(JOURNAL, 0)
    fault = machine.fs.fail(
        errno.EIO, match=lambda operation, at: operation in ("pwrite", "fdatasync") and at == path, times=None
    )
    assert machine.run(answers) == ALL_THERE
    assert read_journal_label(machine.fs, JOURNAL).bad_slots == (0,)
    fault.clear()
    machine.fs.power_cut()
    assert machine.run(answers) == ALL_THERE


def test_a_kept_segment_with_a_bad_page_costs_the_disk_that_it_is_kept_for_and_no_other() -> None:
    machine = Machine(2, journal_extents_min=1, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id, disk=extent_id - 1)
        offset = 0
        for block in BLOCKS:
            await append_all(store, *(segment(extent_id, offset, [block]) for extent_id in (1, 2)))
            offset += len(block)

    async def kind_of(store: Storage, extent_id: int) -> pb.LengthAnswer.Kind:
        return (await raise_token(store, extent_id, TOKEN + 1)).kind

    machine.run(work)
    machine.fs.power_cut()
    machine.take_disk_away(1)
    assert machine.run(lambda store: kind_of(store, 1)) == Kind.LENGTH  # what is of the other disk is kept
    machine.fs.crash()
    machine.bring_disk_back(1)
    machine.fs.spoil(slot_path(JOURNAL, 0), FIRST_POSITION)
    assert machine.run(lambda store: kind_of(store, 2)) == Kind.DOUBTFUL
    machine.fs.crash()
    assert machine.run(lambda store: kind_of(store, 1)) == Kind.LENGTH


def test_no_right_to_read_is_an_error_and_not_a_hole() -> None:
    machine = filled()
    fault = machine.fs.fail(
        errno.EACCES, match=lambda operation, path: operation == "open" and path.endswith(".seg"), times=None
    )
    with pytest.raises(PermissionError):
        machine.run(answers)
    fault.clear()
    machine.fs.power_cut()
    assert machine.run(answers) == ALL_THERE


def test_t30_a_label_that_cannot_be_read_is_refused_with_what_to_do() -> None:
    machine = filled()
    machine.fs.spoil(f"{JOURNAL}/journal.json", 0)
    with pytest.raises(JournalRefused, match=r"cannot be read.*format a new one"):
        machine.run(answers)


# --- every page, every step ----------------------------------------------------------------------------------


def turned(seed: int, ending: Literal["lose_all", "random"]) -> tuple[Machine, dict[int, int]]:
    """A ring that has turned several times, ended by a power cut in the middle of a round; what is acknowledged."""
    machine = Machine(seed=seed, segment_bytes=20 << 10, journal_extents_min=1, checkpoint_interval_s=0.05)
    acknowledged = dict.fromkeys(range(1, 6), 0)
    rng = random.Random(seed)

    async def work(store: Storage) -> None:
        for extent_id in acknowledged:
            await create(store, extent_id)
        for _ in range(40):
            chosen = rng.sample(sorted(acknowledged), rng.randint(1, 5))
            blocks = {extent_id: block_of("x", rng.randint(10, 1500)) for extent_id in chosen}
            segments = [segment(extent_id, acknowledged[extent_id], [blocks[extent_id]]) for extent_id in chosen]
            results = await append_all(store, *segments)
            for extent_id, result in zip(chosen, results, strict=True):
                acknowledged[extent_id] = result.end
            await asyncio.sleep(rng.choice((0, 0, 0.03)))
        assert store.state.counters.segments_recycled > 1
        machine.fs.stop_at(machine.fs.steps + rng.randint(1, 6), "torn")
        await append_all(
            store, *(segment(extent_id, end, [block_of("y", 900)]) for extent_id, end in acknowledged.items())
        )

    with contextlib.suppress(SimulatedCrash):
        machine.run(work)
    machine.fs.power_cut(ending)
    return machine, acknowledged


@pytest.mark.parametrize("ending", ["lose_all", "random"])
@pytest.mark.parametrize("seed", range(3))
def test_whichever_page_goes_bad_no_replica_answers_less_than_it_has_acknowledged(
    seed: int, ending: Literal["lose_all", "random"]
) -> None:
    whole, acknowledged = turned(seed, ending)
    label = read_journal_label(whole.fs, JOURNAL)

    async def look(store: Storage) -> dict[int, tuple[pb.LengthAnswer.Kind, int]]:
        found = {extent_id: await raise_token(store, extent_id, TOKEN + 1) for extent_id in acknowledged}
        return {extent_id: (answer.kind, answer.length) for extent_id, answer in found.items()}

    doubtful = 0
    for slot in range(label.slots):
        for position in range(0, label.segment_bytes, PAGE_BYTES):
            machine = whole.clone()
            machine.fs.spoil(slot_path(JOURNAL, slot), position)
            for extent_id, (kind, length) in machine.run(look).items():
                doubtful += kind == Kind.DOUBTFUL
                if kind != Kind.DOUBTFUL:
                    assert kind == Kind.LENGTH
                    assert length >= acknowledged[extent_id], (slot, position)
            machine.fs.power_cut()
            again = machine.run(look)
            assert all(kind == Kind.DOUBTFUL or length >= acknowledged[at] for at, (kind, length) in again.items())
    pages = label.slots * label.segment_bytes // PAGE_BYTES
    assert 0 < doubtful < 5 * pages  # some pages were needed, and some were not


@pytest.mark.parametrize("ending", ["crash", "power_cut"])
def test_t27_a_start_on_a_bad_page_that_ends_at_any_step_forgets_no_doubt(ending: str) -> None:
    whole = filled()
    whole.fs.spoil(slot_path(JOURNAL, 0), FIRST_POSITION)
    trial, first = whole.clone(), whole.fs.steps
    trial.run(answers)
    assert trial.fs.steps > first + 20
    for step in range(first + 1, trial.fs.steps + 1):
        machine = whole.clone()
        machine.fs.stop_at(step)
        with contextlib.suppress(SimulatedCrash):
            machine.run(answers)
        getattr(machine.fs, ending)()
        assert [kind for kind, _ in machine.run(answers)] == [Kind.DOUBTFUL] * 3, step


# --- reading -------------------------------------------------------------------------------------------------


def content_of(pages: int) -> bytes:
    return b"".join(bytes([number % 251 + 1]) * PAGE_BYTES for number in range(pages))


@pytest.mark.parametrize("bad", [(0,), (3,), (255,), (256,), (299,), (2, 3, 4), (0, 255, 256, 299)])
def test_what_can_be_read_is_read_and_the_rest_is_zeros(bad: tuple[int, ...]) -> None:
    fs = SimFileSystem()
    whole = content_of(300)  # more than one chunk
    fd = fs.open("/it", create=True)
    fs.pwrite(fd, [whole], 0)
    for page in bad:
        fs.spoil("/it", page * PAGE_BYTES)
    read = read_segment(fs, "/it", len(whole))
    assert read is not None
    assert read.unreadable == [page * PAGE_BYTES for page in bad]
    expected = bytearray(whole)
    for page in bad:
        expected[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    assert read.content == bytes(expected)


def test_a_medium_that_is_bad_all_over_is_given_up_after_some_pages() -> None:
    fs = SimFileSystem()
    whole = content_of(300)
    fd = fs.open("/it", create=True)
    fs.pwrite(fd, [whole], 0)
    for page in range(100, 300):
        fs.spoil("/it", page * PAGE_BYTES)
    read = read_segment(fs, "/it", len(whole))
    assert read is not None
    assert read.unreadable == [page * PAGE_BYTES for page in range(100, 300)]
    assert sum("pread" in line for line in fs.log) < 200


def test_a_missing_file_is_missing_and_a_short_one_short() -> None:
    fs = SimFileSystem()
    assert read_segment(fs, "/it", 100) is None
    fd = fs.open("/it", create=True)
    fs.pwrite(fd, [b"abc"], 0)
    assert read_segment(fs, "/it", 100) == SegmentBytes(b"abc", [])


def test_a_range_has_unreadable_bytes_where_it_touches_such_a_page() -> None:
    read = SegmentBytes(b"", [PAGE_BYTES, 5 * PAGE_BYTES])
    touched = [
        (start, end)
        for start, end in ((0, 1), (0, 4096), (0, 4097), (8191, 8192), (8192, 20480), (8192, 20481), (24575, 24576))
        if read.has_unreadable(start, end)
    ]
    assert touched == [(0, 4097), (8191, 8192), (8192, 20481), (24575, 24576)]
