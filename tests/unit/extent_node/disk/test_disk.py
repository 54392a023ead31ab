"""A disk: what it is, what it refuses to be, how it goes read-only and offline, and what it leaves behind (T32)."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from neve.extent_node.disk.disk import Disk, DiskRefused, DiskState, Marks, format_disk
from neve.extent_node.disk.file_system import RealFileSystem, Usage
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash

FOLDER = "/disk"
UUID = uuid.UUID(int=0x1234)


def new_fs() -> SimFileSystem:
    fs = SimFileSystem()
    format_disk(fs, FOLDER, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")
    return fs


def open_disk(fs: SimFileSystem, **changes: object) -> Disk:
    wanted: dict[str, object] = {"cluster": "c", "node_id": 1, "expected_uuid": str(UUID), **changes}
    return Disk.open(fs, FOLDER, **wanted)  # type: ignore[arg-type]


def test_a_formatted_disk_is_what_it_was_made_even_after_a_power_cut() -> None:
    fs = new_fs()
    fs.power_cut()
    disk = open_disk(fs)
    assert (disk.uuid, disk.label.cluster, disk.label.node_id, disk.label.journal_uuid) == (str(UUID), "c", 1, "j")
    assert disk.last_boot() is not None
    assert list(disk.extent_ids()) == []


@pytest.mark.parametrize("step", range(1, 400, 3))
def test_a_format_that_was_cut_short_can_be_repeated(step: int) -> None:
    fs = SimFileSystem()
    fs.stop_at(step)
    try:
        format_disk(fs, FOLDER, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")
    except SimulatedCrash:
        fs.crash()
        if fs.stat(FOLDER) is None or "disk.json" not in fs.list_dir(FOLDER):
            format_disk(fs, FOLDER, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")
    fs.crash()
    assert open_disk(fs).uuid == str(UUID)


def test_only_an_empty_folder_is_formatted() -> None:
    fs = new_fs()
    with pytest.raises(DiskRefused, match=r"not empty \(it has 'disk.json'\)"):
        format_disk(fs, FOLDER, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")
    fs.unlink(FOLDER + "/disk.json")
    fs.close(fs.open(FOLDER + "/extents/01/0000000000000001.ext", create=True))
    with pytest.raises(DiskRefused, match="not empty"):
        format_disk(fs, FOLDER, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")


def test_t32_wiped_swapped_and_foreign_disks_are_refused_by_name() -> None:
    fs = new_fs()
    with pytest.raises(DiskRefused, match="were disks swapped"):
        open_disk(fs, expected_uuid=str(uuid.UUID(int=9)))
    with pytest.raises(DiskRefused, match="a disk of cluster 'c', not of 'other'"):
        open_disk(fs, cluster="other")
    with pytest.raises(DiskRefused, match="a disk of node 1, not of node 2"):
        open_disk(fs, node_id=2)
    fs.wipe(FOLDER)
    with pytest.raises(DiskRefused, match="it is not mounted, or it was wiped"):
        open_disk(fs)
    with pytest.raises(DiskRefused, match="format it first"):
        open_disk(fs, expected_uuid="")


def test_a_disk_that_another_process_uses_is_refused() -> None:
    fs = new_fs()
    open_disk(fs)
    with pytest.raises(DiskRefused, match="locked"):
        open_disk(fs)
    fs.crash()
    open_disk(fs)


def test_t30_an_unknown_format_and_a_damaged_label_are_refused() -> None:
    fs = new_fs()
    fs.flip(FOLDER + "/disk.json", 30, 1)
    with pytest.raises(DiskRefused, match="damaged"):
        open_disk(fs)


def test_t30_every_flipped_bit_of_a_label_is_noticed() -> None:
    fs = new_fs()
    path = FOLDER + "/disk.json"
    for byte in range(len(fs.content(path))):
        fs.flip(path, byte, byte % 7)
        with pytest.raises(DiskRefused):
            open_disk(fs)
        fs.flip(path, byte, byte % 7)
    open_disk(fs)


def test_a_file_system_without_user_attributes_is_refused_with_what_to_do() -> None:
    fs = new_fs()
    fs.fail(errno.EOPNOTSUPP, match=lambda operation, path: operation == "set_xattr")
    with pytest.raises(DiskRefused, match="use ext4 or XFS"):
        open_disk(fs)
    assert fs.list_dir(FOLDER + "/tmp") == []


def test_a_disk_goes_read_only_above_the_high_mark_and_back_below_the_low_one() -> None:
    fs = new_fs()
    disk = open_disk(fs, marks=Marks(high=0.9, low=0.8))
    states = []
    for used_bytes in (850, 950, 850, 790, 850):
        now = Usage(capacity_bytes=1000, free_bytes=1000 - used_bytes)
        fs.usage = lambda path, now=now: now  # type: ignore[method-assign,misc]
        disk.refresh_usage()
        states.append(disk.state)
    full, free = DiskState.READ_ONLY, DiskState.WRITABLE
    assert states == [free, full, full, free, free]


def test_an_offline_disk_stays_offline() -> None:
    disk = open_disk(new_fs())
    disk.note_failed("EIO")
    disk.refresh_usage()
    disk.note_full("later")
    assert (disk.state, disk.reason) == (DiskState.OFFLINE, "EIO")


def test_left_overs_in_tmp_are_removed() -> None:
    fs = new_fs()
    disk = open_disk(fs)
    fs.close(fs.open(disk.tmp_path("half.ext"), create=True))
    assert disk.empty_tmp() == 1
    assert fs.list_dir(FOLDER + "/tmp") == []


def test_a_tombstone_survives_a_power_cut_and_says_its_eversion() -> None:
    fs = new_fs()
    disk = open_disk(fs)
    disk.bury(0x1F, 7, 1000)
    fs.power_cut()
    assert list(open_disk(fs).tombstones()) == [(0x1F, 7)]


def test_trash_and_tombstones_go_when_their_delay_is_over() -> None:
    fs = new_fs()
    disk = open_disk(fs)
    for extent_id, deleted_ms in ((1, 1000), (2, 5000)):
        fs.close(fs.open(disk.extent_path(extent_id), create=True))
        disk.bury(extent_id, 1, deleted_ms)
        disk.move_to_trash(extent_id, 5, deleted_ms)
    assert list(disk.extent_ids()) == []
    assert disk.purge_trash(3000) == 1
    assert disk.purge_tombstones(3000) == [(1, 1)]
    assert len(fs.list_dir(FOLDER + "/trash")) == 1
    assert list(disk.tombstones()) == [(2, 1)]


def test_extents_lie_in_folders_by_their_last_two_digits() -> None:
    fs = new_fs()
    disk = open_disk(fs)
    for extent_id in (1, 0x101, 0xABCDEF0123456789):
        fs.close(fs.open(disk.extent_path(extent_id), create=True))
    assert disk.extent_path(0xABCDEF0123456789) == "/disk/extents/89/abcdef0123456789.ext"
    assert sorted(disk.extent_ids()) == [1, 0x101, 0xABCDEF0123456789]


def test_a_boot_is_remembered_with_whether_it_ended_cleanly() -> None:
    fs = new_fs()
    disk = open_disk(fs)
    disk.store_boot(clean=False)
    before = disk.last_boot()
    assert before is not None
    assert not before.clean
    fs.power_cut()
    assert before.boot_id != fs.boot_id()
    disk = open_disk(fs)
    assert disk.last_boot() == before
    fs.flip(FOLDER + "/boot.json", 5, 1)
    assert disk.last_boot() is None


def test_the_real_file_system_makes_a_disk_too(tmp_path: Path) -> None:
    fs = RealFileSystem()
    folder = str(tmp_path / "disk")
    format_disk(fs, folder, cluster="c", node_id=1, disk_uuid=UUID, journal_uuid="j")
    disk = Disk.open(fs, folder, cluster="c", node_id=1, expected_uuid=str(UUID), marks=Marks(high=1.1))
    with pytest.raises(DiskRefused, match="locked"):
        Disk.open(fs, folder, cluster="c", node_id=1)
    assert disk.state is DiskState.WRITABLE
    assert disk.usage.capacity_bytes > 0
    disk.close()
