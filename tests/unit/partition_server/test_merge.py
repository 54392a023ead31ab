"""What a merge keeps, and which tables are merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.partition_server.engine.entry import DELETE, PUT, Entry, Part
from neve.partition_server.tables.core_compaction import Policy, TableFacts, choose
from neve.partition_server.tables.core_merge import clip, merge, split_at
from neve.partition_server.tables.entry_columns import Rows, rows_of

NOW_MS = 1000


def make_rows(items: dict[bytes, tuple[int, str]]) -> Rows:
    """Keys with their seq and what they are."""
    entries = []
    for key, (seq, kind) in sorted(items.items()):
        if kind == "delete":
            entries.append(Entry(key, DELETE, seq, seq, 0, 0, 0, 0, b"", 0, None))
        elif kind == "pointer":
            entries.append(Entry(key, PUT, seq, seq, 0, 0, 0, 300, b"", 0, (Part(7, seq, 0, 300),)))
        else:
            expires_ms = {"put": 0, "expired": NOW_MS, "expires": NOW_MS + 1}[kind]
            entries.append(Entry(key, PUT, seq, seq, 0, expires_ms, 0, 3, b"%03d" % (seq % 1000), 0, None))
    return rows_of(entries, value_threshold_bytes=100, record_bytes_max=1000)


KINDS = st.sampled_from(("put", "delete", "pointer", "expired", "expires"))
TABLES = st.lists(
    st.dictionaries(st.binary(min_size=1, max_size=2), KINDS, min_size=1, max_size=20), min_size=1, max_size=4
)


@given(TABLES, st.booleans())
def test_a_merge_keeps_the_newest_of_each_key_and_drops_the_dead_only_at_the_end(
    tables: list[dict[bytes, str]], is_last: bool
) -> None:
    newest_first = [
        {key: (1000 * (len(tables) - age) + number, kind) for number, (key, kind) in enumerate(table.items())}
        for age, table in enumerate(tables)
    ]
    inputs = [make_rows(table) for table in newest_first]
    model: dict[bytes, tuple[int, str]] = {}
    for table in reversed(newest_first):
        model.update(table)
    if is_last:
        model = {key: item for key, item in model.items() if item[1] not in ("delete", "expired")}
    merged = merge(inputs, is_last=is_last, now_ms=NOW_MS)
    found = {key: int(seq) for key, seq in zip(merged.rows.keys, merged.rows.seqs, strict=True)}
    assert found == {key: seq for key, (seq, _) in model.items()}
    assert merged.rows.keys == sorted(model)
    assert merged.dropped == sum(map(len, newest_first)) - len(model)
    pointers = sum(300 for table in newest_first for _, kind in table.values() if kind == "pointer")
    kept = sum(300 for _, kind in model.values() if kind == "pointer")
    assert sum(merged.discarded.values()) == pointers - kept
    for index, key in enumerate(merged.rows.keys):
        entry = merged.rows.entry(index)
        seq, kind = model[key]
        assert (entry.kind == DELETE) == (kind == "delete")
        if kind in ("put", "expires"):
            assert entry.data == b"%03d" % (seq % 1000)


@given(
    st.dictionaries(st.binary(min_size=1, max_size=2), KINDS, min_size=1), st.binary(max_size=2), st.binary(max_size=2)
)
def test_rows_are_cut_at_a_key(items: dict[bytes, str], one: bytes, other: bytes) -> None:
    rows = make_rows({key: (number, kind) for number, (key, kind) in enumerate(items.items())})
    head, rest = split_at(rows, one)
    assert head.keys == [key for key in sorted(items) if key <= one]
    assert rest.keys == [key for key in sorted(items) if key > one]
    inside = clip(rows, one, other)
    assert inside.keys == [key for key in sorted(items) if key >= one and (not other or key < other)]


POLICY = Policy(tables_max=4, size_ratio=1.5, space_waste_max=1.0)


def facts(*sizes: int) -> list[TableFacts]:
    return [TableFacts(size, size) for size in sizes]


@pytest.mark.parametrize(
    ("tables", "chosen"),
    [
        ([], None),
        (facts(10), None),
        (facts(10, 10, 10), None),
        (facts(10, 10, 10, 10), (0, 4)),
        (facts(10, 10, 10, 1000), None),
        (facts(10, 10, 10, 10, 1000), (0, 4)),
        (facts(1000, 10, 10, 10, 10, 5000), (0, 5)),  # small ones behind a large one join it
        (facts(300, 300, 300, 1000), (0, 4)),  # a tier, by the ratio
        (facts(500, 400, 300, 1100), (0, 4)),
        (facts(1, 1, 2, 4, 8), (0, 5)),  # each fits to those before it together
        (facts(1, 10, 100, 1000, 10_000, 10**5, 10**6, 10**7), (0, 4)),  # too many, though no tier is full
    ],
)
def test_neighbours_of_similar_size_are_merged(tables: list[TableFacts], chosen: tuple[int, int] | None) -> None:
    choice = choose(tables, POLICY)
    assert (None if choice is None else (choice.first, choice.last)) == chosen


def test_a_table_with_keys_of_others_or_mostly_deletes_is_rewritten_alone() -> None:
    clipped = [TableFacts(10, 10), TableFacts(1000, 10, is_clipped=True)]
    choice = choose(clipped, POLICY)
    assert choice is not None
    assert (choice.first, choice.last, choice.reason) == (1, 2, "clipped")
    deletes = [TableFacts(10, 10, deletes=9), TableFacts(1000, 100, deletes=60)]
    choice = choose(deletes, POLICY)
    assert choice is not None
    assert (choice.first, choice.last, choice.reason) == (1, 2, "deletes")


def chosen_of(tables: list[TableFacts], **how: int) -> tuple[int, int, str] | None:
    choice = choose(tables, POLICY, **how)
    return None if choice is None else (choice.first, choice.last, choice.reason)


def test_deletes_go_with_what_they_hide_when_there_are_many_of_them() -> None:
    objects, puts = TableFacts(1000, 100), TableFacts(30, 3)
    assert chosen_of([TableFacts(10, 50, deletes=50), objects]) is None
    assert chosen_of([TableFacts(10, 51, deletes=51), objects]) == (0, 2, "deletes")
    assert chosen_of([puts, TableFacts(10, 80, deletes=65), objects]) == (1, 3, "deletes"), "what is newer stays"


def test_what_has_expired_goes_down_to_the_oldest_table_and_not_at_once() -> None:
    hour_ms = POLICY.expired_ms_max
    expiring, lasting = TableFacts(10, 10, expires_ms_min=5000), TableFacts(1000, 100)
    assert chosen_of([lasting, expiring, lasting], now_ms=5000 + hour_ms - 1) is None
    assert chosen_of([lasting, expiring, lasting], now_ms=5000 + hour_ms) == (1, 3, "expired")
    rewritten = TableFacts(1000, 105, expires_ms_min=5001 + hour_ms)
    assert chosen_of([lasting, rewritten], now_ms=5001 + 2 * hour_ms - 1) is None, "once in that time at most"


@given(st.lists(st.integers(1, 1000), max_size=200))
def test_merging_always_ends_with_few_tables(sizes: list[int]) -> None:
    """Flush after flush, with all merges that are due: never more than twice the tables that a tier may have."""
    tables: list[TableFacts] = []
    for size in sizes:
        tables.insert(0, TableFacts(size, size))
        for _ in range(100):
            choice = choose(tables, POLICY)
            if choice is None:
                break
            together = sum(table.size_bytes for table in tables[choice.first : choice.last])
            tables[choice.first : choice.last] = [TableFacts(together, together)]
        else:
            raise AssertionError("it goes on and on")
        assert len(tables) < 2 * POLICY.tables_max
