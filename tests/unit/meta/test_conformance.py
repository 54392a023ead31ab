"""What a metadata store does, whichever it is: every test here runs on the in-memory twin and on a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

from neve.meta.election import Election
from neve.meta.lock import acquire_lock
from neve.meta.store import Event, EventKind, RangePage, Resync, WatchBatch, WatchItem
from neve.meta.txn import (
    REQUEST_BYTES_MAX,
    TXN_OPS_MAX,
    Compare,
    Delete,
    DeleteResult,
    Get,
    GetResult,
    KeyRange,
    KeyValue,
    Operation,
    Put,
    PutResult,
    Relation,
    Target,
    create_revision_is,
    key_absent,
    mod_revision_is,
    value_is,
)
from neve.proto.errors import Compacted, InvalidArgument, LeaseLost, LockHeld, MetaUnavailable, NotOwner, TooLarge
from tests.unit.meta.conftest import Backend

TTL_S = 4


async def _take(watch: object, count: int) -> list[WatchItem]:
    return [await anext(watch) for _ in range(count)]  # type: ignore[call-overload]


async def test_a_key_carries_create_and_mod_revision_and_version(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        assert await store.get(key) is None
        first = await store.put(key, b"1")
        assert await store.get(key) == KeyValue(key, b"1", first, first, 1)
        second = await store.put(key, b"1")
        assert second == first + 1, "an equal value is a change too"
        assert await store.get(key) == KeyValue(key, b"1", first, second, 2)
        assert await store.delete(key) == 1
        assert await store.get(key) is None
        third = await store.put(key, b"3")
        assert await store.get(key) == KeyValue(key, b"3", third, third, 1), "created anew"


async def test_what_changes_nothing_takes_no_revision(backend: Backend) -> None:
    async with backend.connect() as store:
        before = await store.put(backend.key("a"), b"1")
        assert await store.delete(backend.key("absent")) == 0
        result = await store.txn([key_absent(backend.key("a"))], [Put(backend.key("b"), b"")])
        assert (result.succeeded, result.revision) == (False, before)
        assert await store.revision() == before


async def test_a_transaction_is_one_revision_for_all_its_keys(backend: Backend) -> None:
    async with backend.connect() as store:
        a, b, c = (backend.key(name) for name in "abc")
        await store.put(b, b"old")
        result = await store.txn([value_is(b, b"old")], [Put(a, b"1"), Delete(b), Put(c, b"3"), Get(c)])
        assert result.succeeded
        put = KeyValue(c, b"3", result.revision, result.revision, 1)
        assert result.responses == (PutResult(), DeleteResult(1), PutResult(), GetResult((put,), False, 1))
        listing = await store.range_all(KeyRange.prefix(backend.prefix))
        assert [(kv.key, kv.mod_revision) for kv in listing.kvs] == [(a, result.revision), (c, result.revision)]


async def test_reads_inside_a_transaction_see_the_writes_before_them(backend: Backend) -> None:
    async with backend.connect() as store:
        a, b = backend.key("a"), backend.key("b")
        await store.put(a, b"")
        all_keys = Get(KeyRange.prefix(backend.prefix), limit=1)
        result = await store.txn([], [all_keys, Put(b, b"2"), all_keys, Delete(a), all_keys])
        found = [result.get_at(index) for index in (0, 2, 4)]
        assert [(get.kvs[0].key, get.more, get.count) for get in found] == [(a, False, 1), (a, True, 2), (b, False, 1)]


async def test_the_failure_branch_runs_when_one_compare_does_not_hold(backend: Backend) -> None:
    async with backend.connect() as store:
        a = backend.key("a")
        revision = await store.put(a, b"1")
        result = await store.txn(
            [mod_revision_is(a, revision), value_is(a, b"2")], [Put(a, b"no")], [Get(a), Put(backend.key("b"), b"y")]
        )
        assert not result.succeeded
        first = result.get_at(0).first
        assert first is not None
        assert first.value == b"1"
        assert await store.get(backend.key("b")) is not None


@pytest.mark.parametrize("present", [True, False])
async def test_compares_of_every_kind(backend: Backend, present: bool) -> None:
    """All targets and relations against a key that exists and one that does not: 0 or no value at all."""
    async with backend.connect() as store:
        key = backend.key("k")
        if present:
            await store.put(key, b"m")
            await store.put(key, b"m")
        kv = await store.get(key)
        for target in Target:
            found = 0 if kv is None else getattr(kv, target.value)
            operands: Sequence[int | bytes] = (found - 1, found, found + 1) if isinstance(found, int) else ()
            if target is Target.VALUE:
                operands = (b"", b"l", b"m", b"n")
            for operand in operands:
                if isinstance(operand, int) and operand < 0:
                    continue
                for relation, holds in _RELATIONS.items():
                    result = await store.txn([Compare(key, target, relation, operand)], [])
                    expected = not (target is Target.VALUE and kv is None) and holds(found, operand)
                    assert result.succeeded == expected, (target, relation, operand)


_RELATIONS: dict[Relation, Callable[[object, object], bool]] = {
    Relation.EQUAL: lambda found, operand: found == operand,
    Relation.NOT_EQUAL: lambda found, operand: found != operand,
    Relation.GREATER: lambda found, operand: found > operand,  # type: ignore[operator]
    Relation.LESS: lambda found, operand: found < operand,  # type: ignore[operator]
}


async def test_a_transaction_that_writes_a_key_twice_or_is_too_long_is_refused_unsent(backend: Backend) -> None:
    async with backend.connect() as store:
        a = backend.key("a")
        before = await store.revision()
        branches: list[list[Operation]] = [
            [Put(a, b"1"), Put(a, b"2")],
            [Delete(a), Put(a, b"2")],
            [Put(a, b"2"), Delete(KeyRange.prefix(backend.prefix))],
            [Put(backend.key(str(number)), b"") for number in range(129)],
        ]
        for branch in branches:
            with pytest.raises(InvalidArgument):
                await store.txn([], branch)
            with pytest.raises(InvalidArgument):
                await store.txn([], [], branch)
        with pytest.raises(InvalidArgument):
            await store.txn([key_absent(a)] * 129, [])
        result = await store.txn([], [Delete(a), Delete(a), *(Put(backend.key(str(n)), b"") for n in range(126))])
        assert result.revision == before + 1


async def test_a_request_above_etcds_limit_is_too_large_and_one_just_below_it_is_taken(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        most_bytes = 1536 * 1024 - 64 - len(key)
        before = await store.revision()
        for value_bytes in (most_bytes + 1, 2_000_000):
            with pytest.raises(TooLarge):
                await store.put(key, bytes(value_bytes))
        half = bytes(most_bytes // 2 + 1)
        with pytest.raises(TooLarge):
            await store.txn([value_is(key, half)], [Put(key, half)])
        assert await store.revision() == before
        assert await store.put(key, bytes(most_bytes)) == before + 1
        await store.delete(key)


async def test_numbers_that_etcd_would_refuse_are_invalid_arguments(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        too_long = 2**63
        for make in (
            lambda: Get(key, limit=-1),
            lambda: Get(key, limit=too_long),
            lambda: Put(key, b"", lease_id=too_long),
            lambda: Put(key, b"", lease_id=-1),
            lambda: mod_revision_is(key, too_long),
            lambda: store.watch(key, start_revision=too_long),
        ):
            with pytest.raises(InvalidArgument):
                make()
        for call in (
            store.range(key, limit=-1),
            store.range(key, revision=-1),
            store.range(key, revision=too_long),
            store.grant_lease(0),
            store.grant_lease(10_000_000_000),
            store.revoke(too_long),
            store.compact(too_long),
        ):
            with pytest.raises(InvalidArgument):
                await call


async def test_a_delete_of_a_range_counts_its_keys_and_leaves_the_rest(backend: Backend) -> None:
    async with backend.connect() as store:
        await store.txn([], [Put(backend.key(name), b"") for name in ("a", "b", "b\xff", "c")])
        assert await store.delete(KeyRange(backend.key("b"), backend.key("c"))) == 2
        left = (await store.range_all(KeyRange.prefix(backend.prefix))).kvs
        assert [kv.key for kv in left] == [backend.key("a"), backend.key("c")]


async def test_a_listing_of_many_pages_is_of_one_revision_whatever_is_written_meanwhile(backend: Backend) -> None:
    async with backend.connect() as store:
        names = [f"{number:03d}" for number in range(25)]
        await store.txn([], [Put(backend.key(name), b"old") for name in names])
        pages: list[RangePage] = []
        async for page in store.range_pages(KeyRange.prefix(backend.prefix), page_keys=4):
            pages.append(page)
            await store.put(backend.key(names[-len(pages)]), b"new")
            await store.delete(backend.key(names[10 + len(pages)]))
        kvs = [kv for page in pages for kv in page.kvs]
        assert [kv.key for kv in kvs] == [backend.key(name) for name in names]
        assert {kv.value for kv in kvs} == {b"old"}
        assert len({page.revision for page in pages}) == 1
        assert [len(page.kvs) for page in pages] == [4] * 6 + [1]
        listing = await store.range_all(KeyRange.prefix(backend.prefix), revision=pages[0].revision, page_keys=7)
        assert (listing.kvs, listing.revision) == (tuple(kvs), pages[0].revision)


async def test_a_listing_whose_revision_is_compacted_between_pages_is_an_error_and_not_partial(
    backend: Backend,
) -> None:
    async with backend.connect() as store:
        await store.txn([], [Put(backend.key(f"{number}"), b"") for number in range(9)])
        pages = store.range_pages(KeyRange.prefix(backend.prefix), page_keys=4)
        assert len((await anext(pages)).kvs) == 4
        await store.compact(await store.put(backend.key("0"), b"again"))
        with pytest.raises(Compacted):
            await anext(pages)


async def test_reads_at_an_old_revision_last_until_it_is_compacted(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        first = await store.put(key, b"1")
        second = await store.put(key, b"2")
        await store.delete(key)
        last = await store.put(key, b"3")
        assert [
            kv.value if (kv := await store.get(key, revision=revision)) else None
            for revision in range(first - 1, last + 1)
        ] == [None, b"1", b"2", None, b"3"]
        await store.compact(second)
        with pytest.raises(Compacted):
            await store.get(key, revision=first)
        kept = await store.get(key, revision=second)
        assert kept is not None
        assert kept.value == b"2"
        with pytest.raises(Compacted):
            await store.compact(second)
        with pytest.raises(InvalidArgument):
            await store.compact(last + 1000)
        with pytest.raises(InvalidArgument):
            await store.get(key, revision=last + 1000)


async def test_ranges_have_an_exclusive_end_and_prefixes_may_end_in_ff(backend: Backend) -> None:
    async with backend.connect() as store:
        stems = [backend.prefix + tail for tail in (b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b")]
        await store.txn([], [Put(key, b"") for key in stems])

        async def keys(wanted: KeyRange) -> list[bytes]:
            return [kv.key for kv in (await store.range_all(wanted, page_keys=2)).kvs]

        assert await keys(KeyRange(stems[0])) == stems[:1]
        assert await keys(KeyRange(stems[0], stems[2])) == stems[:2]
        assert await keys(KeyRange.prefix(stems[0])) == stems[:4]
        assert await keys(KeyRange.prefix(stems[2])) == stems[2:4]
        assert (await keys(KeyRange(stems[1], b"\x00")))[:4] == stems[1:]


async def test_a_serializable_read_answers_too(backend: Backend) -> None:
    async with backend.connect() as store:
        revision = await store.put(backend.key("a"), b"1")
        page = await store.range(backend.key("a"), serializable=True)
        assert (page.count, page.more) == (1, False)
        assert page.revision >= revision


async def test_a_watch_delivers_history_and_then_changes_one_transaction_a_batch(backend: Backend) -> None:
    async with backend.connect() as store:
        a, b, outside = backend.key("w/a"), backend.key("w/b"), backend.key("x")
        first = await store.put(a, b"1")
        await store.put(outside, b"no")
        second = (await store.txn([], [Put(b, b"2"), Delete(a), Put(outside, b"no")])).revision
        async with store.watch(KeyRange.prefix(backend.key("w/")), start_revision=first) as watch:
            history = await _take(watch, 2)
            third = (await store.txn([], [Delete(KeyRange.prefix(backend.key("w/"))), Put(outside, b"")])).revision
            fourth = (await store.txn([], [Put(b, b"4"), Put(a, b"4")])).revision
            live = await _take(watch, 2)
        assert history == [
            WatchBatch(first, (Event(EventKind.PUT, KeyValue(a, b"1", first, first, 1)),)),
            WatchBatch(
                second,
                (
                    Event(EventKind.PUT, KeyValue(b, b"2", second, second, 1)),
                    Event(EventKind.DELETE, KeyValue(a, b"", 0, second, 0)),
                ),
            ),
        ]
        assert live == [
            WatchBatch(third, (Event(EventKind.DELETE, KeyValue(b, b"", 0, third, 0)),)),
            WatchBatch(
                fourth,
                (
                    Event(EventKind.PUT, KeyValue(b, b"4", fourth, fourth, 1)),
                    Event(EventKind.PUT, KeyValue(a, b"4", fourth, fourth, 1)),
                ),
            ),
        ]


async def test_a_watch_may_start_in_the_future_and_skips_what_is_before(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        now = await store.put(key, b"0")
        async with store.watch(key, start_revision=now + 3) as watch:
            for number in range(1, 5):
                await store.put(key, str(number).encode())
            items = await _take(watch, 2)
        assert [item.revision for item in items] == [now + 3, now + 4]


async def test_a_watch_from_before_the_compaction_lists_the_range_and_goes_on_from_there(backend: Backend) -> None:
    async with backend.connect() as store:
        gone, kept = backend.key("gone"), backend.key("kept")
        start = await store.put(gone, b"1")
        await store.put(kept, b"1")
        await store.delete(gone)
        compacted = await store.put(kept, b"2")
        await store.compact(compacted)
        after = await store.put(kept, b"3")
        async with store.watch(KeyRange.prefix(backend.prefix), start_revision=start) as watch:
            (resync,) = await _take(watch, 1)
            assert isinstance(resync, Resync)
            assert resync.revision >= after
            assert [(kv.key, kv.value) for kv in resync.kvs] == [(kept, b"3")]
            last = await store.delete(kept)
            assert last == 1
            (item,) = await _take(watch, 1)
            assert isinstance(item, WatchBatch)
            assert item.revision > resync.revision
            assert item.events[0].kind is EventKind.DELETE


async def test_a_delete_at_exactly_the_compacted_revision_is_not_lost(backend: Backend) -> None:
    """etcd before 3.4.36 forgets such tombstones, so a watch from that revision would never hear of the delete."""
    async with backend.connect() as store:
        key = backend.key("a")
        seen = await store.put(key, b"1")
        await store.delete(key)
        await store.compact(seen + 1)
        async with store.watch(key, start_revision=seen + 1) as watch:
            (item,) = await _take(watch, 1)
            assert item == Resync(item.revision, ())


async def test_a_watch_from_just_after_the_compaction_needs_no_resync(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        compacted = await store.put(key, b"1")
        after = await store.put(key, b"2")
        await store.delete(key)
        await store.compact(compacted)
        async with store.watch(key, start_revision=after) as watch:
            items = await _take(watch, 2)
        assert [(type(item), item.revision) for item in items] == [(WatchBatch, after), (WatchBatch, after + 1)]


async def test_a_cancelled_consumer_loses_nothing(backend: Backend) -> None:
    async with backend.connect() as store:
        key = backend.key("a")
        start = await store.revision() + 1
        async with store.watch(key, start_revision=start) as watch:
            seen = []
            for number in range(20):
                await store.put(key, str(number).encode())
                try:
                    async with asyncio.timeout(0.001):
                        seen.append(await anext(watch))
                except TimeoutError:
                    continue
            while len(seen) < 20:
                seen.append(await anext(watch))
        assert [item.revision for item in seen] == list(range(start, start + 20))


async def test_closing_a_watch_ends_its_iteration(backend: Backend) -> None:
    async with backend.connect() as store:
        watch = store.watch(backend.key("a"), start_revision=1 + await store.revision())
        waiting = asyncio.create_task(_drain(watch))
        await asyncio.sleep(0.01)
        await watch.close()
        assert await waiting == []


async def _drain(watch: object) -> list[WatchItem]:
    return [item async for item in watch]  # type: ignore[attr-defined]


async def test_closing_the_store_ends_its_watches_and_leases_and_refuses_calls(backend: Backend) -> None:
    async with backend.connect() as store:
        watch = store.watch(backend.key("a"), start_revision=1 + await store.revision())
        waiting = asyncio.create_task(_drain(watch))
        lease = await store.grant_lease(TTL_S)
        await asyncio.sleep(0.01)
        await store.close()
        assert await waiting == []
        assert not lease.alive()
        for call in (store.get(backend.key("a")), store.put(backend.key("a"), b"")):
            with pytest.raises(MetaUnavailable):
                await call


async def test_a_watch_must_say_where_it_starts(backend: Backend) -> None:
    async with backend.connect() as store:
        with pytest.raises(InvalidArgument):
            store.watch(backend.key("a"), start_revision=0)


async def test_a_lease_keeps_its_keys_and_revoking_deletes_them_together(backend: Backend) -> None:
    async with backend.connect() as store:
        lease = await store.grant_lease(TTL_S)
        assert lease.ttl_s >= TTL_S
        a, b, c = (backend.key(name) for name in "abc")
        for key in (a, b, c):
            await store.put(key, b"", lease_id=lease.lease_id)
        kv = await store.get(a)
        assert kv is not None
        assert kv.lease_id == lease.lease_id
        before = await store.put(b, b"off the lease")
        await lease.revoke()
        await store.revoke(lease.lease_id)  # a second time is fine
        assert await store.revision() == before + 1
        left = await store.range_all(KeyRange.prefix(backend.prefix))
        assert [(kv.key, kv.lease_id) for kv in left.kvs] == [(b, 0)]


async def test_a_lease_lives_longer_than_its_time_to_live_while_it_is_kept(backend: Backend) -> None:
    async with backend.connect() as store:
        lease = await store.grant_lease(2)
        await store.put(backend.key("a"), b"", lease_id=lease.lease_id)
        await asyncio.sleep(2.5 * lease.ttl_s)
        lease.ensure_alive()
        assert await store.get(backend.key("a")) is not None
        await lease.revoke()


async def test_a_put_on_a_lease_that_is_gone_is_refused_as_a_whole_and_known_at_once(backend: Backend) -> None:
    async with backend.connect() as store, backend.connect() as operator:
        lease = await store.grant_lease(60)
        await operator.revoke(lease.lease_id)
        with pytest.raises(LeaseLost) as lost:
            await store.txn([], [Put(backend.key("a"), b""), Put(backend.key("b"), b"", lease.lease_id)])
        assert lost.value.lease_id == lease.lease_id
        assert lease.lost.is_set()
        assert (await store.range(KeyRange.prefix(backend.prefix))).count == 0


async def test_a_missing_lease_in_the_branch_not_taken_does_not_matter(backend: Backend) -> None:
    async with backend.connect() as store:
        a = backend.key("a")
        result = await store.txn([key_absent(a)], [Put(a, b"1")], [Put(a, b"2", lease_id=12345)])
        assert result.succeeded


async def test_one_election_one_lock_and_one_successor(backend: Backend) -> None:
    """The recipes on both stores; their faults are tested on virtual time."""
    async with backend.connect() as first, backend.connect() as second:
        prefix = backend.key("leader")
        leases = [await store.grant_lease(10) for store in (first, second)]
        leadership = await Election(first, prefix).campaign(b"one", leases[0])
        waiting = asyncio.create_task(Election(second, prefix).campaign(b"two", leases[1]))
        state = backend.key("state")
        assert (await first.txn(leadership.guard(), [Put(state, b"one")])).succeeded
        await first.put(leadership.key, b"one, moved", lease_id=leadership.lease.lease_id)
        async with contextlib.aclosing(Election(second, prefix).observe()) as observed:
            leader = await anext(observed)
        assert leader is not None
        assert leader.value == b"one, moved"
        await leadership.give_up("resigned")
        successor = await waiting
        assert not (await first.txn(leadership.guard(), [Put(state, b"one again")])).succeeded
        assert (await second.txn(successor.guard(), [Put(state, b"two")])).succeeded
        assert create_revision_is(successor.key, successor.create_revision) in successor.guard()

        lock = await acquire_lock(first, "s", "one", leases[0], root=backend.prefix, timeout_s=0)
        with pytest.raises(LockHeld, match="one"):
            await acquire_lock(second, "s", "two", leases[1], root=backend.prefix, timeout_s=0.2)
        taken = await acquire_lock(second, "s", "two", leases[1], root=backend.prefix, timeout_s=0, takeover=True)
        assert taken.token > lock.token
        with pytest.raises(NotOwner):
            await lock.verify()
        await lock.lost.wait()
        await taken.verify()
        await taken.release()
        await successor.give_up("resigned")


async def test_a_leader_is_told_when_its_lease_is_revoked_behind_its_back(backend: Backend) -> None:
    async with backend.connect() as store, backend.connect() as operator:
        leadership = await Election(store, backend.key("l")).campaign(b"x", await store.grant_lease(30))
        await operator.revoke(leadership.lease.lease_id)
        assert await leadership.lost.wait() == "the key was deleted"


async def test_a_write_puts_and_deletes_if_guard_and_revisions_hold(backend: Backend) -> None:
    async with backend.connect() as store:
        guarding, a, b, c = (backend.key(name) for name in ("guard", "a", "b", "c"))
        created = await store.put(guarding, b"")
        revision = await store.put(a, b"old")
        guard = [create_revision_is(guarding, created)]
        result = await store.write(guard, {a: revision, b: 0}, {a: None, b: b"2", c: b"3" * 20_000}, [a])
        assert (result.succeeded, result.responses) == (True, ())
        assert await store.get(a) is None
        assert await store.get(b) == KeyValue(b, b"2", result.revision, result.revision, 1)
        assert await store.get(c) == KeyValue(c, b"3" * 20_000, result.revision, result.revision, 1)


@pytest.mark.parametrize("broken", ["guard", "revision", "absent"])
async def test_a_write_that_must_not_be_changes_nothing_and_reads_what_stands(backend: Backend, broken: str) -> None:
    async with backend.connect() as store:
        guarding, a, b = (backend.key(name) for name in ("guard", "a", "b"))
        created = await store.put(guarding, b"")
        revision = await store.put(a, b"1")
        guard = [create_revision_is(guarding, created + (broken == "guard"))]
        revisions = {a: revision + (broken == "revision"), b: 7 * (broken == "absent")}
        result = await store.write(guard, revisions, {a: b"2", b: b"2"}, [a, b])
        assert not result.succeeded
        assert result.get_at(0).first == KeyValue(a, b"1", revision, revision, 1)
        assert result.get_at(1).first is None
        assert await store.get(b) is None


async def test_a_write_that_no_transaction_can_be_is_refused_before_it_is_sent(backend: Backend) -> None:
    async with backend.connect() as store:
        before = await store.revision()
        many = {backend.key(str(number)): b"" for number in range(TXN_OPS_MAX + 1)}
        with pytest.raises(InvalidArgument):
            await store.write([], {}, many)
        with pytest.raises(InvalidArgument):
            await store.write([], dict.fromkeys(many, 0), {})
        with pytest.raises(InvalidArgument):
            await store.write([], {}, {b"": b""})
        with pytest.raises(TooLarge):
            await store.write([], {}, {backend.key("a"): bytes(REQUEST_BYTES_MAX)})
        assert await store.revision() == before


async def test_revisions_are_told_while_the_guard_holds(backend: Backend) -> None:
    async with backend.connect() as store:
        a, b, absent = backend.key("a"), backend.key("b"), backend.key("absent")
        first = await store.put(a, b"1" * 300)
        second = await store.put(b, b"2")
        guard = [create_revision_is(a, first)]
        assert await store.mod_revisions(guard, [b, absent, a]) == [second, 0, first]
        third = await store.put(a, b"3")
        assert await store.mod_revisions(guard, [a]) == [third]
        assert await store.mod_revisions([create_revision_is(a, second)], [a]) is None
        assert await store.mod_revisions(guard, []) == []
