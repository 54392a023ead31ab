"""Messages written from a table of fields are what the generated code reads."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from neve.proto import field_tables
from neve.proto import records_pb2 as pb
from neve.proto.field_tables import Field, GrowingLists
from neve.proto.fields import varint


class Sample(NamedTuple):
    stream_id: int
    name: str
    extent_ids: tuple[int, ...]
    sealed: bool
    labels: tuple[tuple[str, str], ...]
    after_hole: tuple[int, ...]


FIELDS = (
    Field("stream_id", field_tables.number, stored=2, shown=1),
    Field("name", field_tables.text, stored=3),
    Field("extent_ids", field_tables.growing, stored=5, read=lambda record: tuple(record.extent_ids)),
    Field("sealed", field_tables.flag, stored=6),
    Field(
        "labels",
        field_tables.text_pairs,
        stored=8,
        read=lambda record: tuple((label.key, label.value) for label in record.labels),
    ),
    Field("young", field_tables.messages(lambda extent: extent.SerializeToString()), stored=12),
    Field("after_hole", field_tables.packed, stored=15, read=lambda record: tuple(record.after_hole)),
)
numbers = st.integers(0, 2**64 - 1)
samples = st.builds(
    Sample,
    numbers,
    st.text(max_size=200),
    st.lists(numbers, max_size=20).map(tuple),
    st.booleans(),
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple),
    st.lists(numbers, max_size=3).map(tuple),
)


@given(samples, st.lists(numbers, max_size=3))
def test_what_a_table_writes_is_what_the_generated_code_reads(sample: Sample, young: list[int]) -> None:
    encode = field_tables.encoder(FIELDS, "stored", given="young")
    record = pb.StreamRecord.FromString(encode(sample, [pb.ExtentRecord(extent_id=each) for each in young]))
    assert Sample(**field_tables.decoder(FIELDS, given="young")(record)) == sample
    assert [extent.extent_id for extent in record.young] == young


@given(samples)
def test_a_message_has_the_fields_of_its_column_only(sample: Sample) -> None:
    shown = field_tables.encoder(FIELDS, "shown")(sample)
    assert shown == (b"\x08" + varint(sample.stream_id) if sample.stream_id else b"")


def test_the_lists_that_are_kept_are_bounded_by_what_they_hold() -> None:
    lists = GrowingLists(numbers_max=100)
    grown: tuple[int, ...] = ()
    for number in range(1, 400):
        grown = (*grown, number)
        assert lists.encode(grown) == b"".join(map(varint, grown))
        assert lists._numbers == sum(len(found) for found, _ in lists._found.values())
        assert lists.encode((number + 1000, 6)) == varint(number + 1000) + b"\x06"
        assert lists._numbers <= 100 + len(grown) + 2
        if number % 50 == 0:
            grown = grown[40:]
