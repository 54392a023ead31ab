"""A disk that went offline or was mounted anew counts as another boot (rule 12); an ordinary restart does not."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from neve.extent_node.disk import mounts
from neve.extent_node.disk.disk import BOOT
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import DiskFailed
from tests.unit.extent_node.store.rig import Machine, append, block_of, create, error_of, raise_token

Kind = pb.LengthAnswer

A, B, C = block_of("a", 50), block_of("b", 50), block_of("c", 50)


async def fill(store: Storage) -> None:
    """Three blocks, of which only the first two are surely durable: `unsynced` is set with the second one."""
    await create(store, 1, disk=0)
    await append(store, 1, 0, A)
    await append(store, 1, len(A), B, no_sync=True)
    await append(store, 1, len(A + B), C, no_sync=True)


async def look(store: Storage) -> tuple[Kind.Kind, int]:
    await store.verified()
    answer = await raise_token(store, 1, 11)
    return answer.kind, answer.length or answer.valid_length


def test_a_disk_that_was_mounted_anew_in_the_same_boot_is_doubted_and_no_restart_forgets_it() -> None:
    machine = Machine(2)
    machine.run(fill)
    machine.fs.remount("/disk0")
    assert machine.run(look) == (Kind.DOUBTFUL, len(A + B))
    assert machine.restart(look) == (Kind.DOUBTFUL, len(A + B))


def test_a_restart_without_a_new_mount_doubts_nothing() -> None:
    machine = Machine(2)
    machine.run(fill)
    machine.fs.remount("/disk1")  # another disk's matter
    assert machine.run(look) == (Kind.LENGTH, len(A + B + C))


def test_a_new_mount_after_a_clean_stop_doubts_nothing() -> None:
    machine = Machine()

    async def stop(store: Storage) -> None:
        await fill(store)
        await store.stop(clean=True)

    machine.run(stop)
    machine.fs.remount("/disk0")
    assert machine.run(look) == (Kind.LENGTH, len(A + B + C))


def test_a_boot_label_without_a_mount_counts_as_another_one() -> None:
    """As an earlier build wrote it."""
    machine = Machine()
    machine.run(fill)
    machine.fs.crash()
    from neve.extent_node.disk.labels import read_label, write_label

    fields = read_label(machine.fs, "/disk0", BOOT)
    assert fields is not None
    del fields["mount_id"], fields["distrusted"]
    write_label(machine.fs, "/disk0", BOOT, fields)
    assert machine.run(look)[0] == Kind.DOUBTFUL


def test_a_device_that_fails_with_disk_and_journal_on_it_is_doubted_when_it_is_back() -> None:
    """Nothing can be written down when it happens. It comes back by being mounted anew."""
    machine = Machine()

    async def dies(store: Storage) -> None:
        await fill(store)
        machine.fs.fail(errno.EIO, match=lambda operation, path: operation != "close", times=None)
        assert await error_of(append(store, 1, len(A + B + C), C)) is DiskFailed
        await asyncio.sleep(1)

    machine.run(dies)
    machine.fs._faults._faults.clear()
    machine.fs.remount("/disk0")
    machine.fs.remount("/journal")
    assert machine.run(look)[0] == Kind.DOUBTFUL


@pytest.mark.parametrize("heals", [False, True])
def test_a_failure_that_the_journals_label_cannot_take_is_told_by_a_disk_or_later(heals: bool) -> None:
    machine = Machine(2)
    on_boot_labels = "nothing" if not heals else BOOT

    async def dies(store: Storage) -> None:
        await fill(store)
        full = machine.fs.fail(
            errno.ENOSPC,
            match=lambda operation, path: operation == "open" and ("journal.json" in path or on_boot_labels in path),
            times=None,
        )
        machine.fs.fail(errno.EIO, match=lambda operation, path: operation == "fdatasync" and "/disk0/" in path)
        # The doubt cannot be stored with the file either.
        machine.fs.fail(errno.EIO, match=lambda operation, path: operation == "set_xattr" and "/disk0/" in path)
        assert await error_of(append(store, 1, len(A + B + C), C)) is DiskFailed
        await asyncio.sleep(1)
        full.clear()
        if heals:
            await asyncio.sleep(10)  # the housekeeper tries again

    machine.run(dies)
    machine.fs._faults._faults.clear()
    assert machine.restart(look)[0] == Kind.DOUBTFUL
    assert machine.restart(look)[0] == Kind.DOUBTFUL


# --- the real thing ------------------------------------------------------------------------------------------


def test_the_mount_of_a_folder_is_told_and_stays_the_same(tmp_path: Path) -> None:
    first = RealFileSystem().mount_id(str(tmp_path))
    assert first
    assert RealFileSystem().mount_id(str(tmp_path)) == first
    with pytest.raises(FileNotFoundError):
        RealFileSystem().mount_id(str(tmp_path / "nothing"))


def test_without_a_folder_in_sys_the_kernels_number_of_the_mount_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_KINDS", ())
    assert mounts.mount_id("/").startswith("mount")
    assert mounts.mount_id("/") == mounts.mount_id("/")
    assert mounts.mount_id("/") != mounts.mount_id("/proc")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4")
def test_a_file_system_that_is_unmounted_and_mounted_again_is_another_mount(tmp_path: Path) -> None:
    """The kernel gives the same device and the same mount number again: neither may be what is compared."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("loop mounts are not allowed here")
    try:
        first = mounts.mount_id(str(folder))
        assert mounts.mount_id(str(folder)) == first
        subprocess.run(["umount", folder], check=True)
        subprocess.run(mount, check=True)
        assert mounts.mount_id(str(folder)) != first
    finally:
        subprocess.run(["umount", folder], check=True)
