"""The store on a healthy machine: what each request does, and what a restart finds."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from neve.extent_node.store import append as store_append
from neve.extent_node.store.checkpoint import purge_trash
from neve.extent_node.store.read import Reader, ReadResult
from neve.extent_node.store.replica import NO_FD, Replica
from neve.extent_node.store.storage import Storage
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import (
    AlreadyExists,
    Conflict,
    ExtentFenced,
    ExtentSealed,
    Gap,
    InvalidArgument,
    LockedByOther,
    ReplicaDeleted,
    ReplicaMissing,
    WrongReplica,
)
from tests.unit.extent_node.store.rig import (
    TOKEN,
    Machine,
    append,
    append_all,
    block_of,
    create,
    delete,
    describe,
    error_of,
    fence,
    raise_token,
    read,
    read_bytes,
    seal,
    segment,
    tell_committed,
)

A, B, C = block_of("a", 100), block_of("b", 300), block_of("c", 50)


def test_an_append_is_read_back_up_to_committed_and_not_beyond() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        assert (await append(store, 1, 0, A, B)).end == len(A + B)
        assert (await read(store, 1)).blocks == 0
        await tell_committed(store, 1, len(A))
        assert await read_bytes(store, 1) == A
        await append(store, 1, len(A + B), C, committed=len(A + B))
        result = await read(store, 1)
        assert (result.end, result.readable, result.sealed, result.blocks) == (len(A + B), len(A + B), False, 2)

    Machine().run(work)


def test_segments_of_one_call_are_answered_each_on_its_own_and_in_order() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await create(store, 2)
        results = await append_all(
            store,
            segment(1, 0, [A]),
            segment(2, 500, [A]),
            segment(3, 0, [A]),
            segment(1, len(A), [B], token=TOKEN + 1),
            segment(1, len(A + B), [C]),
            segment(2, 0, [C]),
        )
        codes = [result.error.code for result in results]
        assert codes == [0, Gap.code, ReplicaMissing.code, 0, LockedByOther.code, 0]
        assert results[3].end == len(A + B)
        assert results[4].length == len(A + B)

    Machine().run(work)


def test_a_call_whose_sizes_do_not_add_up_writes_nothing() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        message, body = segment(1, 0, [A])
        with pytest.raises(InvalidArgument):
            await store_append.append(store.state, [message], memoryview(body + b"x"), brief=False)
        assert describe(store, 1).length == 0

    Machine().run(work)


def test_t02_a_late_duplicate_append_is_recognised_and_cuts_nothing() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await append(store, 1, len(A), B)
        await append(store, 1, len(A + B), C)
        assert (await append(store, 1, len(A), B)).end == len(A + B)  # the old request, delivered late
        assert (await append(store, 1, 0, A, B)).end == len(A + B)
        assert (await fence(store, 1)).length == len(A + B + C)
        assert (await seal(store, 1, len(A + B + C))).confirmed
        assert await read_bytes(store, 1) == A + B + C

    Machine().run(work)


def test_other_bytes_at_an_offset_are_a_conflict_and_change_nothing() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert await error_of(append(store, 1, 0, block_of("z", 100))) is Conflict
        assert await error_of(append(store, 1, 0, block_of("z", 100), B)) is Conflict
        await tell_committed(store, 1, len(A))
        assert await read_bytes(store, 1) == A

    Machine().run(work)


def test_an_overlap_that_is_equal_appends_the_rest() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert (await append(store, 1, 0, A, B, C)).end == len(A + B + C)
        assert describe(store, 1).length == len(A + B + C)

    Machine().run(work)


def test_raise_answers_the_durable_length_and_stops_older_owners() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, no_sync=True)
        answer = await raise_token(store, 1, TOKEN + 5)
        assert (answer.kind, answer.length, answer.token) == (pb.LengthAnswer.LENGTH, len(A), TOKEN + 5)
        assert await error_of(append(store, 1, len(A), B)) is LockedByOther
        assert (await append(store, 1, len(A), B, token=TOKEN + 5)).end == len(A + B)

    Machine().run(work)


def test_t01_what_is_not_here_is_not_length_zero() -> None:
    async def work(store: Storage) -> None:
        assert (await fence(store, 1)).kind == pb.LengthAnswer.NEVER_EXISTED
        await create(store, 1)
        assert (await fence(store, 1)).kind == pb.LengthAnswer.LENGTH
        await delete(store, 1)
        assert (await raise_token(store, 1, 99)).kind == pb.LengthAnswer.DELETED

    Machine().run(work)


def test_t01_a_removed_file_is_never_existed_after_a_restart() -> None:
    machine = Machine()

    async def fill(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)

    async def look(store: Storage) -> pb.LengthAnswer:
        return await fence(store, 1)

    machine.run(fill)
    machine.fs.crash()
    machine.fs.unlink("/disk0/extents/01/0000000000000001.ext")
    assert machine.run(look).kind == pb.LengthAnswer.NEVER_EXISTED


def test_t06_a_seal_at_length_zero_is_a_seal() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        assert not describe(store, 1).HasField("seal")
        assert (await fence(store, 1)).length == 0
        reply = await seal(store, 1, 0)
        assert reply.confirmed
        assert reply.seal.length == 0
        assert describe(store, 1).HasField("seal")
        result = await read(store, 1)
        assert (result.end, result.sealed) == (0, True)
        assert await error_of(append(store, 1, 0, A)) is ExtentSealed

    machine.run(work)

    async def again(store: Storage) -> None:
        assert describe(store, 1).HasField("seal")
        assert (await seal(store, 1, 0)).confirmed

    machine.restart(again)


def test_a_seal_cuts_verifies_and_is_the_same_however_often_it_comes() -> None:
    machine = Machine()

    async def work(store: Storage) -> bytes:
        await create(store, 1)
        await append(store, 1, 0, A, B, C)
        await fence(store, 1)
        first = await seal(store, 1, len(A + B))
        assert first.confirmed
        assert await seal(store, 1, len(A + B)) == first
        assert await error_of(seal(store, 1, len(A))) is Conflict
        assert await read_bytes(store, 1) == A + B
        assert await read_bytes(store, 1, len(A)) == B
        assert await error_of(read(store, 1, 3)) is InvalidArgument
        return first.seal.digest

    digest = machine.run(work)
    assert len(machine.fs.content("/disk0/extents/01/0000000000000001.ext")) == len(A + B)

    async def again(store: Storage) -> None:
        reply = await seal(store, 1, len(A + B), digest=digest)
        assert reply.confirmed
        assert await read_bytes(store, 1) == A + B

    machine.restart(again)


def test_a_replica_shorter_than_the_seal_says_how_much_it_has_and_takes_no_more() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        reply = await seal(store, 1, len(A + B))
        assert (reply.confirmed, reply.length) == (False, len(A))
        assert await error_of(append(store, 1, len(A), B)) is ExtentFenced

    Machine().run(work)


def test_a_digest_that_is_not_the_first_ones_sends_the_replica_to_quarantine() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert await error_of(seal(store, 1, len(A), digest=bytes(32))) is not None
        assert (await fence(store, 1)).kind == pb.LengthAnswer.DAMAGED

    machine.run(work)
    assert len(machine.fs.list_dir("/disk0/quarantine")) == 1


def test_a_deleted_replica_leaves_a_tombstone_that_a_late_create_cannot_pass() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert await delete(store, 1)
        assert not await delete(store, 1)
        assert await error_of(create(store, 1)) is ReplicaDeleted
        assert not await delete(store, 2)  # never was here: a late Create may still come
        assert await error_of(create(store, 2)) is ReplicaDeleted

    machine.run(work)
    assert len(machine.fs.list_dir("/disk0/trash")) == 1

    async def again(store: Storage) -> None:
        assert await error_of(create(store, 1)) is ReplicaDeleted
        assert await error_of(append(store, 1, 0, A)) is ReplicaDeleted

    machine.restart(again)


def test_an_old_tombstone_that_goes_leaves_a_younger_one() -> None:
    async def work(store: Storage) -> None:
        state = store.state
        day_ms, begin_ms = 24 * 3600 * 1000, state.wall_clock_ms()
        (disk,) = state.disks.values()

        async def purge_on_day(day: int) -> None:
            state.wall_clock_ms = lambda: begin_ms + day * day_ms
            await purge_trash(state, disk)

        await create(store, 1)
        await delete(store, 1, eversion=3)
        await purge_on_day(20)
        await delete(store, 1, eversion=9)
        await purge_on_day(31)  # the first one's thirty days are over
        assert await error_of(create(store, 1)) is ReplicaDeleted
        await purge_on_day(51)
        assert await error_of(create(store, 1)) is None

    Machine().run(work)


def test_create_again_answers_the_same_incarnation_while_the_replica_is_empty() -> None:
    async def work(store: Storage) -> None:
        first = await create(store, 1)
        assert await create(store, 1) == first
        await append(store, 1, 0, A)
        assert await error_of(create(store, 1)) is AlreadyExists

    Machine().run(work)


def test_creates_of_one_extent_at_once_make_one_replica() -> None:
    async def work(store: Storage) -> None:
        made = await asyncio.gather(*(create(store, 1) for _ in range(5)))
        assert len({replica.incarnation for replica in made}) == 1
        assert store.state.counters.creates == 1

    Machine().run(work)


def test_several_extents_are_made_durable_by_one_sync_of_the_journal() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        for extent_id in range(1, 9):
            await create(store, extent_id)
            await raise_token(store, extent_id, TOKEN)  # a new token has a sync of its own
        before = store.state.counters.in_place_syncs
        await append_all(store, *(segment(extent_id, 0, [A]) for extent_id in range(1, 9)))
        assert store.state.counters.journal_rounds == 1
        assert store.state.counters.journal_entries == 8
        assert store.state.counters.in_place_syncs == before

    machine.run(work)
    machine.fs.power_cut()

    async def after(store: Storage) -> None:
        assert store.state.counters.replayed_records == 8
        for extent_id in range(1, 9):
            answer = await fence(store, extent_id)
            assert (answer.kind, answer.length) == (pb.LengthAnswer.LENGTH, len(A))
            await seal(store, extent_id, len(A))
            assert await read_bytes(store, extent_id) == A

    machine.run(after)


def test_one_extent_alone_is_synced_in_place() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        assert store.state.counters.journal_rounds == 0
        assert store.state.counters.in_place_syncs == 1

    Machine().run(work)


def test_an_extent_with_unsynced_bytes_below_is_not_journaled() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await create(store, 2)
        await append(store, 1, 0, A, no_sync=True)
        await append(store, 1, len(A), B, no_sync=True)
        await append(store, 2, 0, A)
        before = store.state.counters.in_place_syncs
        await append_all(store, segment(1, len(A + B), [C]), segment(2, len(A), [B]))
        assert store.state.counters.journal_entries == 1  # of extent 2
        assert store.state.counters.in_place_syncs == before + 1

    machine.run(work)


def test_a_follower_gets_what_is_committed_while_it_waits_and_nothing_when_time_is_over() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        waiting = asyncio.ensure_future(read_bytes(store, 1, follow=True, wait_ms=60_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await tell_committed(store, 1, len(A))
        assert await waiting == A
        started_s = asyncio.get_running_loop().time()
        assert await read_bytes(store, 1, len(A), follow=True, wait_ms=500) == b""
        assert asyncio.get_running_loop().time() - started_s == pytest.approx(0.5, abs=0.01)

    Machine().run(work)


def test_a_follower_is_told_when_the_extent_is_sealed() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        waiting = asyncio.ensure_future(read(store, 1, follow=True, wait_ms=60_000))
        await asyncio.sleep(1)
        await seal(store, 1, len(A))
        result = await waiting
        assert result.sealed
        assert result.end == len(A)

    Machine().run(work)


def test_a_block_larger_than_the_size_asked_for_comes_whole() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, B, A)
        await tell_committed(store, 1, len(B + A))
        assert await read_bytes(store, 1, max_bytes=20) == B
        assert await read_bytes(store, 1, max_bytes=len(B) + 20) == B
        await seal(store, 1, len(B + A))
        assert await read_bytes(store, 1, max_bytes=20) == B
        assert await read_bytes(store, 1, max_blocks=1) == B

    Machine().run(work)


def test_an_extent_sealed_while_a_large_block_is_read_is_answered_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pread = Reader._pread

    async def pread_then_seal(self: Reader, found: Replica, offset: int, size_bytes: int) -> bytes:
        data = await pread(self, found, offset, size_bytes)
        if found.state.seal is None:
            await seal(store_of[0], 1, len(B + A))
        return data

    store_of: list[Storage] = []

    async def work(store: Storage) -> None:
        store_of.append(store)
        await create(store, 1)
        await append(store, 1, 0, B, A)
        await tell_committed(store, 1, len(B + A))
        monkeypatch.setattr(Reader, "_pread", pread_then_seal)
        assert await read_bytes(store, 1, max_bytes=20) == B
        assert describe(store, 1).HasField("seal")
        assert store.state.replicas[1].fd == NO_FD

    Machine().run(work)


def test_a_clean_stop_leaves_nothing_to_verify_to_replay_or_to_doubt() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
        await append_all(store, segment(1, 0, [A]), segment(2, 0, [A], no_sync=True))
        await store.stop(clean=True)

    machine.run(work)
    machine.fs.power_cut()

    async def after(store: Storage) -> None:
        await store.verified()
        assert store.state.counters.replicas_verified == 0
        assert store.state.counters.replayed_records == 0
        for extent_id in (1, 2):
            assert (await raise_token(store, extent_id, 99)).length == len(A)

    machine.run(after)


def test_the_list_is_in_order_of_ids_and_pages() -> None:
    async def work(store: Storage) -> None:
        for extent_id in (5, 3, 9, 256):
            await create(store, extent_id)
        await seal(store, 3, 0)
        first, more = store.inventory.list(after_extent_id=0, limit=2, unsealed_only=False)
        assert ([info.extent_id for info in first], more) == ([3, 5], True)
        rest, more = store.inventory.list(after_extent_id=5, limit=10, unsealed_only=False)
        assert ([info.extent_id for info in rest], more) == ([9, 256], False)
        unsealed, _ = store.inventory.list(after_extent_id=0, limit=10, unsealed_only=True)
        assert [info.extent_id for info in unsealed] == [5, 9, 256]

    Machine().run(work)


def test_a_read_of_a_sealed_extent_gives_whole_blocks_and_waits_only_for_pages_that_were_not_touched() -> None:
    sent = [block_of(f"{number}", 50 + 37 * number) for number in range(40)]
    starts = [sum(map(len, sent[:number])) for number in range(len(sent) + 1)]

    def answer_at_once(store: Storage, request: pb.ReadBlockRequest) -> ReadResult | None:
        reading = store.reader.read(request)
        try:
            reading.send(None)
        except StopIteration as end:
            result: ReadResult = end.value
            return result
        reading.close()
        return None

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, *sent)
        await tell_committed(store, 1, starts[-1])
        await seal(store, 1, starts[-1])
        first = pb.ReadBlockRequest(extent_id=1)
        assert answer_at_once(store, first) is None  # it is not mapped, and its pages were not touched
        assert (await store.reader.read(first)).blocks == len(sent)
        assert await error_of(store.reader.read(pb.ReadBlockRequest(extent_id=1, offset=1))) is InvalidArgument
        for number, offset in enumerate(starts):
            for max_blocks, max_bytes in itertools.product((0, 1, 3), (0, 1, 500)):
                request = pb.ReadBlockRequest(extent_id=1, offset=offset, max_blocks=max_blocks, max_bytes=max_bytes)
                result = answer_at_once(store, request)
                assert result is not None
                wanted: list[bytes] = []
                for block in sent[number : number + (max_blocks or len(sent))]:
                    if wanted and max_bytes and len(b"".join(wanted)) + len(block) > max_bytes:
                        break
                    wanted.append(block)
                assert (result.end, result.blocks) == (offset + len(b"".join(wanted)), len(wanted))
                assert b"".join(bytes(piece) for piece in result.payload) == b"".join(wanted)

    Machine().run(work)


def test_a_reader_of_a_sealed_extent_is_told_where_its_next_answer_will_end() -> None:
    sent = [block_of(f"{number}", 50 + 37 * number) for number in range(40)]
    length = sum(map(len, sent))

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, *sent)
        await tell_committed(store, 1, length)
        assert (await read(store, 1, max_bytes=500, next_max_bytes=2000)).next_end == 0  # it is open
        await seal(store, 1, length)
        assert (await read(store, 1, max_bytes=500)).next_end == 0  # it was not asked for
        answer = await read(store, 1, max_bytes=500, next_max_bytes=2000)
        answers = 1
        while answer.end < length:
            told = answer.next_end
            assert told > answer.end
            answer = await read(store, 1, answer.end, max_bytes=2000, next_max_bytes=2000)
            assert answer.end == told
            answers += 1
        assert (answers > 10, answer.next_end) == (True, 0)

    Machine().run(work)


def test_no_answer_is_foretold_that_damage_will_not_let_through() -> None:
    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, B, C)
        await seal(store, 1, len(A + B + C))
        store.state.replicas[1].state.note_damaged(len(A + B) + 1)
        answer = await read(store, 1, max_blocks=1, next_max_bytes=1000)
        assert (answer.end, answer.next_end) == (len(A), len(A + B))
        answer = await read(store, 1, len(A), max_blocks=1, next_max_bytes=1000)
        assert (answer.end, answer.next_end) == (len(A + B), 0)

    Machine().run(work)


def test_dirty_bytes_are_those_that_were_written_and_not_synced() -> None:
    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A, no_sync=True)
            await append(store, extent_id, len(A), B, no_sync=True)
        assert store.state.dirty.bytes_now == 2 * len(B)  # marking it as unsynced made the first one durable with it
        await append(store, 1, len(A + B), C)
        assert store.state.dirty.bytes_now == len(B)
        await delete(store, 2)
        assert store.state.dirty.bytes_now == 0

    Machine().run(work)


def test_the_index_of_a_sealed_extent_is_told_in_slices_that_meet_and_in_pages() -> None:
    sent = [block_of(f"{number}", 50 + 37 * number) for number in range(40)]
    starts = [sum(map(len, sent[:number])) for number in range(len(sent) + 1)]

    async def told(store: Storage, start: int, end: int, max_blocks: int = 0) -> list[tuple[int, int]]:
        """Offsets and sizes of the blocks that begin in [start, end), page by page."""
        found: list[tuple[int, int]] = []
        while True:
            result = await store.reader.read_index(
                pb.ReadIndexRequest(extent_id=1, start=start, end=end, max_blocks=max_blocks)
            )
            payload, count = b"".join(map(bytes, result.payload)), result.reply.blocks
            assert result.reply.total_blocks == len(sent)
            assert len(payload) == 5 * count
            offset = result.reply.first_offset
            for size_total in memoryview(payload)[: 4 * count].cast("I"):
                found.append((offset, size_total))
                offset += size_total
            if not result.reply.more:
                return found
            start = offset

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, *sent)
        await tell_committed(store, 1, starts[-1])
        request = pb.ReadIndexRequest(extent_id=1)
        assert await error_of(store.reader.read_index(request)) is ReplicaMissing  # it is open
        await seal(store, 1, starts[-1])
        everything = list(zip(starts[:-1], map(len, sent), strict=True))
        assert await told(store, 0, 0) == everything
        assert await told(store, 0, 0, max_blocks=7) == everything
        for cut in (1, starts[3], starts[3] + 1, starts[20] - 1, starts[-1] - 1, starts[-1], starts[-1] + 9):
            assert await told(store, 0, cut) + await told(store, cut, starts[-1] + 9) == everything
        request = pb.ReadIndexRequest(extent_id=1, replica=common_pb2.Replica(node_id=99))
        assert await error_of(store.reader.read_index(request)) is WrongReplica

    Machine().run(work)
