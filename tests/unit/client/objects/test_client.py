"""The key-value client against partitions in a dict: what it does, and what it does when things go wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.client.objects import admission as kv_admission
from neve.client.objects.client import KeyValueClient
from neve.client.objects.types import Delete, Object, Put
from neve.proto import errors, methods
from neve.proto import partition_manager_pb2 as pm
from neve.rpc.service import Service
from tests.unit.client.objects.rig import Rig, run
from tests.unit.client.objects.scripted_partitions import CLUSTER, MANAGER, Manager, ScriptedCluster


def test_put_get_head_and_delete() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            info = await kv.put(b"a", b"one")
            assert (await kv.get(b"a")) == Object(info, b"one")
            assert (await kv.head(b"a")) == info
            assert info.size_bytes == 3
            newer = await kv.put(bytearray(b"a"), memoryview(b"three"))
            assert newer.version > info.version
            assert (await kv.get(b"a")).value == b"three"
            assert await kv.delete(b"a") is True
            assert await kv.delete(b"a") is False
            with pytest.raises(errors.NotFound, match="no such object: a"):
                await kv.get(b"a")
            with pytest.raises(errors.NotFound, match="no such object: a"):
                await kv.head(b"a")

    run(story)


def test_conditions_are_met_or_refused_with_the_version_that_was_found() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            info = await kv.put(b"a", b"1", if_absent=True)
            with pytest.raises(errors.ConditionFailed) as failed:
                await kv.put(b"a", b"2", if_absent=True)
            assert failed.value.version == info.version
            second = await kv.put(b"a", b"2", if_version=info.version)
            with pytest.raises(errors.ConditionFailed):
                await kv.delete(b"a", if_version=info.version)
            assert await kv.delete(b"a", if_version=second.version)
            with pytest.raises(errors.InvalidArgument):
                await kv.put(b"a", b"", if_absent=True, if_version=3)
            with pytest.raises(errors.InvalidArgument):
                await kv.put(b"a", b"", if_version=0)

    run(story)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (b"", errors.InvalidArgument),
        ("text", errors.InvalidArgument),
        (b"x" * 4097, errors.TooLarge),
    ],
)
def test_bad_keys_are_refused_before_anything_is_sent(key: Any, error: type[errors.NeveError]) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            for call in (kv.get, kv.head, kv.delete, kv.get_stream):
                with pytest.raises(error, match="key"):
                    await call(key)
            with pytest.raises(error, match="key"):
                await kv.put(key, b"")
            with pytest.raises(error, match="key"):
                await kv.put_stream(key, [b""])
            with pytest.raises(error, match="key"):
                await kv.batch([Put(key, b"")])
            assert rig.cluster.servers[1].calls == []

    run(story)


def test_the_longest_key_and_bad_values() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await kv.put(b"\xff" * 4096, b"")
            assert (await kv.get(b"\xff" * 4096)).value == b""
            with pytest.raises(errors.TooLarge, match="put_stream"):
                await kv.put(b"a", bytes(32 * 1024 * 1024 + 1))
            with pytest.raises(errors.InvalidArgument, match="value"):
                await kv.put(b"a", "text")  # type: ignore[arg-type]
            for ttl_s in (0, -1, float("nan"), float("inf")):
                with pytest.raises(errors.InvalidArgument, match="ttl_s"):
                    await kv.put(b"a", b"", ttl_s=ttl_s)
            with pytest.raises(errors.InvalidArgument, match="timeout_s"):
                await kv.get(b"a", timeout_s=0)

    run(story)


def test_what_has_a_time_to_live_is_gone_after_it() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            info = await kv.put(b"a", b"", ttl_s=5)
            assert info.expires_ms == info.modified_ms + 5000
            await asyncio.sleep(6)
            with pytest.raises(errors.NotFound):
                await kv.get(b"a")

    run(story)


def test_operations_of_one_turn_travel_together_and_reads_apart_from_writes() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await asyncio.gather(*(kv.put(b"%d" % n, b"v") for n in range(100)))
            server = rig.cluster.servers[1]
            assert [len(frame.keys) for frame in server.put_frames] == [100]
            got = await asyncio.gather(
                *(kv.get(b"%d" % n) for n in range(100)),
                *(kv.put(b"%d" % n, b"w") for n in range(50)),
                *(kv.put(b"new %d" % n, b"w", if_absent=True) for n in range(20)),
            )
            assert len(got) == 170
            assert sorted(len(frame.operations) for frame in server.frames) == [20, 100]
            assert [len(frame.keys) for frame in server.put_frames] == [100, 50]

    run(story, servers=1)


def test_frames_are_bounded_in_bytes_operations_and_number() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        server.delay_s = 1.0
        async with rig.client(frame_operations_max=10, frames_in_flight_max=3) as kv:
            puts = [asyncio.ensure_future(kv.put(b"%d" % n, b"x" * 1000)) for n in range(100)]
            await asyncio.sleep(0.5)
            assert server.calls == ["put_many"] * 3
            await asyncio.gather(*puts)
            assert max(len(frame.keys) for frame in server.put_frames) <= 3  # 4000 bytes a frame
            gets = [asyncio.ensure_future(kv.get(b"%d" % n)) for n in range(100)]
            await asyncio.gather(*gets)
            assert max(len(frame.operations) for frame in server.frames[-5:]) == 10

    run(story, servers=1)


def test_what_finds_no_room_waits_and_a_cancelled_operation_gives_its_room_back() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        server.delay_s = 1.0
        async with rig.client(buffer_bytes_max=4000) as kv:
            puts = [asyncio.ensure_future(kv.put(b"%d" % n, b"x" * 1000)) for n in range(10)]
            await asyncio.sleep(0.5)
            assert sum(len(frame.keys) for frame in server.put_frames) == 0  # they are being held
            for put in puts[:5]:
                put.cancel()
            await asyncio.gather(*puts[5:])
            with pytest.raises(errors.DeadlineExceeded, match="nothing was sent"):
                await asyncio.gather(*(kv.put(b"%d" % n, b"x" * 1000, timeout_s=0.5) for n in range(10)))
            assert (await kv.put(b"z", b"x")).size_bytes == 1

    run(story, servers=1)


def test_writes_wait_while_an_old_one_is_out_for_too_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_admission, "WRITES_OPEN_MAX", 5)

    async def story(rig: Rig) -> None:
        one, two = rig.cluster.servers[1], rig.cluster.servers[2]
        one.delay_s = 1.0
        async with rig.client() as kv:
            old = asyncio.ensure_future(kv.put(b"a", b"1"))  # at the slow server
            await asyncio.sleep(0.1)
            others = [asyncio.ensure_future(kv.put(b"x%d" % n, b"1")) for n in range(20)]
            await asyncio.sleep(0.5)
            assert sum(len(frame.keys) for frame in two.put_frames) == 4
            await old
            await asyncio.gather(*others)
            assert all(frame.call.completed_below > 1 for frame in two.put_frames[1:])

    run(story, servers=2, split_keys=(b"m",))


# --- trouble -----------------------------------------------------------------------------------------------------


def test_t50_a_write_whose_answer_was_lost_is_sent_again_and_executed_once() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        async with rig.client() as kv:
            server.fail_after = [errors.ConnectionLost(), errors.AppendOutcomeUnknown()]
            info = await kv.put(b"a", b"1", if_absent=True)  # a second execution would fail
            assert info.version == 1
            server.fail_after = [errors.Cancelled()]
            assert await kv.delete(b"a")
            server.fail_after = [errors.ConnectionLost()]
            large = await kv.put(b"b", bytes(6000), if_absent=True)
            assert (await kv.get(b"b")).info.version == large.version
            assert len(rig.cluster.executed) == len(set(rig.cluster.executed)) == 3

    run(story, servers=1)


def test_a_moved_partition_is_followed_with_one_question_for_all_operations() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await kv.put(b"a", b"1")
            asked = rig.cluster.manager.asked
            rig.cluster.move(rig.cluster.partition(b"a"), 2)
            await asyncio.gather(*(kv.put(b"a%d" % n, b"2") for n in range(100)))
            assert rig.cluster.manager.asked == asked + 1
            assert (await kv.get(b"a")).value == b"1"
            assert rig.cluster.manager.asked == asked + 1

    run(story)


def test_a_partition_without_a_server_is_waited_for() -> None:
    async def story(rig: Rig) -> None:
        partition = rig.cluster.partition(b"a")
        partition.server_id = 0
        async with rig.client() as kv:
            waiting = asyncio.ensure_future(kv.put(b"a", b"1"))
            alone = asyncio.ensure_future(kv.put(b"b", bytes(6000)))
            await asyncio.sleep(5.0)
            assert not waiting.done()
            rig.cluster.move(partition, 2)
            assert (await waiting).version
            assert (await alone).version
            assert rig.cluster.manager.asked < 40  # with pauses, not in a loop

    run(story)


def test_a_dead_server_is_left_for_the_new_one_and_a_hung_one_too() -> None:
    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        async with rig.client() as kv:
            await kv.put(b"a", b"1")
            rig.network.crash("ps1")
            loop.call_later(3.0, lambda: rig.cluster.move(rig.cluster.partition(b"a"), 2))
            await kv.put(b"a", b"2")
            rig.network.pause("ps2")
            rig.cluster.move(rig.cluster.partition(b"a"), 3)
            assert (await kv.get(b"a")).value == b"2"

    run(story, servers=3)


def test_what_waits_for_a_hung_server_goes_to_the_new_one_when_that_is_known() -> None:
    async def story(rig: Rig) -> None:
        cluster = rig.cluster
        loop = asyncio.get_running_loop()
        async with rig.client(frame_operations_max=4, frames_in_flight_max=2) as kv:
            cluster.servers[1].delay_s = 1000.0
            cluster.move(cluster.partition(b"a"), 2)
            begun_s = loop.time()
            await asyncio.gather(*(kv.put(b"a%03d" % n, b"1") for n in range(100)))
            assert loop.time() - begun_s < 3 * kv.options.attempt_timeout_s, "not eight at a time"

    run(story)


def test_what_takes_longer_than_one_attempt_is_done_all_the_same() -> None:
    """A server forgets the call of a caller that has gone: each attempt begins it anew."""

    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            rig.cluster.servers[1].delay_s = 2.5 * kv.options.attempt_timeout_s
            await kv.put(b"a", b"1")
            await kv.put(b"b", bytes(6000))
            assert (await kv.get(b"a")).value == b"1"
            assert len((await kv.get(b"b")).value) == 6000

    run(story, servers=1)


def test_an_operation_ends_at_its_deadline_with_what_is_known() -> None:
    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        async with rig.client() as kv:
            await kv.put(b"x", b"0")  # connects
            rig.network.pause("ps1")
            begun_s = loop.time()
            with pytest.raises(errors.DeadlineExceeded):
                await kv.put(b"a", b"1", timeout_s=3.0)
            assert loop.time() - begun_s < 3.1
            rig.network.resume("ps1")
            rig.cluster.partition(b"a").server_id = 0
            with pytest.raises(errors.WrongServer, match="has no server"):  # it was never sent: nothing is unknown
                await kv.put(b"b", b"1", timeout_s=3.0)
            with pytest.raises(errors.WrongServer, match="has no server"):
                await kv.put(b"b", bytes(6000), timeout_s=3.0)
            assert rig.cluster.value(b"b") is None

    run(story, servers=1)


def test_errors_of_one_operation_do_not_touch_the_others_of_its_frame() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await kv.put(b"there", b"1")
            outcomes = await asyncio.gather(
                kv.put(b"there", b"2", if_absent=True),
                kv.put(b"new", b"2"),
                kv.delete(b"other", if_version=9),
                kv.get(b"missing"),
                return_exceptions=True,
            )
            kinds = [type(outcome).__name__ for outcome in outcomes]
            assert kinds == ["ConditionFailed", "ObjectInfo", "ConditionFailed", "NotFound"]

    run(story)


def test_overload_is_waited_out_without_asking_for_the_map() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        async with rig.client() as kv:
            asked = rig.cluster.manager.asked
            server.fail_before = [errors.Overloaded(), errors.Overloaded(), None]
            await kv.put(b"a", b"1")
            assert len(server.calls) == 3
            assert rig.cluster.manager.asked == asked

    run(story, servers=1)


def test_a_client_that_is_closed_ends_what_is_under_way() -> None:
    async def story(rig: Rig) -> None:
        rig.cluster.servers[1].delay_s = 5.0
        kv = rig.make_client()
        with pytest.raises(errors.ShuttingDown):
            await kv.get(b"a")  # not open yet
        rig.cluster.partition(b"z").server_id = 0
        await kv.open()
        sent = asyncio.ensure_future(kv.put(b"a", b"1"))
        parked = asyncio.ensure_future(kv.put(b"z", b"1"))
        alone = asyncio.ensure_future(kv.put(b"b", bytes(6000)))
        alone_parked = asyncio.ensure_future(kv.put(b"y", bytes(6000)))
        await asyncio.sleep(1.0)
        await kv.close()
        closed_s = asyncio.get_running_loop().time()
        for each in (sent, alone):
            with pytest.raises(errors.NeveError) as caught:
                await each
            assert caught.value.outcome_unknown, "it may have been executed"
        for each in (parked, alone_parked):
            with pytest.raises(errors.ShuttingDown):
                await each
        assert asyncio.get_running_loop().time() - closed_s < 0.1
        with pytest.raises(errors.ShuttingDown):
            await kv.put(b"a", b"1")
        await asyncio.sleep(30.0)
        assert sorted(rig.cluster.servers[1].calls) == ["put", "put_many"], "nothing is sent after the end"

    run(story, servers=1, split_keys=(b"m",))


def test_without_a_manager_opening_fails_clearly() -> None:
    async def story(rig: Rig) -> None:
        rig.network.crash("pm1")
        with pytest.raises(errors.ConnectFailed, match="no partition manager answers"):
            await rig.make_client().open()

    run(story)


def test_a_manager_that_lags_does_not_bring_an_old_map_back() -> None:
    async def story(rig: Rig) -> None:
        cluster = rig.cluster
        async with rig.client() as kv:
            await kv.put(b"a", b"1")
            stale = await cluster.manager.list_regions(pm.ListRegionsRequest(), None)  # type: ignore[arg-type]
            cluster.move(cluster.partition(b"a"), 2)
            await kv.put(b"a", b"2")
            cluster.manager.stale = stale
            cluster.servers[2].fail_before = [errors.ShuttingDown()]  # asks for the map, and gets the old one
            await kv.put(b"a", b"3")
            assert kv.regions.map.version == cluster.version
            assert "multi" not in cluster.servers[1].calls[2:]

    run(story)


def test_a_manager_that_hears_of_nothing_is_left_for_another() -> None:
    async def story(rig: Rig) -> None:
        cluster = rig.cluster
        other = Service([methods.PARTITION_MANAGER_LIST_REGIONS], Manager(cluster))
        rig.network.serve("pm2:3701", [other], cluster=CLUSTER)
        async with rig.make_client(managers=(MANAGER, "pm2:3701")) as kv:
            await kv.put(b"a", b"1")
            # It is cut off from etcd, and answers what it knows; the server dies, and another one takes over.
            cluster.manager.stale = await cluster.manager.list_regions(pm.ListRegionsRequest(), None)  # type: ignore[arg-type]
            rig.network.crash("ps1")
            cluster.move(cluster.partition(b"a"), 2)
            await kv.put(b"a", b"2")
            assert cluster.value(b"a") == b"2"

    run(story)


def test_a_map_of_many_pages_is_read_whole() -> None:
    bounds = tuple(b"%03d" % n for n in range(1, 60))

    async def story(rig: Rig) -> None:
        from neve.client.objects import regions as kv_regions

        before, kv_regions.PAGE = kv_regions.PAGE, 7
        try:
            async with rig.client() as kv:
                assert len(kv.regions.map.regions) == 60
                await asyncio.gather(*(kv.put(b"%03d" % n, b"v") for n in range(60)))
        finally:
            kv_regions.PAGE = before

    run(story, servers=3, split_keys=bounds)


# --- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_is_all_or_nothing_within_one_partition() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            first = await kv.put(b"a", b"1")
            infos = await kv.batch([Put(b"b", b"2"), Delete(b"a", if_version=first.version), Put(b"c", b"3")])
            assert [info.key for info in infos] == [b"b", b"a", b"c"]
            assert rig.cluster.value(b"a") is None
            with pytest.raises(errors.ConditionFailed):
                await kv.batch([Put(b"b", b"9"), Put(b"c", b"9", if_absent=True)])
            assert rig.cluster.value(b"b") == b"2"
            with pytest.raises(errors.InvalidArgument, match="different partitions"):
                await kv.batch([Put(b"b", b"9"), Put(b"x", b"9")])
            with pytest.raises(errors.InvalidArgument, match="same key"):
                await kv.batch([Put(b"b", b"9"), Put(b"b", b"9")])
            with pytest.raises(errors.InvalidArgument, match="1 to"):
                await kv.batch([])

    run(story, split_keys=(b"m",))


def test_a_batch_that_may_have_been_done_before_a_split_is_not_told_as_refused() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await kv.put(b"a", b"1")
            server = rig.cluster.servers[1]
            server.fail_after = [errors.AppendOutcomeUnknown(detail="lost")]
            batch = asyncio.ensure_future(kv.batch([Put(b"b", b"2"), Put(b"x", b"3")]))
            while server.fail_after:
                await asyncio.sleep(0.001)
            rig.cluster.split(b"m")
            with pytest.raises(errors.DeadlineExceeded, match="different partitions") as raised:
                await batch
            assert raised.value.outcome_unknown
            assert rig.cluster.value(b"x") == b"3"

    run(story)


# --- scans -------------------------------------------------------------------------------------------------------


def test_a_scan_goes_over_partitions_in_the_order_of_keys() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            keys = [b"k%03d" % n for n in range(50)]
            await asyncio.gather(*(kv.put(key, key * 2) for key in keys))
            assert [info.key async for info in kv.scan()] == keys
            assert [info.key async for info in kv.scan(prefix=b"k01")] == keys[10:20]
            assert [info.key async for info in kv.scan(start=b"k005", end=b"k035", limit=20)] == keys[5:25]
            assert [info.key async for info in kv.scan(prefix=b"k", start=b"k049")] == keys[49:]
            assert [info.key async for info in kv.scan(prefix=b"z")] == []
            assert [info.key async for info in kv.scan(limit=0)] == []
            assert [each.value async for each in kv.scan_objects(limit=30)] == [key * 2 for key in keys[:30]]

    run(story, split_keys=(b"k017", b"k030"))


def test_a_scan_gets_values_that_are_larger_than_a_page_alone() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(scan_page_bytes_max=1000) as kv:
            values = {b"a": b"1", b"b": b"2" * 5000, b"c": b"3"}
            for key, value in values.items():
                await kv.put(key, value)
            assert {each.info.key: each.value async for each in kv.scan_objects()} == values

    run(story)


def test_t51_splits_and_moves_between_the_pages_of_a_scan_hide_and_repeat_nothing() -> None:
    async def story(rig: Rig) -> None:
        cluster = rig.cluster
        async with rig.client() as kv:
            keys = [b"k%03d" % n for n in range(100)]
            await asyncio.gather(*(kv.put(key, b"v") for key in keys))
            pages = 0

            def before_page(request: object) -> None:
                nonlocal pages
                pages += 1
                middle = keys[rig.rng.randrange(1, 100)]
                if pages % 5 == 0 and len(cluster.partitions) > 2:
                    cluster.merge(cluster.partitions[1].start)
                elif pages % 3 == 0:
                    cluster.move(cluster.partition(middle), rig.rng.randrange(1, 3))
                elif cluster.partition(middle).start != middle:
                    cluster.split(middle)

            for server in cluster.servers.values():
                server.before_page = before_page
            for _ in range(5):
                assert [info.key async for info in kv.scan()] == keys
            assert pages > 50

    run(story, seed=3)


# --- large values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 9_999, 10_000, 10_001, 35_000])
def test_a_streamed_put_and_get_of_any_size(size: int) -> None:
    value = bytes(n * 7 % 251 for n in range(size))

    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            pieces = [value[at : at + 1300] for at in range(0, size, 1300)]
            info = await kv.put_stream(b"a", pieces)
            assert info.size_bytes == size
            assert rig.cluster.value(b"a") == value
            stream = await kv.get_stream(b"a")
            assert (stream.info, stream.length) == (info, size)
            assert await stream.read() == value
            assert (await kv.get(b"a")).value == value
            if size > 100:
                part = await kv.get(b"a", offset=50, length=size - 60)
                assert part.value == value[50 : size - 10]
                assert (await kv.get(b"a", offset=size - 5, length=50)).value == value[-5:]

    run(story, servers=1)


def test_a_streamed_get_whose_object_changes_says_so_and_a_whole_get_begins_again() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        server.multi_reply_bytes_max = 100
        async with rig.client() as kv:
            await kv.put(b"a", b"1" * 30_000)
            stream = await kv.get_stream(b"a")
            await kv.put(b"a", b"2" * 30_000)
            with pytest.raises(errors.ConditionFailed, match="changed while it was read"):
                await stream.read()
            getting = asyncio.ensure_future(kv.get(b"a"))
            while "get" not in server.calls[-1:]:
                await asyncio.sleep(0.00001)
            await kv.put(b"a", b"3" * 30_000)
            assert set((await getting).value) <= set(b"23")
            assert len(set((await getting).value)) == 1
            asked = server.calls.count("get")
            getting = asyncio.ensure_future(kv.get(b"a", offset=5, length=20_000))
            while server.calls.count("get") == asked:
                await asyncio.sleep(0.00001)
            await kv.put(b"a", b"4" * 30_000)
            assert (await getting).value in (b"3" * 20_000, b"4" * 20_000), "no version was asked for"

    run(story, servers=1)


def test_an_upload_survives_lost_answers_and_is_aborted_when_its_source_fails() -> None:
    async def story(rig: Rig) -> None:
        server = rig.cluster.servers[1]
        async with rig.client() as kv:
            lost = errors.ConnectionLost()
            server.fail_after = [lost, None, lost, None, lost, lost]
            info = await kv.put_stream(b"a", [bytes(25_000)], if_absent=True)
            assert info.size_bytes == 25_000
            assert len(rig.cluster.executed) == 1
            assert rig.cluster.partition(b"a").uploads == {}, "it was begun once, however often it was sent"

            def broken() -> Any:
                yield bytes(15_000)
                raise OSError("the source is gone")

            with pytest.raises(OSError, match="the source is gone"):
                await kv.put_stream(b"b", broken())
            assert rig.cluster.partition(b"b").uploads == {}
            assert rig.cluster.value(b"b") is None
            with pytest.raises(errors.InvalidArgument, match="iterable of bytes"):
                await kv.put_stream(b"b", b"one value")  # type: ignore[arg-type]

    run(story, servers=1)


def test_a_value_that_is_not_what_was_put_is_never_returned() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as kv:
            await kv.put(b"a", b"good")
            rig.cluster.partition(b"a").objects[b"a"].value = b"evil"
            with pytest.raises(errors.ProtocolViolation, match="checksum"):
                await kv.get(b"a")

    run(story)


# --- real sockets ------------------------------------------------------------------------------------------------


async def test_the_same_over_real_sockets() -> None:
    cluster = ScriptedCluster(servers=2, split_keys=(b"m",))
    manager = await cluster.serve_on_wire()
    try:
        async with KeyValueClient([manager], cluster=CLUSTER) as kv:
            keys = [b"%c%03d" % (letter, n) for letter in b"az" for n in range(300)]
            await asyncio.gather(*(kv.put(key, key * 10) for key in keys))
            values = await asyncio.gather(*(kv.get(key) for key in keys))
            assert [each.value for each in values] == [key * 10 for key in keys]
            large = bytes(range(256)) * 40_000  # 10 MB: more than one part, and more than one reply
            assert (await kv.put(b"large", large)).size_bytes == len(large)
            assert (await kv.get(b"large")).value == large
            await kv.put_stream(b"larger", [large, large])
            assert await (await kv.get_stream(b"larger")).read() == large + large
            cluster.move(cluster.partition(b"z"), 1)
            assert [info.key async for info in kv.scan()] == sorted([*keys, b"large", b"larger"])
    finally:
        await cluster.stop()
