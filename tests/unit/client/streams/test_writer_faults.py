"""The writer under trouble: hung, slow and dead nodes, lost answers, lost locks. A story has its number in scenarios.md
if there is one; all run on real nodes in the simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.client import (
    AppendOutcomeUnknown,
    Conflict,
    LeaseLost,
    LockedByOther,
    LockHeld,
    NeveError,
    NotOwner,
    Overloaded,
    StreamSealed,
    Writer,
)
from neve.meta.lock import lock_key
from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.blocks import encode_block
from neve.proto.errors import Internal, InvalidArgument, ShuttingDown
from tests.sim.processes.processes import Process
from tests.unit.client.streams.rig import Rig, payloads_of, read_all, run
from tests.unit.client.streams.scripted_manager import ROOT


async def outcome(work: Any) -> type[BaseException] | None:
    """The class of the error, None if there was none."""
    try:
        await work
    except NeveError as error:
        return type(error)
    return None


def test_t02_a_late_duplicate_of_an_append_takes_nothing_back() -> None:
    """A node is stopped with an append on its way; the client gives up, sends it again, and goes on. When the node
    continues, the old request runs behind newer ones."""

    async def story(rig: Rig) -> None:
        async with rig.client(append_timeout_s=0.4, append_attempts_max=20) as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                await writer.append(b"first")
                late = rig.tail_nodes(stream.id)[2]
                rig.network.pause(late.host)
                pending = [writer.submit(b"%d" % number) for number in range(5)]
                await asyncio.sleep(2.0)  # several attempts, each a duplicate of the one before
                assert not any(future.done() for future in pending)
                rig.network.resume(late.host)
                await asyncio.gather(*pending)
                await writer.append(b"after")
                assert writer.stats.resends > 0
                assert writer.stats.rolls == 0
            expected = [b"first", *(b"%d" % number for number in range(5)), b"after"]
            assert await payloads_of(neve, stream.id) == expected
            async with neve.writer(stream.id) as writer:  # a new owner finds all of it on all replicas
                await writer.append(b"new owner")
            assert await payloads_of(neve, stream.id) == [*expected, b"new owner"]

    run(story)


def test_t08_an_old_writer_is_refused_by_a_replica_that_was_away_during_the_seal() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("old", lease_ttl_s=60) as old, rig.client("new") as new:
            stream = await old.create_stream()
            writer = await old.writer(stream.id).open()
            await writer.append(b"one")
            tail = rig.tail_nodes(stream.id)
            rig.network.partition("manager1", tail[2].host)  # the manager cannot fence this one
            rig.network.partition("old", "manager1")
            rig.metas[0].stall()  # and the old owner does not hear that its lock is taken
            async with new.writer(stream.id, takeover=True) as successor:
                await successor.append(b"two")
                with pytest.raises(AppendOutcomeUnknown) as unknown:
                    await writer.append(b"stale")
                assert isinstance(writer.error, (LockedByOther, NotOwner, NeveError))
                assert type(unknown.value.__cause__) is type(writer.error)
                rig.network.heal("manager1", tail[2].host)
                await asyncio.sleep(5)
                assert b"stale" not in await payloads_of(new, stream.id)
            assert await payloads_of(new, stream.id) == [b"one", b"two"]
            rig.metas[0].resume()
            await writer.abort()

    run(story)


def test_t09_a_reader_never_sees_a_block_that_is_sealed_away() -> None:
    """One replica has a block that was never acknowledged; a reader that follows on that very replica must not get it,
    before and after the seal cuts it off."""

    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("reader") as other:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            await writer.flush()
            first, second, third = rig.tail_nodes(stream.id)
            for node in (second, third):
                rig.network.pause(node.host)
            doubtful = writer.submit(b"on one replica only")
            await asyncio.sleep(0.1)
            assert first.store.inventory.describe(
                pb.DescribeReplicaRequest(extent_id=stream.extent_ids[0])
            ).length > len(encode_block(b"one"))
            seen: list[bytes] = []

            async def follow() -> None:
                async for record in other.read(stream.id, follow=True):
                    seen.append(bytes(record.payload))  # noqa: PERF401 - it is looked at meanwhile

            for node in (second, third):
                rig.network.partition("reader", node.host)
            following = asyncio.ensure_future(follow())
            await asyncio.sleep(0.2)
            assert seen == [b"one"]
            # The old owner is put out: its block is on one replica alone, and is cut off.
            rig.network.partition("client", "manager1")
            for node in (second, third):
                rig.network.resume(node.host)
                rig.network.partition("client", node.host)
            async with rig.client("new") as new:
                async with new.writer(stream.id, takeover=True) as successor:
                    await successor.append(b"two")
                assert await outcome(doubtful) is AppendOutcomeUnknown
                for node in (second, third):
                    rig.network.heal("reader", node.host)
                await new.seal(stream.id)
            await following
            assert seen == [b"one", b"two"]
            await writer.abort()

    run(story)


def test_t11_a_writer_paused_past_its_lease_acknowledges_nothing_when_it_goes_on() -> None:
    async def story(rig: Rig) -> None:
        process = Process("old")
        opened: asyncio.Future[Writer] = asyncio.get_running_loop().create_future()

        async def old_owner() -> None:
            client = rig.make_client("old")
            await client.open()
            writer = await client.writer(stream.id).open()
            await writer.append(b"old one")
            opened.set_result(writer)
            await asyncio.sleep(1.0)  # paused here: what follows runs after the lease is over
            await writer.append(b"after the pause")

        async with rig.client() as neve:
            stream = await neve.create_stream()
            task = process.spawn(old_owner())
            writer = await opened
            early = writer.submit(b"on its way")  # sent, and not answered, when the process stops
            process.pause()
            rig.network.pause("old")
            await asyncio.sleep(8.0)  # past the lease of 5 s
            async with neve.writer(stream.id) as successor:  # no takeover: the lease is over
                await successor.append(b"new one")
                process.resume()
                rig.network.resume("old")
                assert await outcome(task) in (LeaseLost, NotOwner)
                await asyncio.sleep(1.0)
            assert await outcome(early) is AppendOutcomeUnknown
            assert isinstance(writer.error, (LeaseLost, NotOwner))
            read = await payloads_of(neve, stream.id)
            assert read in ([b"old one", b"new one"], [b"old one", b"on its way", b"new one"])

    run(story)


def test_t11_a_machine_that_slept_past_its_lease_acknowledges_nothing_though_no_timer_has_run() -> None:
    """A lease is measured by a clock that counts the sleep; timers do not. The answers are the first thing to run."""

    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        slept_s = 0.0
        client = rig.make_client("old")
        rig.metas[0].clock = lambda: loop.time() + slept_s
        async with client as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            pending = writer.submit(b"two")
            slept_s = 60.0
            assert await outcome(pending) is AppendOutcomeUnknown
            assert isinstance(writer.error, LeaseLost)
            assert await outcome(writer.append(b"three")) is LeaseLost

    run(story)


def test_t18_a_lease_that_ended_while_the_lock_was_acquired_is_noticed_before_the_first_write() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()

            async def end_the_lease(_: object) -> None:
                # While the manager raises the token, the store ends the lease, and our keep-alives do not come through.
                rig.metas[0].stall()
                await asyncio.sleep(6.0)

            rig.manager.hooks["check_commit_length"] = end_the_lease
            assert await outcome(neve.writer(stream.id).open()) in (LeaseLost, NotOwner)
            rig.metas[0].resume()
            del rig.manager.hooks["check_commit_length"]
            async with rig.client("other") as other, other.writer(stream.id) as writer:
                await writer.append(b"one")
            assert await payloads_of(neve, stream.id) == [b"one"]

    run(story)


def test_t18_a_lease_that_ends_by_its_own_clock_during_the_open_leaves_no_writer() -> None:
    """The store and the manager still take the lock for ours: only the lease's clock knows better."""

    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        slept_s = 0.0
        client = rig.make_client()
        rig.metas[0].clock = lambda: loop.time() + slept_s

        async def sleep(_: object) -> None:
            nonlocal slept_s
            slept_s = 60.0

        async with client as neve:
            stream = await neve.create_stream()
            rig.manager.hooks["check_commit_length"] = sleep
            assert await outcome(neve.writer(stream.id).open()) is LeaseLost
            del rig.manager.hooks["check_commit_length"]
            async with neve.writer(stream.id) as writer:  # with a lease of its own
                await writer.append(b"one")
            assert await payloads_of(neve, stream.id) == [b"one"]

    run(story)


def test_t13_a_write_that_an_unfenced_replica_completes_is_acknowledged_only_if_it_survives() -> None:
    """The fence does not reach one replica, which is the last one to answer the old writer's append: the append may be
    in the stream or not, but if it was acknowledged it is."""

    async def story(rig: Rig) -> None:
        async with rig.client("old", append_attempts_max=50) as old, rig.client("new") as new:
            stream = await old.create_stream()
            writer = await old.writer(stream.id).open()
            await writer.append(b"one")
            last = rig.tail_nodes(stream.id)[2]
            rig.network.partition("old", last.host)
            pending = writer.submit(b"maybe")  # two replicas have it
            await asyncio.sleep(0.2)
            rig.network.partition("manager1", last.host)  # the fence will not reach the third
            opening = asyncio.ensure_future(new.writer(stream.id, takeover=True).open())
            await asyncio.sleep(0.5)
            rig.network.heal("old", last.host)  # now the old writer completes its append there
            successor = await opening
            await successor.append(b"two")
            rig.network.heal("manager1", last.host)
            ended = await outcome(pending)
            await successor.close()
            read = await payloads_of(new, stream.id)
            assert read in ([b"one", b"two"], [b"one", b"maybe", b"two"])
            assert ended is AppendOutcomeUnknown or b"maybe" in read
            await writer.abort()

    for seed in range(5):
        run(story, seed=seed)


def test_t46_one_hung_node_makes_the_stream_roll_within_a_bound() -> None:
    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                await writer.append(b"before")
                hung = rig.tail_nodes(stream.id)[1]
                rig.network.pause(hung.host)
                begun_s = loop.time()
                positions = await writer.append_many([b"%d" % number for number in range(100)])
                assert loop.time() - begun_s < 5.0  # of virtual time: three attempts of 0.5 s, and the seal
                assert writer.stats.rolls == 1
                assert hung not in rig.tail_nodes(stream.id)
                begun_s = loop.time()
                await writer.append(b"after")
                assert loop.time() - begun_s < 0.1
            assert len(positions) == 100
            expected = [b"before", *(b"%d" % number for number in range(100)), b"after"]
            assert await payloads_of(neve, stream.id) == expected
            rig.network.resume(hung.host)

    run(story)


def test_an_extent_that_holds_bytes_already_is_nothing_to_append_to() -> None:
    """Whoever wrote there, what is sealed there is not ours, and must not be acknowledged as ours (rule 16)."""

    async def story(rig: Rig) -> None:
        honest = rig.manager._seal_and_link

        async def seal_and_link(*arguments: Any, **named: Any) -> sm.ExtentInfo:
            successor = sm.ExtentInfo()
            successor.CopyFrom(await honest(*arguments, **named))
            successor.seal.length = 100
            return successor

        rig.manager._seal_and_link = seal_and_link  # type: ignore[method-assign]
        async with rig.client() as neve:
            stream = await neve.create_stream()
            writer = neve.writer(stream.id)
            await writer.open()
            await writer.append(b"before")
            rig.network.pause(rig.tail_nodes(stream.id)[1].host)
            assert await outcome(writer.append(b"after")) is AppendOutcomeUnknown
            assert isinstance(writer.error, Internal)
            await writer.abort()
            assert await payloads_of(neve, stream.id) == [b"before"]

    run(story)


def test_t47_a_slow_replica_for_minutes_leaves_the_clients_memory_bounded() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(append_timeout_s=60.0, frames_in_flight_max=2) as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                slow = rig.tail_nodes(stream.id)[0]
                rig.network.slow("client", slow.host, factor=5000.0)  # half a second a frame
                most = 0
                refused = 0
                pending = []
                for number in range(600):
                    try:
                        pending.append(writer.submit(b"%04d" % number + b"." * 500))
                    except Overloaded:
                        refused += 1
                        await writer.ready(600)
                        pending.append(writer.submit(b"%04d" % number + b"." * 500))
                    most = max(most, writer.stats.held_bytes)
                assert refused > 0
                assert 40_000 < most <= 50_000  # the writer's bound
                await writer.flush()
                assert all(future.done() for future in pending)
            assert len(await payloads_of(neve, stream.id)) == 600

    run(story, extent_bytes_max=1 << 20)


def test_a_killed_node_is_rolled_away_from_at_once_and_the_seal_settles_what_was_in_flight() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                pending = []
                for number in range(300):
                    pending.append(writer.submit(b"%04d" % number))
                    if number == 100:
                        rig.tail_nodes(stream.id)[0].kill()
                    if number % 10 == 0:
                        await asyncio.sleep(0.0005)
                positions = await asyncio.gather(*pending)
                assert writer.stats.rolls >= 1
            records = await read_all(neve, stream.id)
            assert [bytes(record.payload) for record in records] == [b"%04d" % number for number in range(300)]
            assert [record.position for record in records] == positions

    for seed in range(3):
        run(story, seed=seed)


def test_an_append_that_its_caller_cancels_stays_where_it_was_framed() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                first = asyncio.ensure_future(writer.append(b"given up"))
                await asyncio.sleep(0)
                first.cancel()
                await writer.append(b"next")
            assert await payloads_of(neve, stream.id) == [b"given up", b"next"]

    run(story)


async def meet_conflict(rig: Rig, writer: Writer) -> sm.ExtentInfo:
    """Append one record, then meet other bytes behind it at the tail's second replica; returns that extent."""
    await writer.append(b"one")
    foreign = encode_block(b"not ours")  # with our token: nothing but a bug could do that
    tail = rig.manager.extents[rig.manager.streams[writer.stream_id].extent_ids[-1]]
    request = pb.AppendBlockRequest()
    request.segments.add(
        extent_id=tail.extent_id,
        replica=tail.replicas[1].replica,
        eversion=tail.eversion,
        token=writer.token,
        offset=len(encode_block(b"one")),
        block_sizes=[len(foreign)],
    )
    channel = rig.channels("bug").channel(rig.tail_nodes(writer.stream_id)[1].address)
    await channel.call(methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=1, attachment=[foreign])
    assert await outcome(writer.append(b"two")) is AppendOutcomeUnknown
    return tail


def test_a_conflict_stops_the_writer_and_raises_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            tail = await meet_conflict(rig, writer)
            assert isinstance(writer.error, Conflict)
            assert await outcome(writer.append(b"three")) is Conflict
            assert await outcome(writer.flush()) is Conflict
            await writer.abort()
            told = [(bad.conflict, bad.extent_id, bad.replica.node_id) for bad in rig.manager.bad]
            assert told == [(True, tail.extent_id, tail.replicas[1].replica.node_id)]  # the manager is told (7)

    run(story)
    assert "append_conflict" in caplog.text


def test_a_writer_that_is_not_let_to_report_its_conflict_leaves_the_lock_free() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            held = rig.store.client()
            assert await held.get(lock_key(ROOT, stream.lock)) is not None
            rig.network.pause("manager1")
            await meet_conflict(rig, writer)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.abort()
            assert await held.get(lock_key(ROOT, stream.lock)) is None
            rig.network.resume("manager1")

    run(story)


def test_an_open_that_is_given_up_twice_keeps_no_other_writer_of_the_client_out() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            asked = asyncio.Event()

            async def hang(_: object) -> None:
                asked.set()
                await asyncio.Event().wait()

            rig.manager.hooks["check_commit_length"] = hang
            opening = asyncio.ensure_future(neve.writer(stream.id).open())
            await asked.wait()
            rig.metas[-1].disconnect()  # so that the release of the lock takes its time
            for _ in range(2):
                opening.cancel()
                await asyncio.sleep(0.1)
            assert opening.cancelled()
            rig.metas[-1].reconnect()
            del rig.manager.hooks["check_commit_length"]
            async with neve.writer(stream.id) as writer:
                await writer.append(b"x")

    run(story)


def test_a_flush_that_ends_together_with_its_writer_says_that_it_is_over() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            pending = writer.submit(b"x")

            async def abort() -> None:
                await pending
                await writer.abort()

            aborting = asyncio.ensure_future(abort())
            assert await outcome(writer.flush()) is ShuttingDown
            await aborting

    run(story)


def test_leaving_a_writer_whose_appends_have_no_outcome_is_not_silent() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("one") as one, rig.client("two") as two:
            stream = await one.create_stream()

            async def careless() -> None:
                async with one.writer(stream.id) as writer:
                    await writer.append(b"one")
                    rig.network.pause(rig.tail_nodes(stream.id)[0].host)
                    writer.submit(b"dropped")
                    await two.writer(stream.id, takeover=True).open()
                    await asyncio.sleep(1)

            assert await outcome(careless()) is AppendOutcomeUnknown

    run(story)


def test_a_second_owner_waits_or_takes_over_and_the_first_one_ends() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("one") as one, rig.client("two") as two:
            stream = await one.create_stream()
            writer = await one.writer(stream.id, owner="the first").open()
            await writer.append(b"one")
            with pytest.raises(LockHeld, match="the first"):
                await two.writer(stream.id, lock_timeout_s=0.5).open()
            with pytest.raises(LockHeld, match="this client"):
                await one.writer(stream.id).open()
            async with two.writer(stream.id, takeover=True) as second:
                await second.append(b"two")
                await asyncio.sleep(0.1)
                assert isinstance(writer.error, NotOwner)
                assert await outcome(writer.append(b"late")) is NotOwner
            await writer.close()
            assert await payloads_of(two, stream.id) == [b"one", b"two"]

    run(story)


def test_a_writer_learns_that_its_stream_was_sealed_and_what_of_its_appends_is_in_it() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("operator") as operator:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            await operator.seal(stream.id)
            assert await outcome(writer.append(b"two")) is AppendOutcomeUnknown
            assert isinstance(writer.error, StreamSealed)
            assert await payloads_of(operator, stream.id) == [b"one"]
            with pytest.raises(StreamSealed):
                await neve.writer(stream.id, takeover=True).open()
            await writer.abort()

    run(story)


def test_t45_an_append_after_the_stream_was_deleted_fails() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("operator") as operator:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            await operator.delete(stream.id)
            assert await outcome(writer.append(b"two")) is AppendOutcomeUnknown
            assert await outcome(writer.append(b"three")) is not None
            await writer.abort()

    run(story)


def test_blocks_that_some_replicas_have_not_confirmed_are_acknowledged_when_they_have() -> None:
    """The manager seals by itself, one replica being away: the writer's blocks above what it had acknowledged are in
    the stream, and are acknowledged when the last replica has them, too."""

    async def story(rig: Rig) -> None:
        async with rig.client(append_attempts_max=100) as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            away = rig.tail_nodes(stream.id)[2]
            rig.network.pause(away.host)
            pending = writer.submit(b"two")
            await asyncio.sleep(0.1)
            await rig.manager.seal(rig.manager.extents[stream.extent_ids[0]], token=writer.token, end=None)
            third = writer.submit(b"three")  # finds out that the extent is fenced
            await third
            assert not pending.done()
            rig.network.resume(away.host)
            position = await pending
            assert position.extent_id == stream.extent_ids[0]
            await writer.close()
            assert "wait_confirmed" in rig.manager.calls
            assert await payloads_of(neve, stream.id) == [b"one", b"two", b"three"]

    run(story)


def test_a_seal_that_is_never_confirmed_ends_the_writer_in_time() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(append_attempts_max=100, confirm_timeout_s=90.0) as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            rig.network.pause(rig.tail_nodes(stream.id)[2].host)
            pending = writer.submit(b"two")
            await asyncio.sleep(0.1)
            await rig.manager.seal(rig.manager.extents[stream.extent_ids[0]], token=writer.token, end=None)
            await writer.append(b"three")
            begun_s = asyncio.get_running_loop().time()
            assert await outcome(pending) is AppendOutcomeUnknown
            assert 90 <= asyncio.get_running_loop().time() - begun_s <= 130
            assert writer.error is not None
            await writer.close()

    run(story)


def test_appends_end_as_unknown_when_no_extent_can_be_had() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(roll_timeout_s=3.0) as neve:
            stream = await neve.create_stream()
            writer = await neve.writer(stream.id).open()
            await writer.append(b"one")
            for node in rig.nodes:
                node.kill()
            assert await outcome(writer.append(b"two")) is AppendOutcomeUnknown
            assert writer.error is not None
            assert writer.stats.held_bytes == 0
            await writer.close()

    run(story)


def test_a_list_with_something_else_than_bytes_is_refused_and_harms_no_other_writer() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            streams = [await neve.create_stream() for _ in range(2)]
            async with neve.writer(streams[0].id) as wrong, neve.writer(streams[1].id) as other:
                pending = other.submit(b"one")
                with pytest.raises(InvalidArgument, match="payloads"):
                    wrong.submit_many([b"bytes", "text"])  # type: ignore[list-item]
                await pending
                await wrong.append(b"two")
            assert [await payloads_of(neve, stream.id) for stream in streams] == [[b"two"], [b"one"]]

    run(story)
