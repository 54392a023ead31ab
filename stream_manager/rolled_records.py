"""Records as a usual roll writes them, each joined in one go from parts that are at hand.

Invariants: the same bytes as record_codec.py gives for the same records: a test compares what rolls store.
"""

from __future__ import annotations

from neve.proto.fields import SMALL, SMALL_MAX, sized, varint
from neve.stream_manager.record_codec import LINKED_BY, encode_call, packed_nodes
from neve.stream_manager.records import Stream, StreamCall


def rolled_stream(
    before_ids: bytes,
    ids: bytes,
    between: bytes,
    version: int,
    sealed: bytes,
    opened: bytes,
    linked_by: StreamCall | None,
    behind: bytes,
) -> bytes:
    """As `stream_record`, of a stream that is not sealed, after a usual roll: with two young extents, and with what
    `fixed_parts` gave for it between and behind what changes. `before_ids` is its stem."""
    size = len(ids)
    return b"".join(
        (
            before_ids,
            b"\x48",
            SMALL[version] if version <= SMALL_MAX else varint(version),
            b"\x2a",
            SMALL[size] if size <= SMALL_MAX else varint(size),
            ids,
            between,
            b"\x62",
            SMALL[len(sealed)],
            sealed,
            b"\x62",
            SMALL[len(opened)],
            opened,
            LINKED_BY + encode_call(linked_by) if linked_by is not None else b"",
            behind,
        )
    )


def fixed_parts(stream: Stream) -> tuple[bytes, bytes]:
    """What no roll changes of a stream's record, before its young extents and at the end of it."""
    between = b"\x58" + varint(stream.truncated_before) if stream.truncated_before else b""
    behind = b"\x7a" + sized(b"".join(map(varint, stream.after_hole))) if stream.after_hole else b""
    return between, behind


def confirmed_record(body: bytes, eversion: int, seal: bytes, digest: bytes, confirmed: tuple[int, ...]) -> bytes:
    """An extent's record: of one that was sealed so, when all its replicas have confirmed this digest."""
    seal += b"\x1a" + SMALL[len(digest)] + digest
    version = SMALL[eversion] if eversion <= SMALL_MAX else varint(eversion)
    nodes = packed_nodes(confirmed)
    return b"".join((body, b"\x18", version, b"\x2a", SMALL[len(seal)], seal, nodes, b"\x38\x01"))
