"""The blocks of a slice, from nodes: all of them, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neve.pipeline.core.filters import Condition, Filters
from neve.pipeline.core.slices import ScanExtent, Slice
from neve.pipeline.scan.block_runs import Run, SliceReader, Wanted
from neve.pipeline.scan.local_files import LocalDisks
from neve.proto import blocks, common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ReplicaMissing

SIZES = [20, 30, 10, 40]  # of the blocks, with headers
LENGTH = sum(SIZES)
INFO = sm.ExtentInfo(
    extent_id=5,
    replicas=[sm.ExtentReplica(replica=common_pb2.Replica(node_id=1), address="h:1")],
    seal=common_pb2.Seal(length=LENGTH),
)


class NodeLink:
    """To a node that answers ReadIndex with some blocks at a time, or as it is told to."""

    def __init__(
        self, per_page: int = 2, wrong: tuple[en.ReadIndexReply, int] | None = None, data: bytes = b""
    ) -> None:
        self.per_page = per_page
        self.wrong = wrong
        self.data = data

    def run(self, answer: Any) -> Any:
        return answer

    def ask_replicas(
        self, info: Any, method: Any, request: en.ReadIndexRequest
    ) -> tuple[en.ReadIndexReply, bytes, Any]:
        offsets = np.cumsum(SIZES) - SIZES
        numbers = [n for n, at in enumerate(offsets) if request.start <= at < request.end]
        taken = numbers[: self.per_page]
        reply = en.ReadIndexReply(seal=INFO.seal, blocks=len(taken), more=len(taken) < len(numbers))
        if taken:
            reply.first_offset = int(offsets[taken[0]])
        if self.wrong is not None:
            reply, count = self.wrong
            taken = taken[:count]
        sizes = np.array([SIZES[number] for number in taken], dtype="<u4").tobytes()
        return reply, sizes + bytes([1] * len(taken)), None

    def ask_node(self, address: str, method: Any, request: Any) -> tuple[en.ReadBlockReply, bytes]:
        return en.ReadBlockReply(), self.data


def read(link: Any, piece: Slice, *tests: Condition) -> list[tuple[int, bool]]:
    wanted = Wanted(crc=not piece.extent.sealed, payload=False, batch_rows=10, batch_bytes=100, filters=Filters(tests))
    runs: list[Run] = list(SliceReader(link, LocalDisks((), "c"), wanted).runs(piece))
    return [
        (int(offset), run.crc_ok is None or bool(run.crc_ok[at]))
        for run in runs
        for at, offset in enumerate(run.offsets)
    ]


def slice_of(start: int, end: int, *, sealed: bool = True, node_id: int = 0) -> Slice:
    return Slice(ScanExtent(5, 1, LENGTH, sealed, INFO.SerializeToString()), start, end, node_id)


@pytest.mark.parametrize("per_page", [1, 2, 9])
def test_every_block_that_begins_in_a_slice_is_given_once(per_page: int) -> None:
    link = NodeLink(per_page)
    for cut in range(1, LENGTH):
        both = read(link, slice_of(0, cut)) + read(link, slice_of(cut, LENGTH))
        assert [offset for offset, _ in both] == [0, 20, 50, 60]


@pytest.mark.parametrize(
    ("reply", "count"),
    [
        (en.ReadIndexReply(seal=INFO.seal, blocks=0, more=True), 0),  # it says that there are more, and gives none
        (en.ReadIndexReply(seal=INFO.seal, blocks=0), 0),  # of a slice in which a block begins
        (en.ReadIndexReply(seal=INFO.seal, blocks=2), 2),  # all there are, and they do not reach the end
        (en.ReadIndexReply(seal=INFO.seal, blocks=2, first_offset=LENGTH), 2),  # beyond the slice
        (en.ReadIndexReply(seal=common_pb2.Seal(length=9), blocks=2), 2),  # of another seal
        (en.ReadIndexReply(seal=INFO.seal, blocks=3), 2),  # cut short
    ],
)
def test_t36_an_index_that_lacks_blocks_is_an_error(reply: en.ReadIndexReply, count: int) -> None:
    with pytest.raises(ReplicaMissing):
        read(NodeLink(wrong=(reply, count)), slice_of(0, LENGTH))


def test_the_damaged_block_of_an_open_replica_is_a_row_that_filters_apply_to() -> None:
    data = b"".join(blocks.encode_blocks([b"sound", b"spoilt"]).buffers)
    spoilt = data[:-1] + bytes([data[-1] ^ 1])
    piece = slice_of(0, len(data), sealed=False, node_id=1)
    assert read(NodeLink(data=data), piece) == [(0, True), (13, True)]
    assert read(NodeLink(data=spoilt), piece) == [(0, True), (13, False)]
    assert read(NodeLink(data=spoilt), piece, Condition("type", "EqualTo", (1,))) == [(0, True)]
    assert read(NodeLink(data=spoilt), piece, Condition("offset", "LessThan", (13,))) == [(0, True)]
