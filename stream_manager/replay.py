"""Calls that were executed: a repeated one gets the same answer and is not done twice, also after a fail-over (26).

Invariants: a record is here if and only if its transaction was committed: it was part of it;
            a call id that comes back with another request is refused, not answered with something else;
            records are bounded in age and in number; what is dropped here was deleted in etcd before.
Neighbours: pipeline.py looks calls up; leader.py fills it at the load and from commits, and runs the sweeping.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from neve.meta.txn import KeyRange, KeyValue
from neve.proto.errors import InvalidArgument
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.changes import replay_key
from neve.stream_manager.records import Replay

log = logging.getLogger(__name__)


class ReplayCache:
    def __init__(self, root: bytes, *, kept_s: float, records_max: int) -> None:
        self._root = root
        self._kept_ms = int(kept_s * 1000)
        self._records_max = records_max
        self._by_client: dict[int, dict[int, Replay]] = {}
        self.count = 0

    def find(self, client_id: int, call_id: int, *, method_id: int, request_crc32c: int) -> Replay | None:
        found = self._by_client.get(client_id, {}).get(call_id)
        if found is not None and (found.method_id, found.request_crc32c) != (method_id, request_crc32c):
            detail = f"{client_id:x}/{call_id} was another request before: a call id is used once"
            raise InvalidArgument(what="call", detail=detail)
        return found

    def add(self, client_id: int, call_id: int, replay: Replay) -> None:
        calls = self._by_client.setdefault(client_id, {})
        self.count += call_id not in calls
        calls[call_id] = replay

    def load(self, kv: KeyValue) -> None:
        client, _, call = kv.key[len(self._root) + len(r.REPLAY) :].partition(b"/")
        self.add(int(client, 16), int(call, 16), codec.decode_replay(kv.value))

    # --- expiry ----------------------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> Iterator[tuple[int, int, KeyRange]]:
        """(client id, call id, keys): all records of that client below that call id may go; their keys in etcd."""
        cutoff_ms = now_ms - self._kept_ms
        if self.count > self._records_max:
            cutoff_ms = max(cutoff_ms, self._median_ms())
            log.warning("replay_records_dropped_early count=%d records_max=%d", self.count, self._records_max)
        for client_id, calls in list(self._by_client.items()):
            # Call ids count up, but calls end in any order: nothing that is young goes with what is old.
            young = min((call_id for call_id, replay in calls.items() if replay.created_ms > cutoff_ms), default=None)
            below = max(calls) + 1 if young is None else young
            if any(call_id < below for call_id in calls):
                keys = KeyRange(replay_key(self._root, client_id, 0), replay_key(self._root, client_id, below))
                yield client_id, below, keys

    def drop(self, client_id: int, below_call_id: int) -> None:
        """After their keys were deleted."""
        calls = self._by_client.get(client_id, {})
        kept = {call_id: replay for call_id, replay in calls.items() if call_id >= below_call_id}
        self.count -= len(calls) - len(kept)
        if kept:
            self._by_client[client_id] = kept
        else:
            self._by_client.pop(client_id, None)

    def _median_ms(self) -> int:
        times = sorted(replay.created_ms for calls in self._by_client.values() for replay in calls.values())
        return times[len(times) // 2]
