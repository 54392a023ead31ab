"""Records of executed calls: what is swept, and what is not (26)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.meta.txn import Compare, Delete, Operation, TxnResult
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.stream_manager.metadata.records import Replay
from neve.stream_manager.metadata.replay import ReplayCache, replay_key
from neve.stream_manager.term import leader
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, simulated

KEPT_S = 30.0


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 100)), st.integers(0, 100))
def test_exactly_the_old_calls_are_deleted_and_dropped(created_s: dict[int, int], now_s: int) -> None:
    cache = ReplayCache(ROOT, kept_s=KEPT_S, records_max=1000)
    for call_id, at_s in created_s.items():
        cache.add(5, call_id, Replay(1, 2, 1000 * at_s))
    old = {call_id for call_id, at_s in created_s.items() if at_s <= now_s - KEPT_S}
    runs = list(cache.expired(1000 * now_s))
    deleted = {n for n in range(50) if any(run.keys.contains(replay_key(ROOT, 5, n)) for run in runs)}
    assert deleted == old
    for run in runs:
        cache.drop(run)
    kept = {n for n in created_s if cache.find((5, n), method_id=1, request_crc32c=2) is not None}
    assert kept == set(created_s) - old
    assert cache.count == len(kept)
    assert list(cache.expired(1000 * now_s)) == []


def test_calls_without_a_gap_go_in_one_operation() -> None:
    cache = ReplayCache(ROOT, kept_s=KEPT_S, records_max=1000)
    for call_id in (7, 3, 1, 2, 8, 20):
        cache.add(5, call_id, Replay(1, 2, 0))
    runs = [(run.first, run.end) for run in cache.expired(10**9)]
    assert runs == [(1, 4), (7, 9), (20, 21)]


@simulated
async def test_a_call_that_is_committed_while_the_sweep_is_under_way_stays_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader, "REPLAY_KEPT_S", KEPT_S)
    async with Cluster() as cluster:
        await cluster.start_managers(1)

        async def seal(call_id: int) -> None:
            """A call whose record has a key of its own."""
            call = common_pb2.CallId(client_id=5, call_id=call_id)
            request = sm.SealStreamRequest(call=call, stream_id=streams[call_id])
            await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, request)

        streams = {call_id: (await cluster.create()).stream.stream_id for call_id in (3, 9)}
        await seal(9)
        store = cluster.managers[1].store
        original = store.txn
        late: list[int] = []

        async def txn(
            compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
        ) -> TxnResult:
            if not late and any(isinstance(operation, Delete) for operation in success):
                late.append(3)
                await seal(3)  # an older call that took its time
            return await original(compares, success, failure)

        store.txn = txn  # type: ignore[method-assign]
        await cluster.until(lambda: bool(late))
        await asyncio.sleep(2)
        assert [*cluster.term.replay._by_client[5]] == late
        assert await cluster.store.get(replay_key(ROOT, 5, 3)) is not None
        assert await cluster.store.get(replay_key(ROOT, 5, 9)) is None
