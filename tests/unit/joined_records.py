"""The records that blocks make, for tests that look into extents themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neve.proto.blocks import BlockType


def join_records(parts: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Of (type, payload) blocks in their order. Asserts that they are whole records."""
    record: list[bytes] = []
    for block_type, payload in parts:
        assert (block_type in (BlockType.FULL, BlockType.FIRST)) is not bool(record), BlockType(block_type).name
        record.append(payload)
        if block_type in (BlockType.FULL, BlockType.LAST):
            yield b"".join(record)
            record.clear()
    assert not record, "the last record has no LAST block"
