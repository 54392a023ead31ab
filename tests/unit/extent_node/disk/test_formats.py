"""The examples in docs/formats/extent.md are what the code writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk.attributes import Attributes, Doubt, Meta, Seal
from neve.extent_node.disk.block_scan import Scanner
from neve.proto import blocks
from neve.proto.blocks import BlockType
from tests.unit.joined_records import join_records

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "formats" / "extent.md").read_text()


def example(name: str) -> bytes:
    """The bytes of the fenced block with that name on the page."""
    (block,) = re.findall(rf"^```{re.escape(name)}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return bytes.fromhex(block)


CONTENT = example("blocks")
META = Meta(
    extent_id=0x1FF,
    eversion=2,
    incarnation=0x0123456789ABCDEF,
    stream_id=7,
    created_ms=1_700_000_000_000,
    extent_bytes_max=2 << 30,
    node_id=3,
    disk_uuid="c0ffee00-0000-4000-8000-000000000001",
)


def test_the_blocks_of_the_example_are_two_records() -> None:
    parts = [(BlockType.FULL, b"snow"), (BlockType.FIRST, b"ice"), (BlockType.LAST, b"berg")]
    assert b"".join(blocks.encode_block(payload, block_type) for block_type, payload in parts) == CONTENT
    assert blocks.verify(CONTENT) is None
    read = [(ref.type, CONTENT[ref.offset + 8 : ref.end]) for ref in blocks.walk(CONTENT)]
    assert [*join_records(read)] == [b"snow", b"iceberg"]


def test_the_attributes_of_the_example_are_that_replica() -> None:
    seal = Seal(length=35, eversion=3, digest=blocks.extent_digest([CONTENT]))
    state = Attributes(META, token=10, fenced=True, seal=seal, unsynced=True, doubt=Doubt.POWER_CUT)
    values = {name: example(name) for name in attributes.ALL}
    assert attributes.decode_all(values) == state
    assert attributes.encode_all(state) == values


def test_the_index_of_the_example_is_that_of_its_blocks() -> None:
    seal = attributes.decode_seal(example(attributes.SEAL))
    scanner = Scanner()
    scanner.feed(CONTENT)
    assert index.encode(index.from_scan(0x1FF, seal, scanner.finish())) == example("index")
    loaded = index.decode(example("index"), extent_id=0x1FF, seal=seal)
    assert loaded is not None
    assert loaded.offsets.tolist() == [0, 12, 23]


@pytest.mark.parametrize("block_type", BlockType)
def test_the_page_lists_every_block_type(block_type: BlockType) -> None:
    assert f"| {block_type.value} | {block_type.name} |" in PAGE


@pytest.mark.parametrize("doubt", Doubt)
def test_the_page_lists_every_reason_to_doubt(doubt: Doubt) -> None:
    assert f"{doubt.value} {doubt.name}" in PAGE
