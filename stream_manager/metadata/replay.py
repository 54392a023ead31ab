"""The executed calls, by client and call id: a repeated call gets the same reply and is not executed again.

This holds across a fail-over, because the record of a call is written in the call's own transaction (protocol rule 26).

Invariants: a record is here if and only if its transaction was committed;
            a call id that is reused for a different request is refused;
            records are bounded in age and number; a record that is dropped here was deleted from etcd before, or stays
            in etcd as part of its stream's record;
            only records that were seen to be old are deleted, never one that is committed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neve.meta.txn import KeyRange, KeyValue
from neve.proto import records_pb2 as pb
from neve.proto.errors import InvalidArgument
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.records import Replay, Stream, StreamCall, check_format

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True, slots=True)
class CallRange:
    """A range of old calls of one client, from `first` up to but excluding `end`, and their keys in etcd.

    Every id in the range has a record, so no call can add one: a call that has a record never writes a second one.
    """

    client_id: int
    first: int
    end: int
    keys: KeyRange


class ReplayCache:
    def __init__(self, root: bytes, *, kept_s: float, records_max: int) -> None:
        self._root = root
        self._kept_ms = int(kept_s * 1000)
        self._records_max = records_max
        self._by_client: dict[int, dict[int, Replay]] = {}
        # By client and call id, roughly in order of time; at most half a million. They are flat tuples of numbers,
        # because the garbage collector stops tracking such tuples but would visit every `Replay` again and again.
        self._in_streams: dict[tuple[int, int], tuple[int, ...]] = {}
        self.count = 0  # of the records with a key of their own

    def find(self, call: tuple[int, int], *, method_id: int, request_crc32c: int) -> Replay | None:
        """Find the record of a call, given as (client id, call id)."""
        found: Replay | None
        in_stream = self._in_streams.get(call)
        if in_stream is not None:
            found = _unpacked(in_stream)
        else:
            calls = self._by_client.get(call[0])
            found = calls.get(call[1]) if calls is not None else None
        if found is not None and (found.method_id, found.request_crc32c) != (method_id, request_crc32c):
            detail = f"{call[0]:x}/{call[1]} was another request before: a call id is used once"
            raise InvalidArgument(what="call", detail=detail)
        return found

    def add(self, client_id: int, call_id: int, replay: Replay) -> None:
        calls = self._by_client.setdefault(client_id, {})
        self.count += call_id not in calls
        calls[call_id] = replay

    def add_in_stream(self, call: StreamCall) -> None:
        """Add a call whose record is part of the stream that it wrote: there is no key to delete."""
        replay = call.replay
        numbers = (replay.method_id, replay.request_crc32c, replay.created_ms, *replay.stream_ids, *replay.extent_ids)
        self._in_streams[call.client_id, call.call_id] = numbers
        if len(self._in_streams) > self._records_max:
            del self._in_streams[next(iter(self._in_streams))]

    def load_streams(self, streams: Iterable[Stream], now_ms: int) -> None:
        calls = [call for stream in streams for call in (stream.made_by, stream.linked_by) if call is not None]
        for call in sorted(calls, key=lambda call: call.replay.created_ms):
            if call.replay.created_ms > now_ms - self._kept_ms:
                self.add_in_stream(call)

    def load(self, kv: KeyValue) -> None:
        client, _, call = kv.key[len(self._root) + len(r.REPLAY) :].partition(b"/")
        self.add(int(client, 16), int(call, 16), read_replay(kv.value))

    # --- expiry ----------------------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> Iterator[CallRange]:
        """The ranges of records that are too old or too many."""
        cutoff_ms = now_ms - self._kept_ms
        if self.count > self._records_max:
            cutoff_ms = max(cutoff_ms, self._median_ms())
            log.warning("replay_records_dropped_early count=%d records_max=%d", self.count, self._records_max)
        for client_id, calls in list(self._by_client.items()):
            old = sorted(call_id for call_id, replay in calls.items() if replay.created_ms <= cutoff_ms)
            for first, end in _without_gaps(old):
                start = replay_key(self._root, client_id, first)
                keys = KeyRange(start) if end == first + 1 else KeyRange(start, replay_key(self._root, client_id, end))
                yield CallRange(client_id, first, end, keys)

    def forget_old(self, now_ms: int) -> None:
        """Drop old records that have no key of their own. The sweep calls this each time."""
        cutoff_ms = now_ms - self._kept_ms
        while self._in_streams:
            key = next(iter(self._in_streams))
            if _unpacked(self._in_streams[key]).created_ms > cutoff_ms:
                return
            del self._in_streams[key]

    def drop(self, call_range: CallRange) -> None:
        """Drop the records of a range after their keys were deleted."""
        calls = self._by_client.get(call_range.client_id, {})
        for call_id in range(call_range.first, call_range.end):
            if calls.pop(call_id, None) is not None:
                self.count -= 1
        if not calls:
            self._by_client.pop(call_range.client_id, None)

    def _median_ms(self) -> int:
        times = sorted(replay.created_ms for calls in self._by_client.values() for replay in calls.values())
        return times[len(times) // 2]


def _unpacked(numbers: tuple[int, ...]) -> Replay:
    """Rebuild the record of a call that wrote one stream."""
    method_id, checksum, created_ms, stream_id, *extents = numbers
    return Replay(method_id, checksum, created_ms, (stream_id,), tuple(extents))


def _without_gaps(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The (first, end) of each range of consecutive numbers. `numbers` is ascending."""
    first = end = -1
    for number in numbers:
        if number != end:
            if first >= 0:
                yield first, end
            first = number
        end = number + 1
    if first >= 0:
        yield first, end


# --- the stored form ---------------------------------------------------------------------------------------------


def replay_key(root: bytes, client_id: int, call_id: int) -> bytes:
    return root + r.REPLAY + r.id_text(client_id) + b"/" + r.id_text(call_id)


def replay_bytes(replay: Replay) -> bytes:
    return pb.ReplayRecord(
        format=FORMAT,
        method_id=replay.method_id,
        request_crc32c=replay.request_crc32c,
        created_ms=replay.created_ms,
        stream_ids=replay.stream_ids,
        extent_ids=replay.extent_ids,
        node_id=replay.node_id,
    ).SerializeToString()


def read_replay(value: bytes) -> Replay:
    record = pb.ReplayRecord.FromString(value)
    check_format("replay record", record.format, FORMAT)
    return Replay(
        method_id=record.method_id,
        request_crc32c=record.request_crc32c,
        created_ms=record.created_ms,
        stream_ids=tuple(record.stream_ids),
        extent_ids=tuple(record.extent_ids),
        node_id=record.node_id,
    )
