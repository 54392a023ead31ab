"""A bit that flips in the last acknowledged group of records is damage, not a torn write (rule 13)."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.extent_node.journal.damage import Damage, find_damage
from neve.extent_node.journal.format import (
    FIRST_POSITION,
    RECORD_HEADER_BYTES,
    Entry,
    Record,
    crc_seed,
    encode_end,
    encode_records,
    walk_records,
)
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from tests.unit.extent_node.store.rig import Machine, append, append_all, block_of, create, raise_token, segment

Kind = pb.LengthAnswer

SEED = crc_seed(bytes(16))
NUMBER = 7


def segment_of(*sizes: int, number: int = NUMBER, end: bool = False) -> tuple[bytes, list[Record]]:
    """A segment with records of those payload sizes, and what they are."""
    rng = random.Random(sum(sizes))
    data = bytearray(FIRST_POSITION)
    for extent_id, size_bytes in enumerate(sizes, start=1):
        buffers, _, _ = encode_records(
            [Entry("holder", 1, extent_id, extent_id + 100, 0, [rng.randbytes(size_bytes)], size_bytes)],
            seed=SEED,
            position=len(data),
            segment_number=number,
            durable_through=0,
            needed_from=0,
            position_max=1 << 30,
        )
        data += b"".join(buffers)
    if end:
        data += encode_end(seed=SEED, position=len(data), segment_number=number, durable_through=0, needed_from=0)
    whole = bytes(data) + bytes(4096)
    return whole, list(walk_records(whole, number, SEED))


def flipped(data: bytes, *bits: int) -> bytes:
    made = bytearray(data)
    for bit in bits:
        made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_anywhere_in_a_record_is_damage_and_says_whose(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=4))
    content, records = segment_of(*sizes)
    broken = data.draw(st.sampled_from(records))
    covered_bits = 8 * (RECORD_HEADER_BYTES + broken.payload_bytes)
    bit = 8 * broken.position + data.draw(st.integers(0, covered_bits - 1))
    found = list(find_damage(flipped(content, bit), broken.position, NUMBER, SEED))
    assert found == [Damage(broken.position, broken)]


def test_a_flipped_bit_in_an_end_record_is_nobodys() -> None:
    content, records = segment_of(100, end=True)
    found = list(find_damage(flipped(content, 8 * records[-1].position + 70), records[-1].position, NUMBER, SEED))
    assert [damage.record.is_end for damage in found if damage.record is not None] == [True]


def test_two_damaged_records_are_both_told() -> None:
    content, records = segment_of(300, 300, 300, 300)
    bits = [8 * (records[at].position + 90) for at in (0, 2)]
    found = list(find_damage(flipped(content, *bits), records[0].position, NUMBER, SEED))
    assert found == [Damage(records[0].position, records[0]), Damage(records[2].position, records[2])]


def test_what_a_torn_write_leaves_is_no_damage() -> None:
    content, _ = segment_of(3000, 3000, 3000)
    for lost in (range(1), range(2, 5), range(7, 9), range(20)):
        made = bytearray(content)
        for sector in lost:
            start = FIRST_POSITION + 512 * sector
            made[start : start + 512] = bytes(512)
        assert list(find_damage(bytes(made), FIRST_POSITION, NUMBER, SEED)) == []


def test_what_an_earlier_use_of_the_segment_left_is_no_damage() -> None:
    """The number before differs from this one in one bit."""
    content, _ = segment_of(100, 100, number=NUMBER - 1)
    assert list(find_damage(content, FIRST_POSITION, NUMBER, SEED)) == []
    assert list(find_damage(flipped(content, 8 * FIRST_POSITION + 900), FIRST_POSITION, NUMBER, SEED)) == []


def test_more_than_one_bit_in_a_sector_that_was_surely_written_is_damage_of_nobody_knows_whom() -> None:
    content, records = segment_of(50, 50)
    at = 8 * (records[0].position + 85)
    assert list(find_damage(flipped(content, at, at + 3, at + 77), FIRST_POSITION, NUMBER, SEED)) == [
        Damage(FIRST_POSITION, None)
    ]


# --- a node --------------------------------------------------------------------------------------------------

EXTENTS = (1, 2, 3)
FIRST, SECOND = block_of("first", 50), block_of("second", 50)
END = len(FIRST + SECOND)


@functools.cache
def acknowledged() -> tuple[Machine, list[Record]]:
    """Three extents whose second blocks are in the last group of the journal, and nowhere else after a power cut."""
    machine = Machine(journal_extents_min=1, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> bytes:
        for extent_id in EXTENTS:
            await create(store, extent_id)
            await append(store, extent_id, 0, FIRST)
        segments = [segment(extent_id, len(FIRST), [SECOND]) for extent_id in EXTENTS]
        assert [result.end for result in await append_all(store, *segments)] == [END] * 3
        return store.state.journal.uuid_bytes

    seed = crc_seed(machine.run(work))
    machine.fs.power_cut()
    records = [record for record in walk_records(machine.fs.content("/journal/0000.seg"), 1, seed) if record.offset]
    assert [record.extent_id for record in records] == list(EXTENTS)
    return machine, records


@pytest.mark.parametrize("extent_id", EXTENTS)
@pytest.mark.parametrize("byte", [0, 5, 10, 14, 20, 60, 70, 85, 120])
def test_a_bit_flipped_in_the_last_group_doubts_its_replica_and_hides_no_other(extent_id: int, byte: int) -> None:
    made, records = acknowledged()
    machine = made.clone()
    machine.fs.flip("/journal/0000.seg", records[extent_id - 1].position + byte, 2)

    async def after(store: Storage) -> None:
        await store.verified()
        for other in EXTENTS:
            answer = await raise_token(store, other, 11)
            if other == extent_id:
                assert answer.kind == Kind.DOUBTFUL
            else:
                assert (answer.kind, answer.length) == (Kind.LENGTH, END), other

    machine.run(after)
    machine.restart(after)


def test_damage_of_which_nobody_can_tell_whose_it_is_doubts_all_open_replicas() -> None:
    made, records = acknowledged()
    machine = made.clone()
    for byte in (85, 87, 99):
        machine.fs.flip("/journal/0000.seg", records[1].position + byte, 2)
    assert records[1].position // 512 == records[2].position // 512

    async def after(store: Storage) -> None:
        await store.verified()
        for other in EXTENTS:
            answer = await raise_token(store, other, 11)
            assert answer.kind == Kind.DOUBTFUL
            assert answer.valid_length == (len(FIRST) if other == 2 else END)  # records behind it are used all the same

    machine.run(after)
