"""Log records are what was written, and nothing else passes for one; the examples of docs/formats/log.md are right."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.partition_server.engine.entry import DELETE, PUT, Entry, Part, encode_parts
from neve.partition_server.log import log_format
from neve.partition_server.log.log_format import BadRecord, BatchDelete, BatchPut, Caller, Kind, decode
from neve.proto.crc import crc32c
from neve.proto.errors import UnsupportedVersion

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "log.md").read_text()

KEYS = st.binary(min_size=1, max_size=4096)
VALUES = st.binary(max_size=200)
NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
CALLERS = st.builds(Caller, NUMBERS, NUMBERS, NUMBERS)
PARTS = st.lists(
    st.builds(Part, NUMBERS, NUMBERS, st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1)), max_size=5
).map(tuple)


def shown(entry: Entry) -> tuple[object, ...]:
    value = entry.data[entry.value_at : entry.value_at + entry.size_bytes] if entry.parts is None else entry.parts
    fields = (entry.key, entry.kind, entry.seq, entry.version, entry.modified_ms, entry.expires_ms, entry.crc)
    return (*fields, entry.size_bytes, value)


@given(key=KEYS, value=VALUES, seq=NUMBERS, caller=CALLERS, modified_ms=NUMBERS, expires_ms=NUMBERS)
def test_a_put_reads_back(
    key: bytes, value: bytes, seq: int, caller: Caller, modified_ms: int, expires_ms: int
) -> None:
    crc = crc32c(value)
    data, entry = log_format.encode_put(
        key, value, seq=seq, caller=caller, modified_ms=modified_ms, expires_ms=expires_ms, crc=crc
    )
    record = decode(data)
    assert [shown(each) for each in record.entries] == [shown(entry)]
    assert shown(entry) == (key, PUT, seq, seq, modified_ms, expires_ms, crc, len(value), value)
    assert Caller(record.client_id, record.call_id, record.completed_below) == caller
    assert (record.kind, record.seq, record.modified_ms) == (Kind.PUT, seq, modified_ms)


@given(key=KEYS, parts=PARTS, seq=NUMBERS, version=NUMBERS, caller=CALLERS)
def test_parts_moves_and_deletes_read_back(
    key: bytes, parts: tuple[Part, ...], seq: int, version: int, caller: Caller
) -> None:
    size_bytes = sum(part.length for part in parts)
    data, entry = log_format.encode_put_parts(
        key, parts, seq=seq, caller=caller, modified_ms=1, expires_ms=2, crc=3, size_bytes=size_bytes
    )
    assert shown(decode(data).entries[0]) == shown(entry) == (key, PUT, seq, seq, 1, 2, 3, size_bytes, parts)
    entry.version = version
    data, moved = log_format.encode_move(entry, parts, seq=seq)
    assert decode(data).kind == Kind.MOVE_PARTS
    assert shown(decode(data).entries[0]) == shown(moved) == (key, PUT, seq, version, 1, 2, 3, size_bytes, parts)
    data, deleted = log_format.encode_delete(key, seq=seq, caller=caller, modified_ms=9)
    assert shown(decode(data).entries[0]) == shown(deleted) == (key, DELETE, seq, seq, 9, 0, 0, 0, b"")


@given(
    operations=st.lists(
        st.one_of(
            st.builds(BatchDelete, KEYS),
            st.tuples(KEYS, VALUES).map(lambda kv: BatchPut(kv[0], kv[1], 5, crc32c(kv[1]), len(kv[1]))),
            st.tuples(KEYS, PARTS).map(lambda kp: BatchPut(*kp, 0, 1, sum(part.length for part in kp[1]))),
        ),
        min_size=1,
        max_size=6,
    ),
    caller=CALLERS,
)
def test_a_batch_reads_back_with_a_seq_for_each_operation(
    operations: list[BatchPut | BatchDelete], caller: Caller
) -> None:
    data, _ = log_format.encode_batch(operations, seq=100, caller=caller, modified_ms=7)
    record = decode(data)
    assert [entry.seq for entry in record.entries] == list(range(100, 100 + len(operations)))
    for entry, each in zip(record.entries, operations, strict=True):
        if isinstance(each, BatchDelete):
            assert shown(entry)[:2] == (each.key, DELETE)
        else:
            value = each.value if isinstance(each.value, tuple) else bytes(each.value)
            assert shown(entry)[-4:] == (each.expires_ms, each.crc, each.size_bytes, value)


def all_kinds() -> list[bytes]:
    caller = Caller(1, 2, 3)
    parts = (Part(1, 2, 3, 4),)
    put, entry = log_format.encode_put(b"key", b"value", seq=1, caller=caller, modified_ms=1, expires_ms=0, crc=1)
    return [
        put,
        log_format.encode_put_parts(
            b"key", parts, seq=1, caller=caller, modified_ms=1, expires_ms=0, crc=1, size_bytes=4
        )[0],
        log_format.encode_delete(b"key", seq=1, caller=caller, modified_ms=1)[0],
        log_format.encode_batch(
            [BatchPut(b"k", b"v", 0, 1, 1), BatchDelete(b"l"), BatchPut(b"m", parts, 0, 1, 4)],
            seq=1,
            caller=caller,
            modified_ms=1,
        )[0],
        log_format.encode_part(b"key", b"value", upload_id=1, offset=0)[0],
        log_format.encode_move(entry, b"value", seq=2)[0],
        log_format.encode_loaded(1, modified_ms=1),
    ]


@pytest.mark.parametrize("data", all_kinds())
def test_a_record_that_was_cut_or_grew_is_refused(data: bytes) -> None:
    decode(data)
    for size_bytes in range(len(data)):
        with pytest.raises(BadRecord):
            decode(data[:size_bytes])
    if data[1] != Kind.LOADED:
        with pytest.raises(BadRecord):
            decode(data + b"?")


def test_other_formats_and_kinds_are_refused() -> None:
    data = all_kinds()[0]
    with pytest.raises(UnsupportedVersion):
        decode(b"\x02" + data[1:])
    for kind in (0, 9, 255):
        with pytest.raises(BadRecord):
            decode(struct.pack("BB", 1, kind) + data[2:])


def example(name: str) -> bytes:
    """The bytes of the fenced block with that name on the page."""
    (block,) = re.findall(rf"^```{re.escape(name)}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return bytes.fromhex(block)


def test_the_examples_of_the_page_are_what_is_written() -> None:
    caller = Caller(0x0102030405060708, 9, 8)
    put, entry = log_format.encode_put(
        b"snow", b"white", seq=5, caller=caller, modified_ms=1_700_000_000_000, expires_ms=0, crc=crc32c(b"white")
    )
    assert put == example("put")
    moved, _ = log_format.encode_move(entry, (Part(258, 4096, 68, 5),), seq=6)
    assert moved == example("move")
    assert encode_parts([Part(258, 4096, 68, 5)]) in moved
