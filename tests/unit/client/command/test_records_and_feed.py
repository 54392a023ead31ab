"""Input becomes records and records become output, whole and in order; reading waits in a thread, not on the loop."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.command import records
from neve.client.command.feed import Feed
from neve.client.streams.types import Position, Record


@given(st.binary(max_size=500))
def test_lines_joined_again_are_the_input(content: bytes) -> None:
    lines = list(records.cut_lines(io.BytesIO(content)))
    assert b"\n".join(lines) + (b"\n" if content.endswith(b"\n") else b"") == content
    assert not any(b"\n" in line for line in lines)


@given(st.binary(max_size=500), st.integers(min_value=1, max_value=50))
def test_pieces_joined_again_are_the_input(content: bytes, size_bytes: int) -> None:
    pieces = list(records.cut_pieces(io.BytesIO(content), size_bytes))
    assert b"".join(pieces) == content
    assert all(len(piece) == size_bytes for piece in pieces[:-1])
    assert list(records.cut_nothing(io.BytesIO(content))) == [content]


def test_a_pipe_that_gives_little_at_a_time_is_read_to_full_records() -> None:
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(3, size if size is not None and size >= 0 else 3))

    assert list(records.cut_pieces(Dripping(b"0123456789"), 4)) == [b"0123", b"4567", b"89"]


def test_a_record_that_is_too_large_is_refused_and_says_where() -> None:
    with pytest.raises(records.RecordTooLarge, match="line 2 is longer than 4 bytes"):
        list(records.cut_lines(io.BytesIO(b"ab\nabcde\n"), bytes_max=4))
    assert list(records.cut_lines(io.BytesIO(b"abcd\n"), bytes_max=4)) == [b"abcd"]
    with pytest.raises(records.RecordTooLarge, match="larger than 4 bytes"):
        list(records.cut_nothing(io.BytesIO(b"abcde"), bytes_max=4))


def test_records_are_shown_as_text_raw_hex_and_json() -> None:
    record = Record(Position(7, 16), b"n\xc3\xa9v\xc3\xa9", Position(7, 30))
    assert records.encode(record, "text", with_position=False) == b"n\xc3\xa9v\xc3\xa9\n"
    assert records.encode(record, "raw", with_position=False) == b"n\xc3\xa9v\xc3\xa9"
    assert records.encode(record, "hex", with_position=True) == b"7:16\t6ec3a976c3a9\n"
    value = json.loads(records.encode(record, "json", with_position=False))
    assert value == {"position": "7:16", "next": "7:30", "payload": "névé"}
    binary = Record(Position(7, 16), b"\xff\x00", Position(7, 30))
    assert json.loads(records.encode(binary, "json", with_position=False))["payload_base64"] == "/wA="


async def test_a_feed_gives_everything_in_order_within_its_bound() -> None:
    held = 0
    most = 0

    def produce() -> Iterator[bytes]:
        nonlocal held, most
        for number in range(2_000):
            held += 1
            most = max(most, held)
            yield b"%d" % number

    got: list[bytes] = []
    async for batch in Feed(produce(), bytes_max=100).batches():
        got += batch
        held -= len(batch)
        await asyncio.sleep(0)
    assert got == [b"%d" % number for number in range(2_000)]
    assert most < 100


async def test_a_feed_passes_the_error_of_its_source_on_behind_the_records_before_it() -> None:
    def produce() -> Iterator[bytes]:
        yield b"a"
        raise OSError(5, "Input/output error")

    got: list[bytes] = []

    async def take_all() -> None:
        async for batch in Feed(produce()).batches():
            got.extend(batch)

    with pytest.raises(OSError, match="Input/output"):
        await take_all()
    assert got == [b"a"]


async def test_a_feed_gives_what_came_while_its_source_waits() -> None:
    """As a keyboard: the second line comes only after the first was taken."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as keyboard:
        keyboard.write(b"first\n")
        got: list[bytes] = []
        async for batch in Feed(records.cut_lines(source)).batches():
            got += batch
            if got == [b"first"]:
                keyboard.write(b"second\n")
            if got == [b"first", b"second"]:
                keyboard.close()
        assert got == [b"first", b"second"]


async def test_an_empty_source_ends_at_once() -> None:
    assert [batch async for batch in Feed(iter(())).batches()] == []
