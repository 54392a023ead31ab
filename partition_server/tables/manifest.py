"""Manifests: each describes a whole partition, in one record in its meta stream for each change.
See docs/formats/manifest.md.

    record := "NVMF" | Manifest          or  "NVML", the marker of an owner that has read the stream

Invariants: a manifest is complete: the newest readable one counts, and all earlier ones may be removed;
            after a merge of partitions, earlier manifests no longer count, because each describes one side. Until there
            is a newer one, the union of the two that the region names counts, each for its own range.
"""

from __future__ import annotations

from collections.abc import Sequence

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import Info
from neve.partition_server.engine.sessions import Sessions
from neve.partition_server.engine.write import Outcome
from neve.proto import common_pb2
from neve.proto import partition_records_pb2 as records
from neve.proto.errors import Internal, UnsupportedVersion

FORMAT = 1
MAGIC = b"NVMF"
MARKER = b"NVML"

_INFO_FIELDS = len(Info._fields)


def encode(manifest: records.Manifest) -> bytes:
    data: bytes = manifest.SerializeToString()
    return MAGIC + data


def decode(payload: bytes | memoryview) -> records.Manifest | None:
    """Decode a manifest; None for a marker."""
    head = bytes(payload[:4])
    if head == MARKER:
        return None
    if head != MAGIC:
        raise Internal(detail=f"a record of the meta stream begins with {head!r}")
    manifest = records.Manifest.FromString(bytes(payload[4:]))
    if manifest.format != FORMAT:
        raise UnsupportedVersion(what="manifest", version=manifest.format, supported_min=FORMAT, supported_max=FORMAT)
    return manifest


def counts_after(manifest: records.Manifest, merged_at: int) -> bool:
    """Whether the manifest is of the partition in its present form, not of one side before the merge."""
    return manifest.map_version >= merged_at


def unite(manifests: Sequence[records.Manifest]) -> records.Manifest:
    """Unite the manifests of both sides of a merge: each side's tables for its own range, and all sessions."""
    united = records.Manifest(format=FORMAT)
    for each in manifests:
        united.seq = max(united.seq, each.seq)
        united.number = max(united.number, each.number)
        for table in each.tables:
            clipped = clip_entry(table, each.start, each.end)
            if clipped is not None:
                united.tables.append(clipped)
        united.sessions.extend(each.sessions)
        united.discards.extend(each.discards)
    # Each side is in order of age already; seq_max is not, since a rewritten table may have lost its newest rows.
    # The sides have no key in common.
    return united


def clip_entry(table: records.TableEntry, start: bytes, end: bytes) -> records.TableEntry | None:
    """Return the table for this range only; None if it certainly has no key in it."""
    clip_start = max(table.clip_start, start)
    clip_end = min(table.clip_end, end) if table.clip_end and end else table.clip_end or end
    if clip_end and clip_start >= clip_end:
        return None
    clipped = records.TableEntry()
    clipped.CopyFrom(table)
    clipped.clip_start, clipped.clip_end = clip_start, clip_end
    return clipped


def position_of(message: common_pb2.Position) -> Position:
    return Position(message.extent_id, message.offset)


def message_of(position: Position) -> common_pb2.Position:
    return common_pb2.Position(extent_id=position.extent_id, offset=position.offset)


# --- sessions ------------------------------------------------------------------------------------------------


def encode_sessions(sessions: Sessions) -> list[records.SessionEntry]:
    found = []
    for client_id, session in sessions.all():
        entry = records.SessionEntry(client_id=client_id, floor=session.floor, used_ms=session.used_ms)
        for call_id, outcome in session.results.items():
            entry.results.add(call_id=call_id, infos=[number for info in outcome for number in info])
        found.append(entry)
    return found


def restore_sessions(sessions: Sessions, entries: Sequence[records.SessionEntry]) -> None:
    for entry in entries:
        results: dict[int, Outcome] = {}
        for result in entry.results:
            numbers = list(result.infos)
            results[result.call_id] = tuple(
                Info(*numbers[at : at + _INFO_FIELDS]) for at in range(0, len(numbers), _INFO_FIELDS)
            )
        sessions.restore(entry.client_id, entry.floor, entry.used_ms, results)
