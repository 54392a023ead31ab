"""Fields by hand are what the generated code reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neve.proto import records_pb2 as pb
from neve.proto.fields import SMALL, SMALL_MAX, sized, varint


@given(st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, SMALL_MAX, SMALL_MAX + 1, 2**28 - 1, 2**28]))
def test_a_number_is_read_back(number: int) -> None:
    assert pb.NameRecord.FromString(b"\x10" + varint(number)).stream_id == number
    if number <= SMALL_MAX:
        assert SMALL[number] == varint(number)


@given(st.text(max_size=300))
def test_a_text_is_read_back(text: str) -> None:
    assert pb.Label.FromString(b"\x12" + sized(text.encode())).value == text
