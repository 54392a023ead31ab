"""The examples in docs/formats/journal.md are what the code writes and reads."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from neve.extent_node.journal.folder import JournalLabel
from neve.extent_node.journal.format import (
    FIRST_POSITION,
    Entry,
    SegmentHeader,
    crc_seed,
    decode_header,
    encode_end,
    encode_header,
    encode_records,
    lsn_of,
    scan_segment,
    walk_records,
)
from neve.proto.blocks import encode_block

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "formats" / "journal.md").read_text()
UUID = uuid.UUID("c0ffee00-0000-4000-8000-00000000000a").bytes
SEED = crc_seed(UUID)


def example(name: str) -> bytes:
    """The bytes of the fenced block with that name on the page."""
    (block,) = re.findall(rf"^```{re.escape(name)}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return bytes.fromhex(block)


HEADER, RECORD, END = example("segment header"), example("record"), example("end")
SEGMENT = HEADER.ljust(FIRST_POSITION, b"\0") + RECORD + END + bytes(500)


def test_the_header_of_the_example_is_that_segments() -> None:
    header = SegmentHeader(number=7, needed_from=lsn_of(5, 0))
    assert encode_header(header, UUID) == HEADER
    assert decode_header(HEADER, UUID) == header
    assert decode_header(HEADER, bytes(16)) is None


def test_the_records_of_the_example_are_one_append_and_the_end() -> None:
    block = encode_block(b"snow")
    appended = Entry(
        holder="replica",
        disk=int.from_bytes(bytes.fromhex("c0ffee0000004000"), "little"),
        extent_id=0x1FF,
        incarnation=0x0123456789ABCDEF,
        offset=35,
        payload=[block],
        payload_bytes=len(block),
    )
    place = FIRST_POSITION + len(RECORD)
    made, taken, end_position = encode_records(
        [appended],
        seed=SEED,
        position=FIRST_POSITION,
        segment_number=7,
        durable_through=lsn_of(6, 0x13F0),
        needed_from=lsn_of(5, 0),
        position_max=place,
    )
    assert (b"".join(made), taken, end_position) == (RECORD, 1, place)
    promise = lsn_of(7, place)
    end = encode_end(seed=SEED, position=place, segment_number=7, durable_through=promise, needed_from=lsn_of(5, 0))
    assert end == END
    append, last = walk_records(SEGMENT, 7, SEED)
    assert (append.extent_id, append.offset, append.payload_bytes, append.is_end) == (0x1FF, 35, 12, False)
    assert SEGMENT[append.payload_position :][:12] == encode_block(b"snow")
    assert last.is_end


def test_the_segment_of_the_example_is_whole_and_ended() -> None:
    scan = scan_segment(SEGMENT, UUID)
    assert (scan.number, scan.records, scan.ended) == (7, 2, True)
    assert scan.durable_through == lsn_of(7, FIRST_POSITION + len(RECORD))


def test_the_page_lists_every_field_of_the_label() -> None:
    label = JournalLabel(str(uuid.UUID(bytes=UUID)), "c", 1, 1 << 20, 2, 1)
    for field in label.fields():
        assert re.search(rf"^\|.*\b{field}\b.* \|", PAGE, flags=re.MULTILINE), field
