"""Memtables show the newest of what was acknowledged, in whatever order that came; sessions remember calls."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import DELETE, GONE, PUT, Entry, Info, Part
from neve.partition_server.engine.memory import WOKEN_AT_ONCE, MemoryBudget, Waiters
from neve.partition_server.engine.memtable import EVERYTHING, Memtable
from neve.partition_server.engine.sessions import Sessions
from neve.partition_server.engine.write import Write
from neve.partition_server.log.log_format import Caller
from neve.partition_server.tables.manifest import encode_sessions, restore_sessions
from neve.proto.errors import InvalidArgument, Overloaded


def make_entry(key: bytes, seq: int, kind: str) -> Entry:
    if kind == "delete":
        return Entry(key, DELETE, seq, seq, 0, 0, 0, 0, b"", 0, None)
    if kind == "parts":
        return Entry(key, PUT, seq, seq, 0, 0, 0, 30, b"", 0, (Part(seq % 3, 0, 0, 10), Part(seq % 5, 0, 0, 20)))
    return Entry(key, PUT, seq, seq, 0, 0, 0, 5, b"%05d" % seq, 0, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([b"a", b"b", b"c"]), st.sampled_from(["put", "delete", "parts"])),
        st.tuples(st.just("acknowledge"), st.integers(0, 5)),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("drop"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_memtable_shows_each_snapshot_what_was_acknowledged_before_it(steps: list[tuple[object, ...]]) -> None:
    """Writes are acknowledged in any order; of a key the highest seq counts."""
    memtable = Memtable(1)
    pending: list[Entry] = []
    acknowledged: dict[bytes, Entry] = {}
    snapshots: list[tuple[int, dict[bytes, Entry]]] = []
    seq = applied = used_bytes = 0
    for step in steps:
        if step[0] == "submit":
            seq += 1
            pending.append(make_entry(step[1], seq, step[2]))  # type: ignore[arg-type]
        elif step[0] == "acknowledge" and pending:
            entry = pending.pop(int(step[1]) % len(pending))  # type: ignore[call-overload]
            applied += 1
            newest = max((number for number, _ in snapshots), default=0)
            used_bytes += memtable.apply(entry, Position(1, entry.seq), applied, snapshot_applied=newest)
            if entry.key not in acknowledged or acknowledged[entry.key].seq < entry.seq:
                acknowledged[entry.key] = entry
        elif step[0] == "snapshot":
            snapshots.append((applied, dict(acknowledged)))
        elif step[0] == "drop" and snapshots:
            snapshots.pop(int(step[1]) % len(snapshots))  # type: ignore[call-overload]
        memtable.validate()
        assert used_bytes == memtable.memory_bytes
        for number, seen in [*snapshots, (EVERYTHING, acknowledged)]:
            assert {key: memtable.get(key, number) for key in (b"a", b"b", b"c")} == {
                key: seen.get(key) for key in (b"a", b"b", b"c")
            }
            found = [entry for run in memtable.runs(b"", b"", number) for entry in run]
            assert found == [seen[key] for key in sorted(seen)]


# --- sessions ------------------------------------------------------------------------------------------------

INFO = Info(7, 5, 1000, 0, 99)


def make_sessions(*, clients_max: int = 10, results_max: int = 5, idle_ms: int = 1000) -> Sessions:
    return Sessions(clients_max=clients_max, results_max=results_max, results_total_max=12, idle_ms=idle_ms)


def acknowledge(sessions: Sessions, caller: Caller, *, now_ms: int = 0) -> None:
    write, is_new = sessions.enter(caller, now_ms)
    assert is_new
    write.outcome = (INFO,)
    sessions.acknowledged(write)
    write.finish()


def is_known(sessions: Sessions, client_id: int, call_id: int) -> bool:
    return sessions.known(Caller(client_id, call_id), 0) is not None


async def test_a_repeated_call_gets_what_the_first_one_got() -> None:
    sessions = make_sessions()
    caller = Caller(1, 1)
    write, is_new = sessions.enter(caller, 0)
    again, is_new_again = sessions.enter(caller, 0)
    assert (is_new, is_new_again) == (True, False)
    assert again is write
    first, second = write.wait(asyncio.get_running_loop()), again.wait(asyncio.get_running_loop())
    first.cancel()  # its caller went away; the other one did not
    write.outcome = (INFO,)
    sessions.acknowledged(write)
    write.finish()
    assert await second == (INFO,)
    late, is_new = sessions.enter(caller, 0)
    assert not is_new
    assert await late.wait(asyncio.get_running_loop()) == (INFO,)


def test_a_call_that_came_to_nothing_may_be_tried_again() -> None:
    sessions = make_sessions()
    write, _ = sessions.enter(Caller(1, 1), 0)
    sessions.leave(write)
    assert sessions.enter(Caller(1, 1), 0)[1]


def test_calls_that_are_over_are_forgotten_and_refused() -> None:
    sessions = make_sessions()
    for number in range(1, 5):
        acknowledge(sessions, Caller(1, number))
    acknowledge(sessions, Caller(1, 5, completed_below=4))
    assert [is_known(sessions, 1, number) for number in range(1, 6)] == [False, False, False, True, True]
    with pytest.raises(InvalidArgument):
        sessions.enter(Caller(1, 3), 0)


def test_a_client_that_never_says_what_is_over_is_bounded_and_never_served_twice() -> None:
    sessions = make_sessions()
    for number in range(1, 9):
        acknowledge(sessions, Caller(1, number))
    assert is_known(sessions, 1, 8)
    with pytest.raises(InvalidArgument):
        sessions.enter(Caller(1, 1), 0)
    ((_, session),) = sessions.all()
    assert len(session.results) <= 5


def test_the_results_of_all_clients_are_bounded_and_what_was_forgotten_is_refused() -> None:
    sessions = make_sessions()
    for client_id in range(1, 5):
        for number in range(1, 5):
            acknowledge(sessions, Caller(client_id, number))
            assert sessions.results == sum(len(session.results) for _, session in sessions.all()) <= 12
    assert is_known(sessions, 4, 4)
    with pytest.raises(InvalidArgument):
        sessions.enter(Caller(1, 2), 0)
    assert sessions.enter(Caller(1, 5), 0)[1]
    sessions.expire(10_000)
    assert sessions.results == sum(len(session.results) for _, session in sessions.all())


def test_too_many_calls_under_way_are_refused() -> None:
    sessions = make_sessions()
    for number in range(1, 6):
        sessions.enter(Caller(1, number), 0)
    with pytest.raises(Overloaded):
        sessions.enter(Caller(1, 6), 0)
    full = make_sessions(clients_max=1)
    full.enter(Caller(1, 1), 0)
    with pytest.raises(Overloaded):
        full.enter(Caller(2, 1), 0)


def test_t50_a_client_makes_room_for_another_only_when_it_repeats_nothing_any_more() -> None:
    sessions = make_sessions(clients_max=2, idle_ms=1000)
    acknowledge(sessions, Caller(1, 1), now_ms=1000)
    acknowledge(sessions, Caller(2, 1), now_ms=1050)
    with pytest.raises(Overloaded):
        sessions.enter(Caller(3, 1), 1099)
    assert is_known(sessions, 1, 1)  # its repetition is still answered, and not executed
    acknowledge(sessions, Caller(3, 1), now_ms=1100)
    assert not is_known(sessions, 1, 1)
    assert is_known(sessions, 2, 1)
    assert len(sessions) == 2


def test_a_load_takes_all_clients_that_it_finds() -> None:
    sessions = make_sessions(clients_max=2)
    for client_id in range(1, 5):
        sessions.restore(client_id, 0, 1000, {1: (INFO,)})
    assert all(is_known(sessions, client_id, 1) for client_id in range(1, 5))
    with pytest.raises(Overloaded):
        sessions.enter(Caller(5, 1), 1001)
    sessions.enter(Caller(4, 2), 1001)


def test_idle_clients_are_forgotten_and_busy_ones_are_not() -> None:
    sessions = make_sessions()
    acknowledge(sessions, Caller(1, 1), now_ms=0)
    acknowledge(sessions, Caller(2, 1), now_ms=900)
    sessions.expire(1000)
    assert not is_known(sessions, 1, 1)
    assert is_known(sessions, 2, 1)
    assert len(sessions) == 1


def test_sessions_come_back_from_a_manifest_and_two_become_one() -> None:
    left, right = make_sessions(), make_sessions()
    acknowledge(left, Caller(1, 10, completed_below=3))
    acknowledge(right, Caller(1, 11, completed_below=5))
    write, _ = right.enter(Caller(2, 1), 0)
    right.leave(write)
    right.remember(write.caller, (INFO, GONE), 0)
    right.enter(Caller(2, 2), 0)  # under way: it must not be in the manifest
    both = make_sessions()
    for side in (left, right):
        restore_sessions(both, encode_sessions(side))
    assert is_known(both, 1, 10)
    assert is_known(both, 1, 11)
    found = both.known(Caller(2, 1), 0)
    assert isinstance(found, Write)
    assert found.outcome == (INFO, GONE)
    assert not is_known(both, 2, 2)
    with pytest.raises(InvalidArgument):
        both.enter(Caller(1, 4), 0)


# --- memory --------------------------------------------------------------------------------------------------


async def test_those_who_wait_are_woken_a_few_a_turn_in_their_order() -> None:
    waiters = Waiters()
    waiting = [waiters.future() for _ in range(5 * WOKEN_AT_ONCE)]
    waiting[1].cancel()
    waiters.wake()
    late = waiters.future()
    for turn in range(1, 6):
        woken = [each for each in waiting if each.done() and not each.cancelled()]
        assert len(woken) == min(turn * WOKEN_AT_ONCE, len(waiting) - 1)
        assert woken == [each for each in waiting if not each.cancelled()][: len(woken)]
        await asyncio.sleep(0)
    assert not late.done(), "it waits for the next time"
    assert len(waiters) == 1
    waiters.wake()
    assert late.done()


async def test_whoever_uses_most_memory_flushes_first_and_writers_wait_for_room() -> None:
    budget = MemoryBudget(100)
    one, other = budget.share(), budget.share()
    one.add(30)
    other.add(40)
    assert not budget.should_flush(other)
    one.add(10)
    other.add(20)
    assert budget.full
    assert budget.should_flush(other)
    assert not budget.should_flush(one)
    waiting = asyncio.ensure_future(budget.until_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    other.remove(10)
    await waiting
    one.leave()
    assert budget.used_bytes == 50
