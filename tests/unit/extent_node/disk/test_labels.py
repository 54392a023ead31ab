"""Labels: replaced whole whatever happens, and also on a disk without a free byte (T24)."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from neve.extent_node.disk.disk import BOOT
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.disk.labels import ASIDE_SUFFIX, LabelDamaged, read_label, write_label
from neve.extent_node.journal.folder import LABEL as JOURNAL_LABEL
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import ReplicaDoubtful
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash
from tests.unit.extent_node.store.rig import (
    JOURNAL,
    TOKEN,
    Machine,
    append,
    append_all,
    block_of,
    create,
    error_of,
    fence,
    raise_token,
    read_bytes,
    seal,
    segment,
    tell_committed,
)

FOLDER, NAME = "/d", "it.json"
A, B = block_of("a", 100), block_of("b", 300)

Kind = pb.LengthAnswer
Power = Literal["lose_all", "random"]


def fields(number: int) -> dict[str, Any]:
    return {"number": number, "text": "x" * (number * 37 % 200)}


def with_folder(seed: int = 0) -> SimFileSystem:
    fs = SimFileSystem(random.Random(seed))
    fs.make_dirs(FOLDER)
    fs.fsync_dir("/")
    return fs


@pytest.mark.parametrize("ending", ["crash", "lose_all", "random"])
@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_a_label_is_the_old_or_the_new_one_wherever_the_writing_ends(
    ending: str, when: Literal["before", "after", "torn"]
) -> None:
    """Three writings, one behind the other, each on what the last process left."""
    for seed in range(20 if ending == "random" else 1):
        step = 0
        while True:
            step += 1
            fs = with_folder(seed)
            write_label(fs, FOLDER, NAME, fields(1))
            first = fs.steps
            fs.stop_at(first + step, when)
            written = 1
            try:
                for number in (2, 3, 4):
                    write_label(fs, FOLDER, NAME, fields(number))
                    written = number
            except SimulatedCrash:
                pass
            else:
                break
            fs.crash() if ending == "crash" else fs.power_cut(ending)  # type: ignore[arg-type]
            assert read_label(fs, FOLDER, NAME) in (fields(written), fields(written + 1)), (seed, step)
            write_label(fs, FOLDER, NAME, fields(9))
            fs.power_cut()
            assert read_label(fs, FOLDER, NAME) == fields(9)
        assert step > 10


def syncing_an_exchange(fs: SimFileSystem) -> Callable[[str, str], bool]:
    return lambda operation, path: operation == "fsync_dir" and "exchange" in list(fs.log)[-2]


@pytest.mark.parametrize("seed", range(30))
def test_a_label_whose_exchange_did_not_reach_the_disk_is_not_written_over(seed: int) -> None:
    """The folder's fsync failed: on the disk, the file that is aside now may still be the label."""
    large = [{"number": number, "text": str(number) * 3000} for number in range(4)]  # over several sectors
    for step in range(1, 4):
        fs = with_folder(seed)
        write_label(fs, FOLDER, NAME, large[1])
        fault = fs.fail(errno.EIO, match=lambda operation, path: operation == "fsync_dir" and path == FOLDER, times=2)
        with pytest.raises(OSError, match="Input/output"):  # of the file that is aside, first; it may not be touched
            write_label(fs, FOLDER, NAME, large[2])
        fault.left = 0
        fs.fail(errno.EIO, match=syncing_an_exchange(fs))
        with pytest.raises(OSError, match="Input/output"):
            write_label(fs, FOLDER, NAME, large[2])
        fs.stop_at(fs.steps + step, "torn")  # a start tries again, and the power goes
        with pytest.raises(SimulatedCrash):
            write_label(fs, FOLDER, NAME, large[3])
        fs.power_cut("random")
        assert read_label(fs, FOLDER, NAME) in large[1:], step


def test_a_label_is_replaced_on_a_disk_without_a_free_byte() -> None:
    fs = with_folder()
    write_label(fs, FOLDER, NAME, fields(1))
    fs.set_capacity(FOLDER, 1)
    for number in (2, 3, 4):
        write_label(fs, FOLDER, NAME, fields(number))
        fs.power_cut()
        assert read_label(fs, FOLDER, NAME) == fields(number)


def test_a_file_system_that_cannot_exchange_names_renames() -> None:
    fs = with_folder()
    write_label(fs, FOLDER, NAME, fields(1))
    fs.fail(errno.EINVAL, match=lambda operation, path: operation == "exchange", times=None)
    for number in (2, 3):
        write_label(fs, FOLDER, NAME, fields(number))
        fs.power_cut()
        assert read_label(fs, FOLDER, NAME) == fields(number)


def test_a_label_of_an_earlier_build_is_read_and_a_flipped_bit_in_any_is_noticed() -> None:
    fs = with_folder()
    write_label(fs, FOLDER, NAME, fields(1))
    padded = fs.content(f"{FOLDER}/{NAME}")
    assert len(padded) == 1024
    assert json.loads(padded)["number"] == 1
    for byte in (len(padded) - 1, len(padded) - 2, len(padded) // 2, 5):
        fs.flip(f"{FOLDER}/{NAME}", byte, 2)
        with pytest.raises(LabelDamaged):
            read_label(fs, FOLDER, NAME)
        fs.flip(f"{FOLDER}/{NAME}", byte, 2)
    fd = fs.open(f"{FOLDER}/{NAME}")
    earlier = padded.rstrip() + b"\n"
    fs.truncate(fd, 0)
    fs.pwrite(fd, [earlier], 0)
    assert read_label(fs, FOLDER, NAME) == fields(1)
    fs.truncate(fd, len(earlier) - 1)
    with pytest.raises(LabelDamaged):
        read_label(fs, FOLDER, NAME)


def test_the_real_file_system_exchanges_two_files(tmp_path: Any) -> None:
    (tmp_path / "one").write_text("1")
    (tmp_path / "other").write_text("2")
    RealFileSystem().exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert ((tmp_path / "one").read_text(), (tmp_path / "other").read_text()) == ("2", "1")
    with pytest.raises(FileNotFoundError):
        RealFileSystem().exchange(str(tmp_path / "one"), str(tmp_path / "missing"))


# --- a node --------------------------------------------------------------------------------------------------


def fill_up(machine: Machine) -> None:
    """Not a byte is left on any disk, nor beside the journal."""
    for folder in ("/disk0", JOURNAL):
        machine.fs.set_capacity(folder, 1)
        assert machine.fs.usage(folder).free_bytes == 0


@pytest.mark.parametrize("ending", ["crash", "power_cut"])
def test_t24_a_node_starts_on_disks_that_are_full_to_the_last_byte(ending: str) -> None:
    machine = Machine(journal_extents_min=1, checkpoint_interval_s=3600.0)

    async def work(store: Storage) -> None:
        for extent_id in (1, 2):
            await create(store, extent_id)
            await append(store, extent_id, 0, A)
        await append_all(store, segment(1, len(A), [B]), segment(2, len(A), [B]))

    async def after(store: Storage) -> None:
        assert store.inventory.disks()[0].state != pb.DiskInfo.OFFLINE
        for extent_id in (1, 2):
            if ending == "crash":
                assert (await fence(store, extent_id)).length == len(A + B)
                assert (await seal(store, extent_id, len(A + B))).confirmed
                assert await read_bytes(store, extent_id) == A + B
        await store.stop(clean=ending == "crash")

    machine.run(work)
    getattr(machine.fs, ending)()
    fill_up(machine)
    machine.run(after)
    assert (read_label(machine.fs, "/disk0", BOOT) or {})["clean"] is (ending == "crash")
    # And when there is room again, everything is there.
    machine.fs.crash()
    for folder in ("/disk0", JOURNAL):
        machine.fs.set_capacity(folder, 1 << 30)

    async def in_the_end(store: Storage) -> None:
        for extent_id in (1, 2):
            await raise_token(store, extent_id, TOKEN)
            if ending == "power_cut":
                await tell_committed(store, extent_id, len(A + B))
            assert await read_bytes(store, extent_id) == A + B

    machine.run(in_the_end)


def test_a_doubt_that_finds_no_room_is_doubted_by_every_later_start() -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, A)
        await append(store, 1, len(A), B, no_sync=True)

    async def look(store: Storage) -> None:
        assert (await raise_token(store, 1, TOKEN)).kind == Kind.DOUBTFUL
        assert await error_of(append(store, 1, len(A + B), B)) is ReplicaDoubtful

    machine.run(work)
    machine.fs.power_cut()
    fault = machine.fs.fail(errno.ENOSPC, match=lambda operation, path: operation == "set_xattr", times=None)
    machine.run(look)
    machine.fs.crash()
    fault.clear()
    machine.run(look)
    machine.fs.power_cut()
    machine.run(look)


def test_what_is_aside_of_every_label_is_there_from_the_format_on() -> None:
    machine = Machine()
    for folder, name in (("/disk0", BOOT), ("/disk0", "disk.json"), (JOURNAL, JOURNAL_LABEL)):
        assert len(machine.fs.durable_content(f"{folder}/{name}{ASIDE_SUFFIX}")) >= 1024
