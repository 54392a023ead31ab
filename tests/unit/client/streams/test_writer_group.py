"""Writers of several streams under one lock: one token, one end."""

from __future__ import annotations

import asyncio

import pytest

from neve.client import AppendOutcomeUnknown, Client, InvalidArgument, LeaseLost, LockHeld, NeveError, NotOwner
from neve.meta.lock import lock_key
from tests.unit.client.streams.rig import Rig, payloads_of, run
from tests.unit.client.streams.scripted_manager import ROOT


async def three_streams(neve: Client, lock: str = "partition/1") -> list[int]:
    return [(await neve.create_stream(lock=lock)).id for _ in range(3)]


def test_a_group_takes_its_lock_once_and_appends_to_all_streams() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            ids = await three_streams(neve)
            async with neve.writer_group(ids) as group:
                assert {writer.token for writer in group.writers} == {group.token}
                kv = await rig.store.client().get(lock_key(ROOT, "partition/1"))
                assert kv is not None
                assert (kv.mod_revision, kv.version) == (group.token, 1), "the lock was put once"
                assert group.owner.token == group.token
                await asyncio.gather(*(writer.append(b"%d" % writer.stream_id) for writer in group.writers))
            assert await rig.store.client().get(lock_key(ROOT, "partition/1")) is None
            assert [await payloads_of(neve, number) for number in ids] == [[b"%d" % number] for number in ids]
            async with neve.writer_group(ids) as again:
                assert again.token > group.token

    run(story)


def test_streams_with_different_locks_are_refused_and_nothing_is_locked() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            ids = [*await three_streams(neve), (await neve.create_stream()).id]
            with pytest.raises(InvalidArgument, match="different locks"):
                await neve.writer_group(ids).open()
            with pytest.raises(InvalidArgument):
                neve.writer_group([ids[0], ids[0]])
            assert await rig.store.client().get(lock_key(ROOT, "partition/1")) is None
            async with neve.writer_group(ids[:3]):
                pass

    run(story)


def test_another_owner_waits_for_the_group_and_a_writer_of_the_same_client_is_refused() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("other") as other:
            ids = await three_streams(neve)
            group = await neve.writer_group(ids).open()
            with pytest.raises(LockHeld):
                await neve.writer(ids[1]).open()
            with pytest.raises(LockHeld):
                await other.writer_group(ids, lock_timeout_s=0.5).open()
            waiting = asyncio.ensure_future(other.writer_group(ids, lock_timeout_s=20.0).open())
            await asyncio.sleep(1.0)
            assert not waiting.done()
            await group.abort()
            successor = await waiting
            assert successor.token > group.token
            await successor.close()

    run(story)


def test_a_group_whose_lock_is_taken_over_loses_all_of_its_writers_at_once() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("other") as other:
            ids = await three_streams(neve)
            group = await neve.writer_group(ids).open()
            told: list[str] = []
            group.ended.add_callback(told.append)
            async with other.writer(ids[0], takeover=True):
                async with asyncio.timeout(10.0):
                    await group.ended.wait()
                assert len(told) == 1
                with pytest.raises(NotOwner):
                    group.ensure()
                for writer in group.writers:
                    with pytest.raises(NotOwner):
                        await writer.append(b"too late")
                await group.abort()
            assert [await payloads_of(neve, number) for number in ids] == [[], [], []]

    run(story)


def test_a_group_is_over_by_the_lease_clock_before_any_timer_has_run() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            ids = await three_streams(neve)
            group = await neve.writer_group(ids).open()
            rig.metas[-1].disconnect()
            pending = group.writers[2].submit(b"x")
            for node in rig.nodes:
                rig.network.pause(node.host)
            await asyncio.sleep(neve.options.lease_ttl_s + 0.1)
            assert group.ended.is_set()
            with pytest.raises(LeaseLost):
                group.ensure()
            with pytest.raises(AppendOutcomeUnknown):
                await pending
            for node in rig.nodes:
                rig.network.resume(node.host)
            rig.metas[-1].reconnect()
            await group.abort()

    run(story)


def test_leaving_a_group_whose_appends_have_no_outcome_is_not_silent() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("other") as other:
            ids = await three_streams(neve)
            successor = other.writer(ids[0], takeover=True)

            async def careless() -> None:
                async with neve.writer_group(ids) as group:
                    rig.network.pause(rig.tail_nodes(ids[2])[0].host)
                    group.writers[2].submit(b"dropped")
                    await asyncio.gather(successor.open(), group.ended.wait())

            with pytest.raises(AppendOutcomeUnknown):
                await careless()
            await successor.abort()

    run(story)


def test_the_end_of_one_writer_ends_the_group() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            ids = await three_streams(neve)
            group = await neve.writer_group(ids).open()
            await neve.seal(ids[1])
            assert group.ended.is_set()
            for writer in group.writers:
                with pytest.raises(NeveError):
                    await writer.append(b"x")
            await group.abort()
            await group.abort()  # a second time changes nothing
            async with neve.writer(ids[0]) as writer:
                await writer.append(b"the lock is free")

    run(story)


def test_a_group_that_cannot_open_one_stream_leaves_the_lock_free() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(call_timeout_s=2.0) as neve:
            ids = await three_streams(neve)
            await neve.seal(ids[2])
            with pytest.raises(NeveError):
                await neve.writer_group(ids).open()
            assert await rig.store.client().get(lock_key(ROOT, "partition/1")) is None
            async with neve.writer_group(ids[:2]) as group:
                await group.writers[0].append(b"x")

    run(story)


def test_closing_the_client_waits_for_the_appends_of_its_groups() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("reader") as reader:
            async with rig.client() as neve:
                ids = await three_streams(neve)
                group = await neve.writer_group(ids).open()
                pending = [writer.submit(b"x") for writer in group.writers]
            assert all(future.done() and future.exception() is None for future in pending)
            assert [await payloads_of(reader, number) for number in ids] == [[b"x"]] * 3

    run(story)
