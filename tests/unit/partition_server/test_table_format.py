"""Blocks, indexes and filters read back as what was written; damage is refused; keys keep their order."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import DELETE, PUT, Entry, Part
from neve.partition_server.engine.key_index import BUCKET_KEYS_MAX, KeyIndex
from neve.partition_server.tables.bloom import key_hash, key_hashes, make_filter, may_contain
from neve.partition_server.tables.entry_columns import Rows, concatenate, rows_of
from neve.partition_server.tables.table_format import (
    BLOCK,
    INDEX,
    BadTable,
    Block,
    Packer,
    decode_block,
    decode_filters,
    decode_index,
    encode_block,
    encode_filters,
    encode_index,
    unpack,
)

NUMBERS = st.integers(min_value=0, max_value=2**63)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    keys = sorted(draw(st.sets(st.binary(min_size=1, max_size=20), min_size=1, max_size=30)))
    entries = []
    for key in keys:
        seq = draw(NUMBERS)
        kind = draw(st.sampled_from(("inline", "long", "parts", "delete")))
        common = (seq, draw(st.integers(0, seq)), draw(NUMBERS), draw(NUMBERS))
        if kind == "delete":
            entry = Entry(key, DELETE, *common, 0, 0, b"", 0, None)
        elif kind == "parts":
            entry = Entry(key, PUT, *common, 7, 30, b"", 0, (Part(1, 2, 3, 10), Part(4, 5, 6, 20)))
        else:
            value = draw(st.binary(max_size=10)) + (b"x" * 100 if kind == "long" else b"")
            entry = Entry(key, PUT, *common, draw(st.integers(0, 2**32 - 1)), len(value), b"head" + value, 4, None)
            entry.position = Position(9, 99)
        entries.append(entry)
    return entries


def make_rows(entries: list[Entry]) -> Rows:
    return rows_of(entries, value_threshold_bytes=100, record_bytes_max=10_000)


def shown(entry: Entry) -> tuple[object, ...]:
    fields = (entry.key, entry.kind, entry.seq, entry.version, entry.modified_ms, entry.expires_ms, entry.crc)
    value = entry.data[entry.value_at :][: entry.size_bytes] if entry.parts is None else entry.parts
    return (*fields, entry.size_bytes, value)


def expected(entry: Entry) -> tuple[object, ...]:
    if entry.parts is None and entry.size_bytes >= 100:
        return (*shown(entry)[:-1], (Part(9, 99, 4, entry.size_bytes),))
    return shown(entry)


@given(entry_lists())
def test_a_block_reads_back_entry_by_entry_and_by_columns(entries: list[Entry]) -> None:
    record = Packer(1).pack(BLOCK, encode_block(make_rows(entries)))
    block = decode_block(record)
    assert block.keys == [entry.key for entry in entries]
    rows = block.rows()
    for index, entry in enumerate(entries):
        found = block.find(entry.key)
        assert found is not None
        assert shown(found) == shown(rows.entry(index)) == expected(entry)
    assert block.find(entries[-1].key + b"\0") is None
    assert encode_block(rows) == encode_block(make_rows(entries))
    again = concatenate([rows.slice(0, 1), rows.slice(1, len(rows))])
    assert encode_block(again) == encode_block(rows)
    middle = entries[len(entries) // 2].key
    assert [entry.key for entry in block.entries(middle, b"")] == [e.key for e in entries if e.key >= middle]
    assert [entry.key for entry in block.entries(b"", middle)] == [e.key for e in entries if e.key < middle]


def test_nothing_points_into_a_record_of_several_blocks() -> None:
    entry = Entry(b"k", PUT, 1, 1, 0, 0, 0, 500, b"h" + b"x" * 500, 1, None)
    entry.position = Position(1, 2)
    assert rows_of([entry], value_threshold_bytes=100, record_bytes_max=501).entry(0).parts is not None
    inline = rows_of([entry], value_threshold_bytes=100, record_bytes_max=500).entry(0)
    assert inline.parts is None
    assert inline.data == b"x" * 500


@given(entry_lists(), st.data())
def test_a_damaged_block_is_refused(entries: list[Entry], data: st.DataObject) -> None:
    raw = encode_block(make_rows(entries))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BadTable):
        Block(raw[:cut])
    with pytest.raises(BadTable):
        Block(raw + b"?")
    record = Packer(1).pack(BLOCK, raw)
    with pytest.raises(BadTable):
        unpack(INDEX, record)
    with pytest.raises(BadTable):
        unpack(BLOCK, record[: data.draw(st.integers(0, len(record) - 1))])


@given(st.lists(st.binary(max_size=30), min_size=1, unique=True), st.data())
def test_an_index_finds_the_block_of_a_key(keys: list[bytes], data: st.DataObject) -> None:
    keys.sort()
    positions = [Position(2**40 + number // 3, number * 7) for number in range(len(keys))]
    extents, offsets = (
        array("Q", [each.extent_id for each in positions]),
        array("Q", [each.offset for each in positions]),
    )
    raw = encode_index(keys, extents, offsets)
    index = decode_index(raw)
    assert [index.position(number) for number in range(len(keys))] == positions
    for number, key in enumerate(keys):
        assert index.block_of(key) == number
    assert index.block_of(keys[-1] + b"\0") == len(keys)
    with pytest.raises(BadTable):
        decode_index(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_filters_deny_no_key_and_few_others() -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(rng.randrange(1, 40)) for _ in range(20_000)]
    halves = [keys[:8_000], keys[8_000:]]
    raw = encode_filters([0, 100], [make_filter(key_hashes(half), 10) for half in halves])
    filters = decode_filters(raw)
    assert all(filters.may_contain(50, key_hash(key)) for key in halves[0])
    assert all(filters.may_contain(100, key_hash(key)) for key in halves[1])
    wrong = sum(filters.may_contain(7, key_hash(b"other%d" % number)) for number in range(10_000))
    assert wrong < 250, wrong  # 1 % is expected
    with pytest.raises(BadTable):
        decode_filters(raw[:-1])


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=50))
def test_hashes_of_one_and_of_many_keys_are_the_same(keys: list[bytes]) -> None:
    assert key_hashes(keys).tolist() == [key_hash(key) for key in keys]
    made = make_filter(key_hashes(keys), 10)
    assert all(may_contain(b"??" + made, 2, len(made), key_hash(key)) for key in keys)


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_keys_come_in_order_however_they_were_added(order: str) -> None:
    rng = random.Random(order)
    keys = [b"%08d" % number for number in range(3 * BUCKET_KEYS_MAX)]
    added = {"random": rng.sample(keys, len(keys)), "ascending": keys, "descending": keys[::-1]}[order]
    index = KeyIndex()
    for key in added:
        index.add(key)
    assert [key for run in index.runs() for key in run] == keys
    for _ in range(50):
        start, end = sorted(rng.sample(range(len(keys)), 2))
        found = [key for run in index.runs(keys[start] + b"\0", keys[end]) for key in run]
        assert found == keys[start + 1 : end]


def test_keys_added_behind_an_iteration_are_seen_by_it() -> None:
    index = KeyIndex()
    for number in range(0, 10 * BUCKET_KEYS_MAX, 2):
        index.add(b"%08d" % number)
    seen: list[bytes] = []
    for run in index.runs():
        seen += run
        behind = b"%08d" % (int(run[-1]) + 5001)
        if behind < b"%08d" % (10 * BUCKET_KEYS_MAX):
            index.add(behind)
    assert seen == sorted(seen)
    assert seen == [key for run in index.runs() for key in run]
