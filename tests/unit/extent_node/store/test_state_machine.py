"""One store against a simple model: Hypothesis draws what writers, managers, disks and the power company do.

Goal: in any order of appends, retries, late duplicates, overlaps, gaps, conflicts, raises, fences, seals, deletes,
kills, power cuts, restarts and disk errors, every answer is the one that the rules give, and every promise holds
afterwards.
Method: `store_model` keeps the promises; this adds which answer each request must get. 10,000 steps in a run of the
test suite, as many as wanted by NEVE_STATE_MACHINE_EXAMPLES (each is 50 steps).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from neve.extent_node.store.storage import Storage
from neve.proto import errors
from neve.proto import extent_node_pb2 as pb
from tests.sim.disks.disk import SimulatedCrash
from tests.sim.loop import SimLoop
from tests.unit.extent_node.store import rig
from tests.unit.extent_node.store.model import Ending, ExtentModel, Model

T = TypeVar("T")

EXAMPLES = int(os.environ.get("NEVE_STATE_MACHINE_EXAMPLES", "200"))
STEPS = 50
SHRINK = bool(os.environ.get("NEVE_STATE_MACHINE_SHRINK"))

EXTENTS = st.integers(1, 4)
SIZES = st.lists(st.integers(0, 1500), min_size=1, max_size=3)
TOKENS = st.integers(rig.TOKEN, rig.TOKEN + 3)

_fresh = rig.Machine(2, segment_bytes=12 << 10, checkpoint_interval_s=5.0)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.machine = _fresh.clone()
        self.model = Model()
        self.lengths: dict[int, int] = {}  # of replicas that are here
        self.committed: dict[int, int] = {}  # as told to this process
        self.tainted = False  # a disk failed under this process: it may refuse anything, but promises still hold
        self.blocks_made = 0
        self.loop = SimLoop(0)
        self.store = self._start()

    # --- processes -------------------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(self.machine._until_stopped(work))

    def _start(self) -> Storage:
        self.machine.processes += 1
        store = rig.make_store(self.machine.fs, self.machine.config, seed=self.machine.processes)
        self.do(store.start())
        self.tainted = False
        return store

    def _end_process(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def _restart(self, ending: Ending) -> None:
        """The process is over: begin another one on what is left, and compare."""
        self._end_process()
        if ending == "kill":
            self.machine.fs.crash()
        else:
            self.machine.fs.power_cut(ending)
        self._start_and_compare(ending)

    def _start_and_compare(self, ending: Ending) -> None:
        self.loop = SimLoop(self.machine.processes)  # other delays in each process
        self.store = self._start()
        self.do(self.model.check(self.store, self.machine.fs, ending))
        self.lengths, self.committed = {}, {}
        for extent in self.model.extents.values():
            self._look_at(extent)

    def _look_at(self, extent: ExtentModel) -> None:
        """Take over what the restarted store has: any of several states was allowed."""
        try:
            info = rig.describe(self.store, extent.extent_id)
        except errors.ReplicaDeleted:
            extent.deleted = True
            return
        except errors.ReplicaMissing:
            return
        self.lengths[extent.extent_id] = info.length
        extent.incarnation = info.replica.incarnation
        extent.fenced, extent.fence_sent = info.fenced, info.fenced
        extent.token = extent.token_sent = info.token
        if info.HasField("seal"):
            extent.seal = (info.seal.length, info.seal.digest)
        elif info.kind == pb.LengthAnswer.LENGTH:
            # Bytes that were sent and are gone may be replaced by others: the writer was never answered.
            extent.forget_above(info.length)

    def teardown(self) -> None:
        self._restart("lose_all")
        self._end_process()
        logging.disable(logging.NOTSET)

    # --- what an answer must be ------------------------------------------------------------------------------

    def _absent(self, extent_id: int) -> type[errors.NeveError] | None:
        if extent_id in self.lengths:
            return None
        extent = self.model.extents.get(extent_id)
        return errors.ReplicaDeleted if extent is not None and extent.deleted else errors.ReplicaMissing

    def _append_error(self, extent_id: int, start: int, token: int) -> type[errors.NeveError] | None:
        absent = self._absent(extent_id)
        if absent is not None:
            return absent
        extent = self.model.extent(extent_id)
        if extent.seal is not None:
            return errors.ExtentSealed
        if extent.fenced:
            return errors.ExtentFenced
        if extent.doubtful:
            return errors.ReplicaDoubtful
        if token < extent.token:
            return errors.LockedByOther
        if start > self.lengths[extent_id]:
            return errors.Gap
        return None

    def _send(self, *segments: tuple[pb.Segment, bytes]) -> None:
        """Append, and compare each answer with the one that the rules give."""
        wanted = [self._append_error(sent.extent_id, sent.offset, sent.token) for sent, _ in segments]
        results = self.do(self.model.append(self.store, *segments))
        for (sent, body), error, result in zip(segments, wanted, results, strict=True):
            if result.HasField("error"):
                got = type(errors.from_message(result.error))
                assert self.tainted or got is error, (got, error, sent)
            else:
                assert error is None, (error, sent)
                self.lengths[sent.extent_id] = max(self.lengths[sent.extent_id], sent.offset + len(body))
                assert self.tainted or result.length == self.lengths[sent.extent_id]

    def _raises(self, work: Awaitable[Any]) -> type[errors.NeveError] | None:
        async def catch() -> type[errors.NeveError] | None:
            try:
                await work
            except errors.NeveError as error:
                return type(error)
            return None

        return self.do(catch())

    def _new_blocks(self, extent_id: int, sizes: list[int]) -> list[bytes]:
        self.blocks_made += 1
        return [rig.block_of(f"{extent_id}.{self.blocks_made}.{n}", size) for n, size in enumerate(sizes)]

    def _at_end(self, extent_id: int) -> bool:
        """The writer has nothing under way: its sequence ends where the replica does."""
        return len(self.model.extent(extent_id).sequence) == self.lengths.get(extent_id, 0)

    # --- writers ---------------------------------------------------------------------------------------------

    @initialize(extent_ids=st.sets(EXTENTS, min_size=1))
    def begin(self, extent_ids: set[int]) -> None:
        for extent_id in extent_ids:
            self.create(extent_id, 0)

    @rule(extent_id=EXTENTS, disk=st.integers(0, 1))
    def create(self, extent_id: int, disk: int) -> None:
        known = self.model.extents.get(extent_id)
        if known is not None and known.create_sent:
            return
        error = self._raises(self.model.create(self.store, extent_id, disk=disk))
        if error is None:
            self.lengths[extent_id] = 0
        elif known is not None and known.deleted:
            assert error is errors.ReplicaDeleted
            known.create_sent = False
        else:
            assert self.tainted, error
            self.model.extent(extent_id).create_sent = False

    @rule(extent_id=EXTENTS, sizes=SIZES, no_sync=st.booleans(), token=TOKENS)
    def append_blocks(self, extent_id: int, sizes: list[int], no_sync: bool, token: int) -> None:
        if not self._at_end(extent_id):
            return
        made = self._new_blocks(extent_id, sizes)
        if self._append_error(extent_id, 0, token) is not None:
            offset = len(self.model.extent(extent_id).sequence)
            self._send(rig.segment(extent_id, offset, made, no_sync=no_sync, token=token))
            return
        self._send(self.model.next_segment(extent_id, *made, no_sync=no_sync, token=token))

    @rule(sizes=SIZES, no_sync=st.sampled_from([(), (1,), (2, 3)]), rounds=st.integers(1, 4))
    def append_to_all(self, sizes: list[int], no_sync: tuple[int, ...], rounds: int) -> None:
        """What goes through the journal."""
        for _ in range(rounds):
            able = [
                extent_id
                for extent_id in self.lengths
                if self._at_end(extent_id) and self._append_error(extent_id, 0, self._token(extent_id)) is None
            ]
            self._send(
                *(
                    self.model.next_segment(
                        extent_id,
                        *self._new_blocks(extent_id, sizes),
                        no_sync=extent_id in no_sync,
                        token=self._token(extent_id),
                    )
                    for extent_id in able
                )
            )

    def _token(self, extent_id: int) -> int:
        return max(rig.TOKEN, self.model.extent(extent_id).token)

    @rule(extent_id=EXTENTS, data=st.data(), no_sync=st.booleans(), more=st.booleans())
    def send_again(self, extent_id: int, data: st.DataObject, no_sync: bool, more: bool) -> None:
        """A retry, a late duplicate, or an overlap: old bytes and, if `more`, new ones behind them."""
        extent = self.model.extent(extent_id)
        if len(extent.boundaries) < 2 or not self._at_end(extent_id):
            return
        token = self._token(extent_id)
        more = more and self._append_error(extent_id, 0, token) is None
        if more:
            self.model.next_segment(extent_id, *self._new_blocks(extent_id, [20]), no_sync=no_sync, token=token)
        last = len(extent.boundaries) - 1
        first = data.draw(st.integers(0, last - 1))
        until = last if more else data.draw(st.integers(first + 1, last))
        start, end = extent.boundaries[first], extent.boundaries[until]
        self._send(self.model.segment(extent_id, start, end, no_sync=no_sync, token=token))

    @rule(extent_id=EXTENTS)
    def leave_a_gap(self, extent_id: int) -> None:
        offset = self.lengths.get(extent_id, 0) + 100
        self._send(rig.segment(extent_id, offset, [rig.block_of("gap")], token=self._token(extent_id)))

    @rule(extent_id=EXTENTS, data=st.data())
    def send_other_bytes(self, extent_id: int, data: st.DataObject) -> None:
        extent = self.model.extent(extent_id)
        token = self._token(extent_id)
        if len(extent.boundaries) < 2 or not self._at_end(extent_id):
            return
        start = data.draw(st.sampled_from(extent.boundaries[:-1]))
        wanted = self._append_error(extent_id, start, token) or errors.Conflict
        message, body = rig.segment(extent_id, start, [rig.block_of(random.Random(start).randbytes(30))], token=token)
        (result,) = self.do(rig.append_all(self.store, (message, body)))
        assert self.tainted or type(errors.from_message(result.error)) is wanted

    # --- readers ---------------------------------------------------------------------------------------------

    @rule(extent_id=EXTENTS, data=st.data())
    def commit_and_read(self, extent_id: int, data: st.DataObject) -> None:
        extent = self.model.extent(extent_id)
        token = self._token(extent_id)
        if self._append_error(extent_id, 0, token) is not None or self.tainted:
            return
        committed = data.draw(st.sampled_from([b for b in extent.boundaries if b <= self.lengths[extent_id]]))
        self.do(rig.tell_committed(self.store, extent_id, committed, token=token))
        committed = self.committed[extent_id] = max(committed, self.committed.get(extent_id, 0))
        start = data.draw(st.sampled_from([b for b in extent.boundaries if b <= committed]))
        assert self.do(rig.read_bytes(self.store, extent_id, start)) == extent.sequence[start:committed]

    @rule(extent_id=EXTENTS)
    def read_sealed(self, extent_id: int) -> None:
        extent = self.model.extent(extent_id)
        if extent.seal is not None and extent_id in self.lengths and not self.tainted:
            assert self.do(rig.read_bytes(self.store, extent_id)) == extent.sequence[: extent.seal[0]]

    # --- the manager -----------------------------------------------------------------------------------------

    @rule(extent_id=EXTENTS, token=TOKENS)
    def raise_the_token(self, extent_id: int, token: int) -> None:
        extent = self.model.extent(extent_id)
        before = extent.token
        self._ask_length(extent, lambda: self.model.raise_token(self.store, extent_id, token), token < before)

    @rule(extent_id=EXTENTS)
    def fence(self, extent_id: int) -> None:
        extent = self.model.extent(extent_id)
        self._ask_length(extent, lambda: self.model.fence(self.store, extent_id), False)

    def _ask_length(self, extent: ExtentModel, ask: Callable[[], Awaitable[pb.LengthAnswer]], refused: bool) -> None:
        async def catch() -> pb.LengthAnswer | errors.NeveError:
            try:
                return await ask()
            except errors.NeveError as error:
                return error

        answer = self.do(catch())
        kinds = pb.LengthAnswer
        if isinstance(answer, errors.NeveError):
            assert self.tainted or (refused and isinstance(answer, errors.LockedByOther)), answer
            return
        if extent.extent_id not in self.lengths:
            assert answer.kind == (kinds.DELETED if extent.deleted else kinds.NEVER_EXISTED)
        elif extent.doubtful and extent.seal is None:
            assert answer.kind == kinds.DOUBTFUL
        else:
            assert self.tainted or answer.kind == kinds.LENGTH
            assert answer.kind != kinds.LENGTH or answer.length == self.lengths[extent.extent_id]

    @rule(extent_id=EXTENTS, data=st.data())
    def seal(self, extent_id: int, data: st.DataObject) -> None:
        extent = self.model.extent(extent_id)
        if extent_id not in self.lengths or not self._at_end(extent_id):
            return
        if extent.seal_sent is None:
            floor = self.committed.get(extent_id, 0)
            length = data.draw(st.sampled_from([b for b in extent.boundaries if b >= floor]))
            if length < extent.any_end:  # another replica had less, so nothing above was acknowledged to anybody
                extent.sync_end, extent.any_end = min(extent.sync_end, length), length
        else:
            length = extent.seal_sent
        error = self._raises(self.model.seal(self.store, extent_id, length))
        if error is None and extent.seal is not None:
            self.lengths[extent_id] = length
            extent.forget_above(length)
        else:
            # After a failed sync nothing here may be believed in this boot: a copy replaces the replica. So it does if
            # bytes that a power cut damaged are below the seal; then they were never answered as durable.
            excused = extent.doubt_excused or (extent.doubtful and extent.sync_end < length)
            assert self.tainted or (error is None and excused), (error, extent)

    @rule(extent_id=EXTENTS)
    def delete(self, extent_id: int) -> None:
        error = self._raises(self.model.delete(self.store, extent_id))
        if error is None:
            self.lengths.pop(extent_id, None)
        else:
            assert self.tainted, error

    # --- the machine -----------------------------------------------------------------------------------------

    @rule()
    def wait(self) -> None:
        self.do(asyncio.sleep(6))  # the checkpointer and the housekeeper come by

    @rule(ending=st.sampled_from(["kill", "kill", "lose_all", "random"]), seed=st.integers(0, 1 << 16))
    def end_and_restart(self, ending: Ending, seed: int) -> None:
        # Never twice the same: boot ids are drawn from it, too.
        self.machine.fs.rng.seed(f"{seed} {self.machine.processes}")
        self._restart(ending)

    @rule(ending=st.sampled_from(["lose_all", "random"]), seed=st.integers(0, 1 << 16))
    def mount_all_anew(self, ending: Literal["lose_all", "random"], seed: int) -> None:
        """In the same boot (rule 12)."""
        self._end_process()
        fs = self.machine.fs
        fs.rng.seed(f"{seed} {self.machine.processes}")
        for folder in ("/disk0", "/disk1", rig.JOURNAL):
            fs.remount(folder, ending)
        self._start_and_compare(ending)

    @rule(disk=st.integers(0, 1), ending=st.sampled_from(["kill", "lose_all"]), clean=st.booleans())
    def start_without_a_disk(self, disk: int, ending: Ending, clean: bool) -> None:
        """It misses a process, and has everything when it is back (T32)."""
        self._end_process()
        if ending == "kill":
            self.machine.fs.crash()
        else:
            self.machine.fs.power_cut(ending)
        self.machine.take_disk_away(disk)
        self.loop = SimLoop(self.machine.processes)
        self.store = self._start()
        self.do(self.store.verified())
        self.wait()
        if clean:
            self.do(self.store.stop(clean=True))
        self._end_process()
        self.machine.fs.crash()
        self.machine.bring_disk_back(disk)
        self._start_and_compare(ending)

    @rule()
    def stop_cleanly_and_restart(self) -> None:
        self.do(self.store.stop(clean=True))
        if not self.tainted:
            for extent in self.model.extents.values():
                if not extent.doubtful:
                    extent.sync_end, extent.no_sync_sent = extent.any_end, False
        self._restart("kill")

    @rule(
        ending=st.sampled_from(["kill", "lose_all", "random"]),
        steps=st.integers(1, 12),
        torn=st.booleans(),
        what=st.sampled_from(["append", "append_no_sync", "fence", "seal", "delete", "wait"]),
        extent_id=EXTENTS,
    )
    def die_in_the_middle(self, ending: Ending, steps: int, torn: bool, what: str, extent_id: int) -> None:
        fs = self.machine.fs
        fs.stop_at(fs.steps + steps, "torn" if torn else "before")
        try:
            if what.startswith("append"):
                self.append_to_all([70, 300], (extent_id,) if what == "append_no_sync" else (), 2)
            elif what == "fence":
                self.fence(extent_id)
            elif what == "seal" and extent_id in self.lengths and self._at_end(extent_id):
                extent = self.model.extent(extent_id)
                if extent.seal_sent is None:
                    self._raises(self.model.seal(self.store, extent_id, len(extent.sequence)))
            elif what == "delete":
                self._raises(self.model.delete(self.store, extent_id))
            else:
                self.wait()
        except SimulatedCrash:
            pass
        self._restart(ending)

    # --- faults of disks -------------------------------------------------------------------------------------

    @precondition(lambda self: not self.tainted)
    @rule(extent_id=EXTENTS, what=st.sampled_from(["fdatasync", "fsync"]))
    def fail_a_sync_of_an_extent(self, extent_id: int, what: str) -> None:
        """T23: whoever waits for it is not acknowledged, and its disk is not believed any more."""
        fs = self.machine.fs
        fault = fs.fail(errno.EIO, match=lambda operation, path: operation == what and f"{extent_id:016x}" in path)
        self.tainted = True
        if what == "fdatasync":
            self.append_blocks(extent_id, [40], False, self._token(extent_id))
        else:
            self.fence(extent_id)
        if fault.left == 0:
            for extent in self.model.extents.values():
                extent.doubt_excused = True
            self.do(asyncio.sleep(1))  # the failure is written down; a kill before that is another fault on top
        else:
            fault.clear()
            self.tainted = False

    @precondition(lambda self: not self.tainted)
    @rule()
    def fail_a_sync_of_the_journal(self) -> None:
        fault = self.machine.fs.fail(errno.EIO, match=lambda op, path: op == "fdatasync" and path.endswith(".seg"))
        self.tainted = True
        self.append_to_all([50], (), 1)
        fault.clear()
        self.tainted = False
        self._sync_lengths()

    @precondition(lambda self: not self.tainted)
    @rule(extent_id=EXTENTS)
    def fill_the_disk(self, extent_id: int) -> None:
        """T24: the append is refused, nothing of it stays, and the disk takes appends again when there is room."""
        if self._append_error(extent_id, 0, self._token(extent_id)) is not None or not self._at_end(extent_id):
            return
        fault = self.machine.fs.fail(errno.ENOSPC, match=lambda op, path: op == "pwrite" and path.endswith(".ext"))
        message, body = rig.segment(
            extent_id, self.lengths[extent_id], [rig.block_of("no room")], token=self._token(extent_id)
        )
        (result,) = self.do(rig.append_all(self.store, (message, body)))
        assert type(errors.from_message(result.error)) is errors.DiskFull
        assert result.length == self.lengths[extent_id]
        fault.clear()
        self.model.extent(extent_id).token_sent = max(self.model.extent(extent_id).token_sent, message.token)
        self.wait()
        info = rig.describe(self.store, extent_id)
        self.model.extent(extent_id).token = info.token

    def _sync_lengths(self) -> None:
        """After appends that failed: their bytes may be in the replica all the same."""
        for extent_id in list(self.lengths):
            self.lengths[extent_id] = rig.describe(self.store, extent_id).length

    @invariant()
    def states_are_valid(self) -> None:
        for found in self.store.state.replicas.values():
            found.state.validate()
        total = sum(found.dirty_bytes for found in self.store.state.replicas.values())
        assert self.tainted or self.store.state.dirty.bytes_now == total


StoreMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize="NEVE_STATE_MACHINE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
    # Shrinking replays the machine hundreds of times, and takes minutes: by NEVE_STATE_MACHINE_SHRINK=1.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if SHRINK else [])],
)
TestStoreMachine = StoreMachine.TestCase
