"""A disk that hangs, a process short of descriptors, no room for dirty bytes: bounded, in order, nothing lost."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neve.extent_node.disk.threads import Threads
from neve.extent_node.journal.commit_queue import AppendCall, CommitQueue
from neve.extent_node.servicer import AUDITS_MAX, LIST_LIMIT_MAX, LIST_REPLICA_BYTES, ExtentNodeServicer
from neve.extent_node.store import append as store_append
from neve.extent_node.store import replay as store_replay
from neve.extent_node.store.append import PendingAppend
from neve.extent_node.store.dirty_bytes import DirtyBytes
from neve.extent_node.store.read import INDEX_BLOCK_BYTES, INDEX_BLOCKS_MAX
from neve.extent_node.store.replica import Replica
from neve.extent_node.store.start import ShortOfResources
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFailed, InvalidArgument, Overloaded, ReplicaMissing, ShuttingDown
from tests.unit.extent_node.store.rig import (
    TOKEN,
    Machine,
    append,
    append_all,
    block_of,
    config_for,
    create,
    delete,
    error_of,
    fence,
    raise_token,
    read_bytes,
    seal,
    segment,
    tell_committed,
)

Kind = pb.LengthAnswer

A, B, C = block_of("a", 100), block_of("b", 300), block_of("c", 50)


class Hanging:
    """Calls in threads do not come back before they are let go."""

    def __init__(self, store: Storage) -> None:
        self._store = store.state
        self._held: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._run = self._store.run
        self._store.run = self._hold  # type: ignore[method-assign]

    def _hold(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._held.append((future, function, args))
        return future

    async def done(self, name: str) -> asyncio.Future[Any]:
        """Do the call of that name; what waits for it is told by the future, which is the caller's to set."""
        (held,) = (held for held in self._held if held[1].__name__ == name)
        self._held.remove(held)
        await self._run(held[1], *held[2])
        return held[0]

    async def let_go(self) -> None:
        self._store.run = self._run  # type: ignore[method-assign]
        for future, function, args in self._held:
            result = await self._run(function, *args)
            if not future.done():
                future.set_result(result)


async def given_up(work: Any) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await work


# --- retries whose callers have given up ---------------------------------------------------------------------


def test_retries_that_were_given_up_wait_nowhere_while_a_sync_hangs() -> None:
    machine = Machine(checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        hanging = Hanging(store)
        first = asyncio.ensure_future(append(store, 1, len(A), B))
        await asyncio.sleep(0.01)
        found = store.state.replicas[1]
        for _ in range(20):  # the overlap is compared in a thread, which hangs as well: they wait for their turn
            await given_up(append(store, 1, len(A), B))
        assert found.lock.waiting <= 1
        assert len(store.state._tasks) < 10
        assert found.commit is not None
        assert len(found.commit.waits) == 1
        await hanging.let_go()
        assert (await first).end == len(A + B)
        await append(store, 1, len(A + B), C)
        await tell_committed(store, 1, len(A + B + C))
        assert await read_bytes(store, 1) == A + B + C

    machine.run(work)


def test_new_appends_that_were_given_up_stay_and_are_durable_with_the_next() -> None:
    machine = Machine(checkpoint_interval_s=3600.0, journal_extents_min=1 << 30)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        hanging = Hanging(store)
        for offset in (len(A), len(A + B)):
            await given_up(append(store, 1, offset, B))
        found = store.state.replicas[1]
        assert found.commit is not None
        assert found.commit.waits == []
        assert found.commit.pieces_bytes == 0
        last = asyncio.ensure_future(append(store, 1, len(A + B + B), C))
        await asyncio.sleep(0.01)
        await hanging.let_go()
        assert (await last).end == len(A + B + B + C)

    async def after(store: Storage) -> None:
        assert (await fence(store, 1)).length == len(A + B + B + C)

    machine.run(work)
    machine.fs.power_cut()
    machine.run(after)


def test_bytes_that_are_too_many_for_the_journal_are_not_kept_for_it() -> None:
    machine = Machine(checkpoint_interval_s=3600.0, in_place_bytes_min=1000, journal_extents_min=1 << 30)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, B)
        hanging = Hanging(store)
        waiting = []
        for number in range(1, 10):
            waiting.append(asyncio.ensure_future(append(store, 1, number * len(B), B)))
            await asyncio.sleep(0.01)
            found = store.state.replicas[1]
            assert found.commit is not None
            assert found.commit.pieces_bytes < 1000
        await hanging.let_go()
        assert [result.end for result in await asyncio.gather(*waiting)] == [len(B) * (n + 1) for n in range(1, 10)]

    machine.run(work)


def test_an_append_that_was_given_up_before_its_turn_is_not_carried_out_and_the_next_one_is_in_order() -> None:
    machine = Machine(checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        hanging = Hanging(store)
        new_owner = asyncio.ensure_future(append(store, 1, len(A), B, token=TOKEN + 1))  # its token is fsynced first
        await asyncio.sleep(0.01)
        await given_up(append(store, 1, len(A + B), C, token=TOKEN + 1))
        behind = asyncio.ensure_future(append(store, 1, len(A + B), block_of("other"), token=TOKEN + 1))
        await asyncio.sleep(0.01)
        await hanging.let_go()
        assert (await new_owner).end == len(A + B)
        assert (await behind).end == len(A + B + block_of("other"))

    machine.run(work)


def test_orders_that_pile_up_behind_a_hanging_disk_are_refused_above_a_bound() -> None:
    machine = Machine(orders_max=5, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        await create(store, 1)
        hanging = Hanging(store)
        for _ in range(5):
            await given_up(raise_token(store, 1, TOKEN))
        assert await error_of(raise_token(store, 1, TOKEN)) is Overloaded
        assert await error_of(create(store, 2)) is Overloaded
        await hanging.let_go()
        await asyncio.sleep(1)
        assert (await raise_token(store, 1, TOKEN)).kind == Kind.LENGTH

    machine.run(work)


def test_reads_that_need_a_thread_are_refused_when_too_much_waits_for_one() -> None:
    machine = Machine(backlog_max=3)

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
            await tell_committed(store, extent_id, len(A))
        await seal(store, 1, len(A))
        threads = store.state._pool = Threads(1, name="test")
        threads.unfinished = 3
        index, some = pb.ReadIndexRequest(extent_id=1), pb.ReadRangeRequest(extent_id=1, length=1)
        for reading in (
            read_bytes(store, 1),
            store.reader.read_index(index),
            store.reader.read_range(some),
        ):
            assert await error_of(reading) is Overloaded
        assert await read_bytes(store, 2) == A  # written a moment ago: it is read on the loop
        threads.unfinished = 2
        store.state.check_backlog()
        store.state._pool = None  # the simulated loop's own
        assert await read_bytes(store, 1) == A
        store.state._pool, threads.unfinished = threads, 3
        assert await read_bytes(store, 1) == A  # it is open and in memory now

    machine.run(work)


async def test_a_queue_that_forgets_a_call_still_waits_for_the_others() -> None:
    queue, one, other = CommitQueue(), AppendCall(1), AppendCall(1)
    one.pending = other.pending = 1
    queue.add(100, other, 0, 0, memoryview(bytes(100)))
    queue.add(300, one, 0, 100, memoryview(bytes(200)))
    one.given_up = True
    queue.forget(one)
    assert (queue.end_wanted, queue.pieces_bytes) == (100, 300)
    queue.settle(100)
    assert (other.pending, one.pending, queue.waits) == (0, 1, [])


class Counted(list[tuple[int, AppendCall, int]]):
    """Counts how many of its items are gone through."""

    looked_at = 0

    def __iter__(self) -> Iterator[tuple[int, AppendCall, int]]:
        Counted.looked_at += len(self)
        return super().__iter__()


async def test_calls_that_are_given_up_all_at_once_are_not_gone_through_for_each_of_them() -> None:
    queue, calls = CommitQueue(), [AppendCall(1) for _ in range(4096)]
    for number, call in enumerate(calls):
        call.pending = 1
        queue.add(number + 1, call, 0, number, None)
    for call in calls[:-1]:
        call.given_up = True
        queue.waits = Counted(queue.waits) if type(queue.waits) is list else queue.waits
        queue.forget(call)
    assert [call for _, call, _ in queue.waits] == calls[-1:]
    assert queue.end_wanted == 4096
    assert Counted.looked_at < 4 * 4096


# --- what was under way when a replica or a disk went --------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
def test_a_sync_that_is_about_to_begin_when_its_replica_is_deleted_is_no_fault_of_the_disk(turns: int) -> None:
    machine = Machine(checkpoint_interval_s=3600.0, journal_extents_min=1 << 30)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        hanging = Hanging(store)
        appended = []
        for offset, block in ((len(A), B), (len(A + B), C)):  # the second is for the next sync
            appended.append(asyncio.ensure_future(append(store, 1, offset, block)))
            await asyncio.sleep(0.01)
        deleted = asyncio.ensure_future(delete(store, 1))
        await asyncio.sleep(0.01)
        (await hanging.done("bury")).set_result(None)
        await asyncio.sleep(0.01)
        moved, synced = await hanging.done("move_to_trash"), await hanging.done("sync_data")
        await hanging.let_go()
        synced.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        moved.set_result(None)
        assert await deleted
        await asyncio.gather(*appended, return_exceptions=True)
        assert [disk.state for disk in store.inventory.disks()] == [pb.DiskInfo.WRITABLE]
        assert store.state.counters.sync_failures == 0

    machine.run(work)


def test_a_sync_that_ends_after_its_disk_failed_leaves_no_bytes_that_others_wait_for() -> None:
    machine = Machine(
        2, checkpoint_interval_s=3600.0, journal_extents_min=1 << 30, dirty_bytes_soft=100, dirty_bytes_hard=200
    )

    async def work(store: Storage) -> None:
        await create(store, 1, disk=0)
        await create(store, 2, disk=1)
        await append(store, 1, 0, A)
        hanging = Hanging(store)
        appended = []
        for offset, block in ((len(A), A), (len(A + A), B)):
            appended.append(asyncio.ensure_future(append(store, 1, offset, block)))
            await asyncio.sleep(0.01)
        synced = await hanging.done("sync_data")
        await hanging.let_go()
        found = store.state.replicas[1]
        store.state.disk_error(found.disk, 1, OSError(errno.EIO, "another file of it"))
        await asyncio.sleep(0.01)
        synced.set_result(None)
        await asyncio.gather(*appended, return_exceptions=True)
        assert store.state.dirty.bytes_now == 0
        async with asyncio.timeout(60):
            assert (await append(store, 2, 0, A)).end == len(A)

    machine.run(work)


# --- waiting for room ----------------------------------------------------------------------------------------


class Written:
    """What is counted of a replica, and the count."""

    gone = False
    state = SimpleNamespace(read_only=None)

    def __init__(self, **changes: Any) -> None:
        config = config_for(dirty_bytes_soft=0, dirty_bytes_hard=10, **changes)
        self.counted = DirtyBytes(config, wake_checkpointer=lambda: None)
        self.dirty_bytes = 0

    def write(self, size_bytes: int) -> None:
        self.dirty_bytes += size_bytes
        self.counted.update(cast(Replica, self))

    def forget(self) -> None:
        self.dirty_bytes = 0
        self.counted.forget(cast(Replica, self))


async def test_who_waits_for_room_is_not_overtaken() -> None:
    replica = Written()
    counted = replica.counted
    order: list[str] = []

    async def come(name: str) -> None:
        if counted.must_wait:
            await counted.wait_for_room()
        order.append(name)
        replica.write(6)

    replica.write(11)
    waiting = [asyncio.ensure_future(come(name)) for name in "abc"]
    await asyncio.sleep(0)
    replica.forget()  # room for two of them; the third waits on
    assert counted.must_wait
    waiting.append(asyncio.ensure_future(come("d")))  # before the others have gone on
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == ["a", "b"]
    replica.forget()
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c", "d"]
    assert counted.bytes_now == 12


async def test_one_who_gives_up_waiting_for_room_holds_up_nobody() -> None:
    replica = Written(append_waiters_max=2)
    counted = replica.counted
    replica.write(11)
    waiting = [asyncio.ensure_future(counted.wait_for_room()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await counted.wait_for_room()
    replica.forget()
    waiting[0].cancel()
    await waiting[1]
    assert not counted.must_wait
    replica.write(11)
    last = [asyncio.ensure_future(counted.wait_for_room()) for _ in range(2)]
    await asyncio.sleep(0)
    counted.stop()
    assert [type(end) for end in await asyncio.gather(*last, return_exceptions=True)] == [ShuttingDown] * 2


def test_appends_that_wait_for_room_are_carried_out_in_the_order_of_coming() -> None:
    machine = Machine(dirty_bytes_soft=0, dirty_bytes_hard=600)

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        waiting = []
        for number in range(30):
            waiting.append(asyncio.ensure_future(append(store, 1, len(A) + number * len(B), B)))
            for _ in range(number % 4):
                await asyncio.sleep(0)
        ends = [result.end for result in await asyncio.gather(*waiting)]
        assert ends == [len(A) + (number + 1) * len(B) for number in range(30)]

    machine.run(work)


# --- short of descriptors ------------------------------------------------------------------------------------


def journaled(extents: int) -> Machine:
    machine = Machine(journal_extents_min=1, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        for extent_id in range(1, extents + 1):
            await create(store, extent_id)
        for offset in (0, len(A)):
            await append_all(store, *(segment(extent_id, offset, [A]) for extent_id in range(1, extents + 1)))

    machine.run(work)
    machine.fs.power_cut()
    return machine


async def lengths(store: Storage) -> list[int]:
    assert [disk.state for disk in store.inventory.disks()] == [pb.DiskInfo.WRITABLE]
    return [(await fence(store, extent_id)).length for extent_id in sorted(store.state.replicas)]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("fragment", [".ext", "boot.json", "/lock", ".seg"])
def test_a_start_that_is_short_of_descriptors_fails_as_that_and_no_disk_is_the_worse_for_it(
    code: int, fragment: str
) -> None:
    machine = journaled(3)
    fault = machine.fs.fail(
        code, match=lambda operation, path: operation in ("open", "lock") and fragment in path, times=None
    )
    with pytest.raises(ShortOfResources, match="ulimit -n"):
        machine.run(lengths)
    fault.clear()
    assert machine.run(lengths) == [2 * len(A)] * 3  # in the same process: the locks were given back


def test_a_replay_that_is_short_of_descriptors_is_no_fault_of_the_disk() -> None:
    machine = journaled(3)
    replaying = False

    def while_replaying(operation: str, path: str) -> bool:
        nonlocal replaying
        replaying = replaying or (operation == "pread" and path.endswith(".seg"))
        return replaying and operation == "open" and path.endswith(".ext")

    fault = machine.fs.fail(errno.EMFILE, match=while_replaying, times=None)
    with pytest.raises(ShortOfResources):
        machine.run(lengths)
    fault.clear()
    machine.fs.power_cut()
    assert machine.run(lengths) == [2 * len(A)] * 3


def test_finishing_a_delete_short_of_descriptors_is_no_fault_of_the_disk() -> None:
    machine = Machine(2)

    async def make(store: Storage) -> None:
        await create(store, 1, disk=0)
        await store.stop()

    async def remove(store: Storage) -> None:
        await delete(store, 1)  # its tombstone is on the other disk

    async def states(store: Storage) -> list[int]:
        return [disk.state for disk in store.inventory.disks()]

    machine.run(make)
    machine.take_disk_away(0)
    machine.restart(remove)
    machine.fs.crash()
    machine.bring_disk_back(0)
    fault = machine.fs.fail(
        errno.EMFILE, match=lambda operation, path: operation == "fsync_dir" and path.endswith("/trash"), times=None
    )
    with pytest.raises(ShortOfResources):
        machine.run(states)
    fault.clear()
    assert machine.run(states) == [pb.DiskInfo.WRITABLE] * 2


def test_a_replay_opens_few_files_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_replay, "OPEN_MAX", 3)
    machine = journaled(12)
    most = 0

    def count(operation: str, path: str) -> bool:
        nonlocal most
        most = max(most, sum(opened.path.endswith(".ext") for opened in machine.fs._open.values()))
        return False

    machine.fs.fail(errno.EIO, match=count, times=None)

    async def start_only(store: Storage) -> None:
        assert store.state.counters.replayed_records == 24

    machine.run(start_only)
    assert 1 <= most <= 4
    machine.fs.power_cut()
    assert machine.run(lengths) == [2 * len(A)] * 12


def test_a_server_takes_all_the_descriptors_that_it_is_allowed() -> None:
    program = """
import resource
from neve.rpc.descriptors import raise_descriptor_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_descriptor_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- what others ask for at once -----------------------------------------------------------------------------


def servicer_of(store: Storage) -> ExtentNodeServicer:
    return ExtentNodeServicer(store, cast(Any, None), cast(Any, None), cluster="c", node_id=1, read_bytes_max=1 << 20)


def test_audits_by_order_are_bounded() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        servicer, request = servicer_of(store), pb.AuditReplicaRequest(extent_id=1)
        hanging = Hanging(store)
        under_way = [asyncio.ensure_future(servicer.audit_replica(request, cast(Any, None))) for _ in range(AUDITS_MAX)]
        await asyncio.sleep(0.01)
        assert await error_of(servicer.audit_replica(request, cast(Any, None))) is Overloaded
        await hanging.let_go()
        assert [reply.blocks for reply in await asyncio.gather(*under_way)] == [1] * AUDITS_MAX
        assert (await servicer.audit_replica(request, cast(Any, None))).blocks == 1

    machine.run(work)


def test_room_for_a_large_index_is_taken_before_it_is_made() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A, B)
        await seal(store, 1, len(A + B))
        reserved: list[int] = []

        async def reserve(size_bytes: int) -> None:
            reserved.append(size_bytes)

        call = cast(Any, SimpleNamespace(reserve_reply=reserve, attach=lambda *buffers: None))
        for max_blocks, blocks in ((0, 2), (1, 1), (1 << 31, 2)):
            request = pb.ReadIndexRequest(extent_id=1, max_blocks=max_blocks)
            assert (await servicer_of(store).read_index(request, call)).blocks == blocks
        assert reserved == [INDEX_BLOCKS_MAX * INDEX_BLOCK_BYTES] * 2

    machine.run(work)


def test_room_for_a_long_list_is_taken_before_it_is_made_and_is_enough() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1 << 63)
        await append(store, 1 << 63, 0, A)
        await seal(store, 1 << 63, len(A))
        reserved: list[int] = []

        async def reserve(size_bytes: int) -> None:
            reserved.append(size_bytes)

        call = cast(Any, SimpleNamespace(reserve_reply=reserve))
        for limit in (0, 1, LIST_LIMIT_MAX + 1):
            listed = await servicer_of(store).list_replicas(pb.ListReplicasRequest(limit=limit), call)
            assert len(listed.replicas) == 1
        assert reserved == [LIST_LIMIT_MAX * LIST_REPLICA_BYTES] * 2
        largest = pb.ReplicaInfo()
        largest.CopyFrom(listed.replicas[0])
        for field in largest.DESCRIPTOR.fields:
            if field.type == field.TYPE_UINT64:
                setattr(largest, field.name, (1 << 64) - 1)
        assert largest.HasField("seal")
        assert largest.ByteSize() <= LIST_REPLICA_BYTES

    machine.run(work)


# --- an error is not length 0 --------------------------------------------------------------------------------


def test_t01_an_error_for_a_replica_that_is_not_here_has_no_length() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        missing, wrong = await append_all(store, segment(9, 0, [A]), segment(1, 50, [A]))
        assert missing.error.code == ReplicaMissing.code
        assert not missing.HasField("length")
        assert wrong.HasField("error")
        assert wrong.HasField("length")
        assert wrong.length == 0  # this one is here, and empty

    machine.run(work)


def test_what_is_answered_at_once_is_only_what_needs_nothing_else() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)

        def now(message: pb.Segment, body: bytes) -> pb.AppendBlockReply | None:
            """The answer, unless it comes later."""
            begun = store_append.begin_append(store.state, [message], memoryview(body), brief=False)
            return begun if isinstance(begun, pb.AppendBlockReply) else None

        async def later(message: pb.Segment, body: bytes) -> pb.SegmentResult:
            begun = store_append.begin_append(store.state, [message], memoryview(body), brief=False)
            assert isinstance(begun, PendingAppend)
            (result,) = (await begun).results
            return result

        # A higher token, and `unsynced`: both are fsynced first.
        assert (await later(*segment(1, 0, [A], no_sync=True))).end == len(A)
        assert store.state.replicas[1].state.unsynced
        end, length = len(A), len(A + B)
        assert (await later(*segment(1, 0, [A], no_sync=True))).end == len(A)  # a retry is compared
        for refused in (segment(9, 0, [A], no_sync=True), segment(1, end + 1, [B], no_sync=True)):
            reply = now(*refused)
            assert reply is not None
            assert reply.results[0].HasField("error")
        assert store_append.begin_append(store.state, [], memoryview(b""), brief=False) == pb.AppendBlockReply()
        message, body = segment(1, end, [B], no_sync=True)
        with pytest.raises(InvalidArgument):
            now(message, body + b"x")
        assert store.state.replicas[1].state.length == len(A)
        reply = now(message, body)
        assert reply is not None
        assert [(result.end, result.length) for result in reply.results] == [(length, length)]
        assert store.state.counters.appends == 2
        told = now(*segment(1, 0, [], committed=length, no_sync=True))
        assert told is not None
        assert await read_bytes(store, 1) == A + B
        machine.fs.fail(errno.EIO, match=lambda operation, path: operation == "pwrite" and path.endswith(".ext"))
        failed = now(*segment(1, length, [C], no_sync=True))
        assert failed is not None
        assert failed.results[0].error.code == DiskFailed.code
        store.state.stopping = True
        request = pb.AppendBlockRequest(segments=[message])
        call = cast(Any, SimpleNamespace(attachment=memoryview(body), checksummed=True))
        with pytest.raises(ShuttingDown):
            servicer_of(store).append_block(request, call)

    machine.run(work)
