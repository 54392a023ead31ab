"""Many blocks at a time say the same of each block as `verify_block` does of one."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neve.pipeline.scan import block_arrays
from neve.pipeline.scan.block_arrays import check
from neve.proto.blocks import HEADER_BYTES, BlockType, encode_block, verify_block

payloads = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.integers(0, 30).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=30)),
    st.just([bytes([number]) * 9000 for number in range(5)]),
    st.just([bytes([number]) * (9000 + number) for number in range(5)]),
)


@given(payloads, st.data())
def test_crcs_and_payloads_are_those_of_each_block(chosen: list[bytes], data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(BlockType)), min_size=len(chosen), max_size=len(chosen)))
    blocks = [encode_block(payload, kind) for payload, kind in zip(chosen, types, strict=True)]
    sizes = np.array([len(block) for block in blocks], dtype=np.int64)
    offsets = sizes.cumsum() - sizes
    view = bytearray(b"".join(blocks))
    for at in data.draw(st.lists(st.integers(0, len(view) - 1), max_size=3)):
        view[at] ^= data.draw(st.sampled_from([1, 16, 128]))
    sound = [
        verify_block(memoryview(view)[offset : offset + size]) is None
        and len(view[offset : offset + size]) == HEADER_BYTES + int.from_bytes(view[offset + 4 : offset + 7], "little")
        for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
    ]
    at_a_time = data.draw(st.sampled_from([1, 64, block_arrays.OBJECTS_BYTES]))
    with mock.patch.object(block_arrays, "OBJECTS_BYTES", at_a_time):
        found = check(memoryview(view), offsets, sizes, np.array(types, dtype=np.uint8), payload=True)
    assert found.crc_ok.tolist() == sound
    assert found.payloads is not None
    assert found.payloads.to_pylist() == [p if ok else None for p, ok in zip(chosen, sound, strict=True)]
    assert check(memoryview(view), offsets, sizes, np.array(types, dtype=np.uint8), payload=False).payloads is None
