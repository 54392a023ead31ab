"""The scrubber on a simulated disk: finds every flipped bit (T29), and nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from neve.extent_node.disk import attributes
from neve.extent_node.disk.attributes import Seal
from neve.extent_node.store import audit as store_audit
from neve.extent_node.store import control as store_control
from neve.extent_node.store.scrubber import Scrubber
from neve.extent_node.store.storage import Storage
from neve.proto import errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_block
from neve.proto.stream_manager_pb2 import BadReplica
from tests.unit.extent_node.store import rig
from tests.unit.extent_node.store.copy_rig import BLOCKS, BYTES, EXTENT, INDEX_PATH, PATH, Cluster, Node, fill, order
from tests.unit.extent_node.store.rig import describe, read_bytes

TICK_S = 0.0003  # a part of what a call in a thread takes


class Scrubbed:
    """A node with a scrubber, and what it told."""

    def __init__(self, node: Node, **how: Any) -> None:
        self.node = node
        self.told: list[BadReplica] = []
        how = {"bytes_per_s": 0, "rng": random.Random(1), **how}
        self.scrubber = Scrubber(node.store, on_bad=self.told.append, reporter="here", **how)


async def sealed(**how: Any) -> Scrubbed:
    return Scrubbed(await Cluster().sealed_node(), **how)


async def check_found(made: Scrubbed, offset: int | None = None) -> BadReplica:
    """Told once, moved aside, and not answered as data any more."""
    replica = describe(made.node.store, EXTENT).replica
    assert (await made.scrubber.scrub_all()).bad == 1
    (told,) = made.told
    assert told.extent_id == EXTENT
    assert told.replica == replica
    assert told.reason
    assert told.reporter == "here"
    if offset is not None:
        assert told.offset == offset
    assert await rig.error_of(read_bytes(made.node.store, EXTENT)) is errors.ReplicaDamaged
    assert len(made.node.files("quarantine")) == 1
    assert made.node.fs.stat(PATH) is None
    assert (await made.scrubber.scrub_all()).bad == 0
    assert len(made.told) == 1
    return told


def block_start(byte: int) -> int:
    start = 0
    for block in BLOCKS:
        if byte < start + len(block):
            return start
        start += len(block)
    raise AssertionError(byte)


# --- what is wrong is found ----------------------------------------------------------------------------------


@pytest.mark.sim(seed=1)
async def test_t29_a_flipped_bit_in_any_region_is_found_where_it_is() -> None:
    made = await sealed()
    made.node.fs.flip(PATH, 150, 3)
    await check_found(made, block_start(150))
    # And once for every byte of the headers, and some of the payloads: one extent for each.
    node = await Cluster().node()
    made = Scrubbed(node)
    headers = [start + byte for start in {block_start(at) for at in range(len(BYTES))} for byte in range(8)]
    flips = {}
    for number, byte in enumerate(sorted({*headers, *range(0, len(BYTES), 61), len(BYTES) - 1}), start=1):
        extent_id = number % 16 + number // 16 * 256
        await rig.create(node.store, extent_id)
        await rig.append(node.store, extent_id, 0, *BLOCKS)
        assert (await rig.seal(node.store, extent_id, len(BYTES))).confirmed
        node.fs.flip(f"/disk0/extents/{extent_id % 256:02x}/{extent_id:016x}.ext", byte, byte % 8)
        flips[extent_id] = byte
    await made.scrubber.scrub_all()
    found = {told.extent_id: told.offset for told in made.told}
    assert found == {extent_id: block_start(byte) for extent_id, byte in flips.items()}
    assert len(node.files("quarantine")) == len(flips)


@pytest.mark.sim(seed=2)
async def test_t29_missing_bytes_are_found() -> None:
    for length in (0, 1, len(BLOCKS[0]), len(BYTES) - 1):
        made = await sealed()
        fs = made.node.fs
        fd = fs.open(PATH)
        fs.truncate(fd, length)
        await check_found(made)


@pytest.mark.sim(seed=3)
async def test_valid_blocks_of_something_else_are_found_by_the_digest() -> None:
    made = await sealed()
    fs = made.node.fs
    fs.pwrite(fs.open(PATH), [encode_block(b"x" * (len(BLOCKS[0]) - 8))], 0)
    assert "digest" in (await check_found(made, 0)).reason


@pytest.mark.sim(seed=4)
@pytest.mark.parametrize("name", [attributes.META, attributes.SEAL])
async def test_t29_a_flipped_bit_in_an_attribute_is_found(name: str) -> None:
    for byte in (0, 1, 9, -1):
        made = await sealed()
        fs = made.node.fs
        fd = fs.open(PATH)
        value = bytearray(fs.get_xattr(fd, name) or b"")
        value[byte] ^= 4
        fs.set_xattr(fd, name, bytes(value))
        assert name in (await check_found(made, 0)).reason
    made = await sealed()
    made.node.fs.remove_xattr(made.node.fs.open(PATH), name)
    assert name in (await check_found(made, 0)).reason


@pytest.mark.sim(seed=5)
async def test_a_file_that_is_gone_is_told_and_answered_as_damaged() -> None:
    made = await sealed()
    made.node.fs.unlink(PATH)
    assert (await made.scrubber.scrub_all()).bad == 1
    assert [told.offset for told in made.told] == [0]
    assert describe(made.node.store, EXTENT).kind == pb.LengthAnswer.DAMAGED
    assert made.node.store.inventory.disks()[0].state == pb.DiskInfo.WRITABLE  # one file is not the disk
    await made.scrubber.scrub_all()
    assert len(made.told) == 1


@pytest.mark.sim(seed=6)
async def test_a_quarantined_replica_can_be_copied_anew() -> None:
    cluster = Cluster()
    source, target = await cluster.sealed_node(), await cluster.sealed_node()
    made = Scrubbed(target)
    target.fs.flip(PATH, 100, 1)
    await check_found(made)
    copier = cluster.copier(target)
    copier.start(order(source))
    assert (await copier.wait(1)).state == pb.CopyStatusReply.DONE
    assert await read_bytes(target.store, EXTENT) == BYTES
    assert (await made.scrubber.scrub_all()).bad == 0


@pytest.mark.sim(seed=7)
async def test_a_wrong_or_missing_index_is_rebuilt_and_nobody_is_told() -> None:
    made = await sealed()
    fs = made.node.fs
    right = fs.content(INDEX_PATH)
    for byte in (0, 20, len(right) // 2, len(right) - 1):
        fs.flip(INDEX_PATH, byte, 0)
        assert (await made.scrubber.scrub_all()).indexes_rebuilt == 1
        assert fs.durable_content(INDEX_PATH) == right
    fs.unlink(INDEX_PATH)
    assert (await made.scrubber.scrub_all()).indexes_rebuilt == 1
    assert fs.durable_content(INDEX_PATH) == right
    assert (await made.scrubber.scrub_all()).indexes_rebuilt == 0
    assert made.told == []
    assert await read_bytes(made.node.store, EXTENT) == BYTES


@pytest.mark.sim(seed=8)
async def test_damage_in_an_open_replica_ends_its_appends_and_outlives_a_clean_stop() -> None:
    cluster = Cluster()
    node = await cluster.node()
    await fill(node.store, BLOCKS[:4])
    await rig.tell_committed(node.store, EXTENT, len(b"".join(BLOCKS[:4])))
    made = Scrubbed(node)
    assert (await made.scrubber.scrub_all()).bad == 0
    node.fs.flip(PATH, len(BLOCKS[0]) + 30, 2)
    assert (await made.scrubber.scrub_all()).bad == 1
    (told,) = made.told
    assert told.offset == len(BLOCKS[0])
    assert node.files("quarantine") == []
    offset = len(b"".join(BLOCKS[:4]))
    assert await rig.error_of(rig.append(node.store, EXTENT, offset, BLOCKS[4])) is errors.ReplicaDoubtful
    answer = await rig.fence(node.store, EXTENT)
    assert (answer.kind, answer.valid_length) == (pb.LengthAnswer.DOUBTFUL, len(BLOCKS[0]))
    assert (await made.scrubber.scrub_all()).bad == 0  # known by now
    await node.store.stop(clean=True)
    node.fs.crash()
    again = await cluster.node(node.machine)
    assert (await rig.fence(again.store, EXTENT)).kind == pb.LengthAnswer.DOUBTFUL


# --- what is right is left alone -----------------------------------------------------------------------------


@pytest.mark.sim(seed=9)
async def test_a_read_error_quarantines_nothing() -> None:
    made = await sealed()
    fs = made.node.fs
    fs.fail(errno.EIO, match=lambda operation, path: operation == "pread" and path == PATH, times=2)
    result = await made.scrubber.scrub_all()
    assert (result.bad, result.read_errors, result.bytes_read) == (0, 0, len(BYTES))
    assert made.node.store.inventory.disks()[0].state == pb.DiskInfo.WRITABLE
    # One that stays is the disk's matter.
    fault = fs.fail(errno.EIO, match=lambda operation, path: operation == "pread" and path == PATH, times=None)
    result = await made.scrubber.scrub_all()
    assert (result.bad, result.read_errors) == (0, 1)
    assert made.told == []
    assert made.node.store.inventory.disks()[0].state == pb.DiskInfo.OFFLINE
    fault.clear()
    assert made.node.files("quarantine") == []
    assert fs.content(PATH) == BYTES


@pytest.mark.sim(seed=10)
async def test_bytes_that_are_wrong_once_and_right_the_next_time_are_no_finding() -> None:
    made = await sealed()
    fs = made.node.fs
    fs.flip(PATH, 100, 1)
    reads = 0
    pread = fs.pread

    def healing(fd: int, size_bytes: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:
            fs.flip(PATH, 100, 1)
        return pread(fd, size_bytes, offset)

    fs.pread = healing  # type: ignore[method-assign]
    result = await made.scrubber.scrub_all()
    assert result.bad == 0
    assert result.bytes_read == 2 * len(BYTES)
    assert made.told == []
    assert await read_bytes(made.node.store, EXTENT) == BYTES


@pytest.mark.sim(seed=11)
async def test_no_race_with_deletes_seals_and_copies_is_taken_for_damage() -> None:
    """Goal: no false positive. Method: rounds run one after the other while extents are made, filled, sealed with a
    cut, deleted and copied anew, at random moments; nothing is ever wrong, so nothing may be told."""
    for seed in range(3):
        rng = random.Random(seed)
        cluster = Cluster(seed)
        source, node = await cluster.sealed_node(), await cluster.node()
        made = Scrubbed(node, bytes_per_s=rng.choice((0, 20_000, 1_000_000)), round_interval_s=0.0)
        scrubbing = asyncio.create_task(_rounds(made.scrubber))
        copier = cluster.copier(node, tasks_max=100)
        async with asyncio.TaskGroup() as group:
            for extent_id in (3, 4, 5, 6, 7):
                group.create_task(_live(node.store, extent_id, random.Random(rng.random())))
            for task_id in range(1, 8):
                await asyncio.sleep(rng.random() * 0.2)
                copier.start(order(source, task_id=task_id, eversion=2 + 2 * task_id))
                status = await copier.wait(task_id)
                assert status.state == pb.CopyStatusReply.DONE
                if rng.random() < 0.7:
                    await asyncio.sleep(rng.random() * 0.02)
                    await rig.delete(node.store, EXTENT, eversion=3 + 2 * task_id)
        scrubbing.cancel()
        await asyncio.wait([scrubbing])
        assert made.told == []
        assert node.files("quarantine") == []
        assert made.scrubber.counters.rounds > 10
        assert made.scrubber.counters.extents > 20
        assert made.scrubber.counters.bad == 0
        await copier.stop()
        await node.store.stop(clean=True)


async def _rounds(scrubber: Scrubber) -> None:
    while True:
        await scrubber.scrub_all()
        await asyncio.sleep(0.003)


async def _live(store: Storage, extent_id: int, rng: random.Random) -> None:
    """The life of an extent and of those that come after it."""
    for number in range(6):
        name = extent_id + 256 * number
        await rig.create(store, name)
        end, ends = 0, [0]
        for _ in range(rng.randrange(1, 8)):
            await asyncio.sleep(rng.random() * 0.02)
            block = encode_block(rng.randbytes(rng.randrange(2000)))
            end = (await rig.append(store, name, end, block, no_sync=rng.random() < 0.3)).end
            ends.append(end)
        if rng.random() < 0.8:
            await asyncio.sleep(rng.random() * 0.02)
            assert (await rig.seal(store, name, rng.choice(ends))).confirmed
        await asyncio.sleep(rng.random() * 0.05)
        await rig.delete(store, name)


@pytest.mark.sim(seed=15)
@pytest.mark.parametrize("race", ["delete", "seal", "copy", "quarantine"])
async def test_a_change_in_the_middle_of_a_look_is_no_finding(race: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, step by step: the change begins so many steps of the loop before the look, or after."""
    monkeypatch.setattr(store_audit, "SLICE_BYTES", 300)
    skipped = 0
    for ticks in range(-12, 24):
        cluster = Cluster()
        source, node = await cluster.sealed_node(), await cluster.node()
        await fill(node.store, BLOCKS)
        if race in ("delete", "quarantine"):
            await rig.seal(node.store, EXTENT, len(BYTES))
        made = Scrubbed(node)
        request = order(source)
        draft = await node.store.copies.begin(request)
        await draft.take(BYTES)
        await draft.finish(Seal(len(BYTES), request.seal.eversion, request.seal.digest))
        incarnation = describe(node.store, EXTENT).replica.incarnation
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "delete": partial(rig.delete, node.store, EXTENT),
            "seal": partial(rig.seal, node.store, EXTENT, len(BLOCKS[0])),
            "copy": partial(node.store.copies.install, draft, request),
            "quarantine": partial(
                store_control.quarantine, node.store.state, EXTENT, incarnation=incarnation, reason="a test"
            ),
        }
        changing = asyncio.create_task(_change(changes[race], wait_ticks=max(0, ticks)))
        for _ in range(-ticks):
            await asyncio.sleep(TICK_S)
        result = await made.scrubber.scrub_all()
        assert await changing
        await draft.discard()
        skipped += result.skipped
        assert (result.bad, made.told) == (0, []), ticks
        assert describe_kind(node.store) in (None, pb.LengthAnswer.LENGTH)
        assert len(node.files("quarantine")) == (race == "quarantine")
    assert skipped > 0  # the steps hit


def describe_kind(store: Storage) -> pb.LengthAnswer.Kind | None:
    try:
        return describe(store, EXTENT).kind
    except (errors.ReplicaMissing, errors.ReplicaDeleted):
        return None
    except errors.ReplicaDamaged:  # in quarantine
        return None


async def _change(change: Callable[[], Awaitable[object]], *, wait_ticks: int) -> object:
    for _ in range(wait_ticks):
        await asyncio.sleep(TICK_S)
    return await change()


@pytest.mark.sim(seed=12)
async def test_after_an_unclean_stop_nothing_is_found_either() -> None:
    """A kill leaves replicas that nobody has looked at, and a sealed one may not be cut yet."""
    for ending in ("crash", "power_cut"):
        cluster = Cluster()
        node = await cluster.sealed_node()
        await rig.create(node.store, 3)
        await rig.append(node.store, 3, 0, BLOCKS[0], BLOCKS[1], no_sync=True)
        getattr(node.fs, ending)()
        again = await cluster.node(node.machine)
        made = Scrubbed(again)
        result = await made.scrubber.scrub_all()
        assert (result.bad, made.told) == (0, [])
        assert result.bytes_read >= len(BYTES)


# --- pace and figures ----------------------------------------------------------------------------------------


@pytest.mark.sim(seed=13)
async def test_the_pace_holds_and_a_round_counts_what_it_did() -> None:
    loop = asyncio.get_running_loop()
    cluster = Cluster()
    block = encode_block(bytes(500_000))
    node = await cluster.sealed_node([block] * 2)
    for extent_id in (3, 4, 5):
        await rig.create(node.store, extent_id)
        await rig.append(node.store, extent_id, 0, block, block)
        await rig.seal(node.store, extent_id, 2 * len(block))
    made = Scrubbed(node, bytes_per_s=100_000, round_interval_s=3600)
    running = asyncio.create_task(made.scrubber.run())
    begun_s = loop.time()
    while made.scrubber.counters.rounds < 1:
        await asyncio.sleep(1)
        burst_bytes = 1 << 20
        assert made.scrubber.counters.bytes_read <= 2 * burst_bytes + 100_000 * (loop.time() - begun_s)
    last = made.scrubber.counters.last_round
    assert (last.extents, last.bytes_read, last.bad) == (4, 8 * len(block), 0)
    assert last.seconds >= (8 * len(block) - (1 << 20)) / 100_000
    await asyncio.sleep(3000)
    assert made.scrubber.counters.rounds == 1
    await asyncio.sleep(1200)
    assert made.scrubber.counters.rounds == 2
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await node.store.stop(clean=True)


@pytest.mark.sim(seed=14)
async def test_cancelling_at_any_moment_leaves_no_descriptor_open() -> None:
    made = await sealed()
    await read_bytes(made.node.store, EXTENT)
    opened = len(made.node.fs._open)
    for ticks in range(40):
        running = asyncio.create_task(made.scrubber.scrub_all())
        await asyncio.sleep(ticks * TICK_S)
        running.cancel()
        await asyncio.wait([running])
        assert len(made.node.fs._open) == opened, ticks
