"""Requests joined from parts are what protobuf would have made of the whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neve.client.streams.core.batch import Batch
from neve.client.streams.sending.append_frame import CRC_JOIN_BYTES_MIN, Attachments, attachment_of
from neve.client.streams.sending.segment_codec import PlaceEncoder, encode_committed, encode_place, join_segment
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_blocks
from neve.proto.common_pb2 import Replica
from neve.proto.crc import crc32c

U64 = st.integers(0, 2**64 - 1)

OWNERS = st.builds(
    pb.Segment,
    extent_id=U64,
    replica=st.builds(Replica, node_id=U64, disk_uuid=st.text(max_size=40), incarnation=U64),
    eversion=U64,
    token=U64,
    no_sync=st.booleans(),
)


def batch_of(block_sizes: list[int], offset: int) -> Batch:
    batch = Batch([bytes(sum(block_sizes))], block_sizes, sum(block_sizes), None, None, 0)
    batch.offset = offset
    return batch


@given(
    owners=st.lists(OWNERS, min_size=1, max_size=3),
    sizes=st.lists(st.lists(st.integers(8, 1 << 24), min_size=1, max_size=60), min_size=1, max_size=3),
    offset=st.integers(0, 1 << 40),
    committed=st.lists(U64, min_size=1, max_size=3),
)
def test_a_request_of_joined_segments_is_the_message_with_their_content(
    owners: list[pb.Segment], sizes: list[list[int]], offset: int, committed: list[int]
) -> None:
    batches, at = [], offset
    for each in sizes:
        batches.append(batch_of(each, at))
        at += sum(each)
    places = PlaceEncoder()
    joined, wanted = [], []
    for owner in owners:
        for value in committed:
            joined.append(join_segment(owner.SerializeToString(), places.encode(batches, value)))
            whole = pb.Segment()
            whole.CopyFrom(owner)
            whole.offset, whole.committed = offset, value
            whole.block_sizes.extend(size for each in sizes for size in each)
            wanted.append(whole)
    assert pb.AppendBlockRequest.FromString(b"".join(joined)) == pb.AppendBlockRequest(segments=wanted)


BOUNDARIES = [(1 << bits) + step for bits in range(0, 64, 7) for step in (-1, 0, 1) if bits or step >= 0]
NUMBERS = st.sampled_from([0, *BOUNDARIES, (1 << 64) - 1]) | U64


@given(NUMBERS, NUMBERS | st.none(), st.lists(st.integers(0, (1 << 32) - 1), max_size=3))
@example(0, 5, [1032])
@example(5, 0, [1032])
@example(0, None, [0])
def test_a_place_has_the_bytes_that_generated_code_gives_it(
    offset: int, committed: int | None, block_sizes: list[int]
) -> None:
    """None: as much as stands before it, as when each append is awaited."""
    committed = offset if committed is None else committed
    segment = pb.Segment(offset=offset, committed=committed, block_sizes=block_sizes)
    assert encode_place(offset, committed, block_sizes) == segment.SerializeToString()


@pytest.mark.parametrize("number", [*BOUNDARIES, (1 << 64) - 1])
def test_numbers_of_every_length_are_encoded_as_generated_code_does(number: int) -> None:
    for offset, committed in ((number, number), (number, 300), (300, number)):
        segment = pb.Segment(offset=offset, committed=committed, block_sizes=[1032])
        assert encode_place(offset, committed, (1032,)) == segment.SerializeToString()


def test_what_is_kept_for_the_next_replica_is_bounded() -> None:
    places = PlaceEncoder()
    small, large = batch_of([1032] * 1000, 0), batch_of([9] * 100_000, 1032 * 1000)
    kept = places.encode([small], 5)
    assert places.encode([small], 5) is kept
    assert pb.Segment.FromString(places.encode([large], 5)).block_sizes == [9] * 100_000
    assert places.encode([small], 5) is kept


@given(owner=OWNERS, committed=U64)
def test_committed_alone_is_a_segment_without_a_place(owner: pb.Segment, committed: int) -> None:
    joined = join_segment(owner.SerializeToString(), encode_committed(committed))
    (segment,) = pb.AppendBlockRequest.FromString(joined).segments
    owner.committed = committed
    assert segment == owner


@given(
    st.lists(
        st.sampled_from([1, 100, 1000, 20_000, CRC_JOIN_BYTES_MIN, 140_000, 200_001]).flatmap(
            lambda size_bytes: st.lists(st.just(size_bytes), min_size=1, max_size=3)
        ),
        max_size=4,
    )
)
def test_the_checksum_of_a_frame_is_that_of_its_bytes_however_it_is_put_together(frames: list[list[int]]) -> None:
    batches = []
    for number, sizes in enumerate(frames):
        payloads = [bytes((number + at) % 251 for at in range(97)) * (size // 97 + 1) for size in sizes]
        encoded = encode_blocks([payload[:size] for payload, size in zip(payloads, sizes, strict=True)])
        batches.append(Batch(encoded.buffers, encoded.block_sizes, encoded.size_bytes, None, None, 0))
    whole = b"".join(bytes(buffer) for batch in batches for buffer in batch.buffers)
    buffers, crc = attachment_of(batches)
    assert b"".join(map(bytes, buffers)) == whole
    assert crc == crc32c(whole)
    for batch in batches:
        if len(batch.block_sizes) > 1:
            for part in batch.split(1):
                assert part.crc32c == crc32c(b"".join(bytes(buffer) for buffer in part.buffers))


def test_the_attachment_of_the_last_frame_is_used_again_for_the_same_batches_alone() -> None:
    first, second, third = (Batch([bytes((number,)) * 9], [9], 9, None, None, 0) for number in range(3))
    attachments = Attachments()
    joined = attachments.of([first, second])
    assert attachments.of([first, second]) is joined
    for others in ([first], [second, first], [first, third], [first, second, third], []):
        assert attachments.of(others) == attachment_of(others)
        assert attachments.of([first, second]) == joined
