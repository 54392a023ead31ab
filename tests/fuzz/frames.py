"""Fuzz the frame decoder with atheris, guided by coverage.

    make fuzz
    python -m tests.fuzz.frames -max_total_time=60        options are libFuzzer's; a crash leaves its input in a file

Whatever the bytes and however they are cut into pieces: every frame that is handed on was encoded as such, everything
else is a ProtocolViolation, and no other exception escapes.
"""

from __future__ import annotations

import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["neve.rpc.wire"]):
    from neve.proto.errors import ProtocolViolation
    from neve.rpc.wire.buffers import ChunkPool
    from neve.rpc.wire.frame import Kind, encode
    from neve.rpc.wire.receiver import FrameReceiver


def one_input(data: bytes) -> None:
    source = atheris.FuzzedDataProvider(data)
    stream = b""
    sent: list[bytes] = []
    for _ in range(source.ConsumeIntInRange(0, 3)):  # some sound frames, so that the fuzzer need not guess a CRC
        message = source.ConsumeBytes(source.ConsumeIntInRange(0, 50))
        attachment = source.ConsumeBytes(source.ConsumeIntInRange(0, 50))
        sent.append(message + attachment)
        stream += encode(
            Kind.REQUEST, call_id=1, message=message, attachment=[attachment], attachment_bytes=len(attachment)
        )
        stream += attachment
    damaged = bytearray(stream)
    if damaged and source.ConsumeBool():
        damaged[source.ConsumeIntInRange(0, len(damaged) - 1)] ^= 1 << source.ConsumeIntInRange(0, 7)
    untouched = bytes(damaged) == stream
    damaged += source.ConsumeBytes(source.ConsumeIntInRange(0, 100))
    pieces = source.ConsumeIntListInRange(8, 1, 200)

    seen: list[bytes] = []
    receiver = FrameReceiver(
        ChunkPool(),
        message_bytes_max=1000,
        attachment_bytes_max=1000,
        on_frame=lambda prelude, message, attachment: seen.append(bytes(message) + bytes(attachment)),
    )
    position = turn = 0
    try:
        while position < len(damaged):
            buffer = receiver.buffer()
            count = min(len(buffer), pieces[turn % len(pieces)], len(damaged) - position)
            buffer[:count] = damaged[position : position + count]
            position += count
            turn += 1
            receiver.received(count)
    except ProtocolViolation:
        pass
    if seen != sent[: len(seen)]:
        raise AssertionError(f"handed on what was not sent: {seen!r} instead of {sent!r}")
    if untouched and len(seen) < len(sent):
        raise AssertionError("sound frames were not handed on")


def main(arguments: list[str]) -> Any:
    atheris.Setup(arguments, one_input)
    return atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
