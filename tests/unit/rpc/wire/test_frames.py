"""Frames and the receiver, without sockets: whatever comes, in whatever pieces, only sound frames go on."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.proto.crc import crc32c
from neve.proto.errors import ProtocolViolation
from neve.rpc.limits import KIB
from neve.rpc.wire.buffers import STREAM_CHUNK_BYTES, ChunkPool
from neve.rpc.wire.frame import OWN_CHECKSUMS, PRELUDE_BYTES, Kind, Prelude, encode, encode_reply, encode_request
from neve.rpc.wire.receiver import ATTACHMENT_COPY_BYTES_MAX, FrameReceiver

Frame = tuple[int, int, bytes, bytes]  # kind, call id, message, attachment


def encoded(frame: Frame) -> bytes:
    kind, call_id, message, attachment = frame
    head = encode(
        Kind(kind), call_id=call_id, message=message, attachment=[attachment], attachment_bytes=len(attachment)
    )
    return head + attachment


class Sink:
    """A receiver that keeps what it is given, and holds on to the attachments' views."""

    def __init__(self, *, message_bytes_max: int = 1 << 20, attachment_bytes_max: int = 4 << 20) -> None:
        self.frames: list[tuple[Prelude, bytes, memoryview]] = []
        self.pool = ChunkPool()
        self.receiver = FrameReceiver(
            self.pool,
            message_bytes_max=message_bytes_max,
            attachment_bytes_max=attachment_bytes_max,
            on_frame=lambda prelude, message, attachment: self.frames.append((prelude, bytes(message), attachment)),
        )

    def feed(self, data: bytes, rng: random.Random, piece_bytes_max: int) -> None:
        position = 0
        while position < len(data):
            buffer = self.receiver.buffer()
            assert len(buffer) > 0
            count = min(len(buffer), rng.randint(1, piece_bytes_max), len(data) - position)
            buffer[:count] = data[position : position + count]
            position += count
            self.receiver.received(count)

    def seen(self) -> list[Frame]:
        return [(p.kind, p.call_id, message, bytes(attachment)) for p, message, attachment in self.frames]


frames = st.tuples(
    st.sampled_from([int(kind) for kind in Kind]),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=300),
    st.one_of(
        st.just(b""),
        st.binary(max_size=300),
        st.integers(1, 700 * KIB).map(lambda size: random.Random(size).randbytes(size)),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(frames, max_size=12), st.integers(0, 2**32), st.sampled_from([1_000, 70_000, 2_000_000]))
def test_frames_arrive_as_sent_in_whatever_pieces(sent: list[Frame], seed: int, piece_bytes_max: int) -> None:
    sink = Sink()
    sink.feed(b"".join(map(encoded, sent)), random.Random(seed), piece_bytes_max)
    # Compared only at the end: views handed out early must not have been overwritten by later frames.
    assert sink.seen() == sent
    assert sink.receiver.partial_bytes == 0


def test_frames_arrive_as_sent_byte_by_byte() -> None:
    sent: list[Frame] = [
        (Kind.REQUEST, 7, b"message", b"attachment"),
        (Kind.BEAT, 0, b"", b""),
        (Kind.REPLY, 1, b"", b"x"),
    ]
    sink = Sink()
    sink.feed(b"".join(map(encoded, sent)), random.Random(0), 1)
    assert sink.seen() == sent


def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    """No bit of a frame can be flipped so that other content is handed on."""
    sent: Frame = (Kind.REQUEST, 7, b"a message", b"an attachment")
    data = encoded(sent)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            sink = Sink()
            with pytest.raises(ProtocolViolation):
                sink.feed(bytes(flipped), random.Random(0), len(data))
            assert sink.frames == []


def test_every_flipped_bit_of_a_reply_with_checksums_of_its_own_is_refused_or_is_in_its_attachment() -> None:
    """The attachment's bits are for the caller to check; prelude and message are covered as always."""
    message, attachment = b"a message", b"has checksums inside"
    head = encode(
        Kind.REPLY,
        call_id=7,
        message=message,
        attachment=[attachment],
        attachment_bytes=len(attachment),
        own_checksums=True,
    )
    data = head + attachment
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            sink = Sink()
            if position < len(head):
                with pytest.raises(ProtocolViolation):
                    sink.feed(bytes(flipped), random.Random(0), len(data))
                assert sink.frames == []
            else:
                sink.feed(bytes(flipped), random.Random(0), len(data))
                assert sink.seen() == [(Kind.REPLY, 7, message, bytes(flipped[len(head) :]))]


@pytest.mark.parametrize(
    ("kind", "flags", "attachment_crc", "sound"),
    [
        (Kind.REPLY, OWN_CHECKSUMS, 0, True),
        (Kind.REPLY, OWN_CHECKSUMS, 1, False),  # says twice what it has, and differently
        (Kind.REPLY, 0, 0, False),  # claims nothing, and is not covered
        (Kind.REPLY, 0x02, 0, False),
        (Kind.REPLY, OWN_CHECKSUMS | 0x80, 0, False),
        *((kind, OWN_CHECKSUMS, 0, False) for kind in Kind if kind != Kind.REPLY),  # above all no request
    ],
)
def test_only_a_reply_may_leave_its_attachment_to_the_caller(
    kind: Kind, flags: int, attachment_crc: int, sound: bool
) -> None:
    fields = struct.pack("<IIQHBBIII", 4, 0, 7, 1, kind, flags, 0, 0, attachment_crc)
    data = fields + struct.pack("<I", crc32c(fields)) + b"snow"
    sink = Sink()
    if sound:
        sink.feed(data, random.Random(0), len(data))
        assert sink.seen() == [(kind, 7, b"", b"snow")]
    else:
        with pytest.raises(ProtocolViolation):
            sink.feed(data, random.Random(0), len(data))
        assert sink.frames == []


def test_a_frame_cut_at_any_byte_is_not_handed_on() -> None:
    data = encoded((Kind.REQUEST, 7, b"a message", b"an attachment"))
    for length in range(len(data)):
        sink = Sink()
        sink.feed(data[:length], random.Random(0), len(data))
        assert sink.frames == []
        assert sink.receiver.partial_bytes == length


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=PRELUDE_BYTES, max_size=400))
def test_arbitrary_bytes_are_a_violation(data: bytes) -> None:
    sink = Sink()
    with pytest.raises(ProtocolViolation):
        sink.feed(data, random.Random(0), len(data))
    assert sink.frames == []


@pytest.mark.parametrize(("message_bytes", "attachment_bytes"), [(1001, 0), (0, 2001)])
def test_an_announced_size_over_the_limit_is_refused_before_any_of_it_comes(
    message_bytes: int, attachment_bytes: int
) -> None:
    data = encoded((Kind.REQUEST, 1, bytes(message_bytes), bytes(attachment_bytes)))
    sink = Sink(message_bytes_max=1000, attachment_bytes_max=2000)
    with pytest.raises(ProtocolViolation, match="is over"):
        sink.feed(data[:PRELUDE_BYTES], random.Random(0), PRELUDE_BYTES)


def test_a_frame_that_is_not_admitted_takes_no_memory_until_it_is() -> None:
    data = encoded((Kind.REQUEST, 1, b"m", bytes(3 << 20)))
    room = [False]
    seen: list[int] = []
    pool = ChunkPool()
    receiver = FrameReceiver(
        pool,
        message_bytes_max=1000,
        attachment_bytes_max=4 << 20,
        on_frame=lambda prelude, message, attachment: seen.append(len(attachment)),
        admit=lambda size_bytes: room[0],
    )
    buffer = receiver.buffer()
    count = min(len(buffer), len(data))
    buffer[:count] = data[:count]
    receiver.received(count)
    assert receiver.held
    assert len(receiver._chunk) == STREAM_CHUNK_BYTES  # nothing was taken for the announced 3 MiB
    assert not receiver.resume()
    room[0] = True
    assert receiver.resume()
    while count < len(data):
        buffer = receiver.buffer()
        more = min(len(buffer), len(data) - count)
        buffer[:more] = data[count : count + more]
        count += more
        receiver.received(more)
    assert seen == [3 << 20]


def test_a_chunk_is_not_used_again_while_a_view_of_it_is_held() -> None:
    pool = ChunkPool()
    chunk = pool.take(1000)
    view = memoryview(chunk)[10:20]
    first_id = id(chunk)
    pool.give(chunk)
    del chunk
    other = pool.take(1000)
    assert id(other) != first_id
    del view
    pool.give(other)
    del other
    again = [pool.take(1000), pool.take(1000)]
    assert first_id in {id(chunk) for chunk in again}


def test_the_chunk_for_small_frames_is_used_again_unless_a_view_of_it_is_held() -> None:
    pool = ChunkPool()
    chunk = pool.take_stream()
    first_id = id(chunk)
    pool.give_stream(chunk)
    del chunk
    chunk = pool.take_stream()
    assert id(chunk) == first_id
    view = memoryview(chunk)[5:6]
    pool.give_stream(chunk)
    del chunk
    other = pool.take_stream()
    assert id(other) != first_id
    del view
    assert first_id in {id(pool.take_stream()), id(pool.take(STREAM_CHUNK_BYTES))}  # it went to the others


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = ChunkPool(bytes_max=1 << 20)
    for size_kib in (64, 128, 256, 512, 1024, 2048) * 5:
        pool.give(bytearray(size_kib * KIB))
        assert pool._bytes <= 1 << 20
        assert pool._bytes == sum(len(chunk) for chunks in pool._by_size.values() for chunk in chunks)


def test_a_small_attachment_does_not_pin_its_chunk() -> None:
    sink = Sink()
    sink.feed(encoded((Kind.REQUEST, 1, b"m", bytes(ATTACHMENT_COPY_BYTES_MAX))), random.Random(0), 1 << 20)
    (_, _, attachment) = sink.frames[0]
    assert isinstance(attachment.obj, bytes)
    sink.feed(encoded((Kind.REQUEST, 2, b"m", bytes(ATTACHMENT_COPY_BYTES_MAX + 1))), random.Random(0), 1 << 20)
    (_, _, large) = sink.frames[1]
    assert isinstance(large.obj, bytearray)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_reply_without_an_attachment_is_the_same_frame_by_the_shorter_way(call_id: int, message: bytes) -> None:
    assert encode_reply(call_id, message) == encode(Kind.REPLY, call_id=call_id, message=message)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**33),
    st.binary(max_size=300),
    st.binary(max_size=300),
)
def test_a_request_is_the_same_frame_by_the_shorter_way(
    call_id: int, method_id: int, timeout_ms: int, message: bytes, attachment: bytes
) -> None:
    size_bytes, crc = len(attachment), crc32c(attachment)
    assert encode_request(call_id, method_id, timeout_ms, message, size_bytes, crc) == encode(
        Kind.REQUEST,
        call_id=call_id,
        method_id=method_id,
        timeout_ms=timeout_ms,
        message=message,
        attachment=[attachment],
        attachment_bytes=size_bytes,
    )


def test_a_checksum_of_an_attachment_that_is_not_there_is_refused() -> None:
    head = encode(Kind.REQUEST, call_id=1, method_id=2, message=b"m", attachment_crc=7)
    with pytest.raises(ProtocolViolation, match="attachment checksum"):
        Sink().feed(head, random.Random(0), 1000)
