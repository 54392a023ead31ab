"""The simulated disk: what survives a crash, a power cut and a failed sync, and that it is otherwise like the real one.

Tests of the node are worth as much as this disk is honest: it must lose everything that a real one may lose.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from neve.extent_node.disk.file_system import FileSystem, RealFileSystem
from tests.sim.disks.disk import SYNCS, WRITES, SimFileSystem, SimulatedCrash

SEEDS = range(60)


def new_file(fs: SimFileSystem, path: str = "/f", data: bytes = b"") -> int:
    """A file whose name and `data` are durable."""
    fd = fs.open(path, create=True)
    if data:
        fs.pwrite(fd, [data], 0)
    fs.fsync(fd)
    fs.fsync_dir(os.path.dirname(path))
    return fd


def names(fs: SimFileSystem, path: str = "/") -> set[str]:
    return set(fs.list_dir(path))


# --- a killed process ----------------------------------------------------------------------------------------------


def test_a_crash_keeps_the_page_cache_and_ends_descriptors_and_locks() -> None:
    fs = SimFileSystem()
    boot_id = fs.boot_id()
    fd = fs.open("/f", create=True)
    fs.pwrite(fd, [b"unsynced"], 0)
    fs.set_xattr(fd, "user.a", b"1")
    lock = fs.lock("/lock")
    with pytest.raises(BlockingIOError):
        fs.lock("/lock")
    fs.crash()
    assert fs.boot_id() == boot_id
    for dead in (fd, lock):
        with pytest.raises(OSError, match="Bad file descriptor"):
            fs.pread(dead, 1, 0)
    again = fs.open("/f")
    assert fs.pread(again, 100, 0) == b"unsynced"
    assert fs.get_xattr(again, "user.a") == b"1"
    assert fs.lock("/lock") not in (fd, lock)
    fs.power_cut()  # and what was never synced is still not durable
    assert names(fs) == set()


def test_closing_a_lock_gives_it_back() -> None:
    fs = SimFileSystem()
    fs.close(fs.lock("/lock"))
    fs.lock("/lock")


# --- a power cut that loses everything unsynced ------------------------------------------------------------------


def test_a_power_cut_has_a_new_boot_id() -> None:
    fs = SimFileSystem()
    before = fs.boot_id()
    fs.power_cut()
    assert fs.boot_id() != before


def test_fdatasync_keeps_data_and_size_and_no_attribute() -> None:
    fs = SimFileSystem()
    fd = new_file(fs)
    fs.pwrite(fd, [b"da", b"ta"], 0)
    fs.set_xattr(fd, "user.a", b"1")
    fs.fdatasync(fd)
    fs.pwrite(fd, [b"lost"], 4)
    assert fs.durable_content("/f") == b"data"
    fs.power_cut()
    fd = fs.open("/f")
    assert fs.pread(fd, 100, 0) == b"data"
    assert fs.list_xattrs(fd) == []


def test_fsync_keeps_attributes_too() -> None:
    fs = SimFileSystem()
    fd = new_file(fs)
    fs.set_xattr(fd, "user.kept", b"1")
    fs.set_xattr(fd, "user.gone", b"1")
    fs.remove_xattr(fd, "user.gone")
    fs.fsync(fd)
    fs.set_xattr(fd, "user.kept", b"2")
    fs.remove_xattr(fd, "user.kept")
    fs.power_cut()
    fd = fs.open("/f")
    assert (fs.list_xattrs(fd), fs.get_xattr(fd, "user.kept")) == (["user.kept"], b"1")
    assert fs.get_xattr(fd, "user.gone") is None


def test_an_unsynced_truncate_is_undone() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"0123456789")
    fs.truncate(fd, 3)
    assert fs.content("/f") == b"012"
    fs.power_cut()
    assert fs.content("/f") == b"0123456789"
    fd = fs.open("/f")
    fs.truncate(fd, 3)
    fs.fdatasync(fd)
    fs.power_cut()
    assert fs.content("/f") == b"012"


@pytest.mark.parametrize("synced", [False, True])
def test_names_are_durable_only_after_fsync_dir(synced: bool) -> None:
    fs = SimFileSystem()
    for name in ("old", "removed"):
        fs.close(new_file(fs, f"/{name}", name.encode()))
    fs.close(fs.open("/made", create=True))
    fs.rename("/old", "/new")
    fs.unlink("/removed")
    if synced:
        fs.fsync_dir("/")
    fs.power_cut()
    assert names(fs) == ({"made", "new"} if synced else {"old", "removed"})
    assert fs.content("/new" if synced else "/old") == b"old"


def test_a_durable_name_does_not_make_the_content_durable() -> None:
    fs = SimFileSystem()
    fd = fs.open("/f", create=True)
    fs.pwrite(fd, [b"data"], 0)
    fs.fsync_dir("/")
    fs.power_cut()
    assert fs.content("/f") == b""


def test_a_durable_content_does_not_make_the_name_durable() -> None:
    fs = SimFileSystem()
    fd = fs.open("/f", create=True)
    fs.pwrite(fd, [b"data"], 0)
    fs.fsync(fd)
    fs.power_cut()
    assert names(fs) == set()


def test_a_new_folder_is_durable_only_with_its_parent() -> None:
    fs = SimFileSystem()
    fs.make_dirs("/a/b")
    new_file(fs, "/a/b/f")
    fs.fsync_dir("/a")
    fs.power_cut()
    assert names(fs) == set()
    fs.make_dirs("/a/b")
    new_file(fs, "/a/b/f")
    fs.fsync_dir("/a")
    fs.fsync_dir("/")
    fs.power_cut()
    assert names(fs, "/a/b") == {"f"}


def test_a_removed_name_comes_back_though_a_new_file_took_it() -> None:
    fs = SimFileSystem()
    new_file(fs, data=b"old")
    fs.unlink("/f")
    fd = fs.open("/f", create=True)
    fs.pwrite(fd, [b"new"], 0)
    fs.fsync(fd)
    fs.power_cut()
    assert fs.content("/f") == b"old"


def test_a_rename_over_a_file_is_the_old_or_the_new_one() -> None:
    for seed in SEEDS:
        fs = SimFileSystem(random.Random(seed))
        new_file(fs, "/f", b"old")
        new_file(fs, "/tmp", b"new")
        fs.rename("/tmp", "/f")
        fs.power_cut("random")
        assert (fs.content("/f"), names(fs)) in ((b"old", {"f", "tmp"}), (b"new", {"f"}))


@pytest.mark.parametrize("mode", ["lose_all", "random"])
@pytest.mark.parametrize("synced", ["", "/a", "/b", "/a/b"])
def test_a_rename_between_folders_never_loses_the_file(mode: Any, synced: str) -> None:
    outcomes = set()
    for seed in SEEDS:
        fs = SimFileSystem(random.Random(seed))
        fs.make_dirs("/a")
        fs.make_dirs("/b")
        fs.fsync_dir("/")
        new_file(fs, "/a/f", b"data")
        fs.rename("/a/f", "/b/f")
        for folder in {"": [], "/a": ["/a"], "/b": ["/b"], "/a/b": ["/a", "/b"]}[synced]:
            fs.fsync_dir(folder)
        fs.power_cut(mode)
        outcomes.add((bool(names(fs, "/a")), bool(names(fs, "/b"))))
    before, both, after = (True, False), (True, True), (False, True)
    expected = {
        ("", "lose_all"): {before},
        ("", "random"): {before, after},
        ("/a", "lose_all"): {after},
        ("/a", "random"): {after},
        ("/b", "lose_all"): {both},
        ("/b", "random"): {both, after},
        ("/a/b", "lose_all"): {after},
        ("/a/b", "random"): {after},
    }
    assert outcomes == expected[synced, mode]


# --- a power cut by chance ---------------------------------------------------------------------------------------


def test_by_chance_each_unsynced_write_is_kept_lost_torn_or_zeros() -> None:
    outcomes = set()
    for seed in range(300):
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs, data=b"__")
        fs.pwrite(fd, [b"aa"], 2)
        fs.pwrite(fd, [b"bb"], 4)
        fs.power_cut("random")
        outcomes.add(fs.content("/f"))
    assert {b"__", b"__aa", b"__aabb", b"__a", b"__aab", b"__\0\0\0\0", b"__aa\0\0"} <= outcomes
    for outcome in outcomes:  # synced bytes stay, and no byte is made up
        assert outcome[:2] == b"__"
        assert all(found in (0, wanted) for found, wanted in zip(outcome, b"__aabb", strict=False))


def test_by_chance_a_later_sector_of_a_write_is_kept_while_an_earlier_one_is_lost() -> None:
    old, new = b"o" * 2048, b"n" * 2048
    patterns = set()
    for seed in range(300):
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs, data=old)
        fs.pwrite(fd, [new], 0)
        fs.power_cut("random")
        content = fs.content("/f")
        patterns.add("".join(chr(content[at]) for at in range(0, 2048, 512)))
    assert {"oooo", "nnnn", "onon", "oonn", "ooon", "noon"} <= patterns


def test_by_chance_a_sector_is_written_with_all_that_was_in_it() -> None:
    """Two writes share a sector: the later one is not on the disk without the earlier one."""
    for seed in range(300):
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs, data=bytes(512))
        fs.pwrite(fd, [b"a" * 100], 0)
        fs.pwrite(fd, [b"b" * 100], 100)
        fs.power_cut("random")
        content = fs.content("/f")
        assert content[100] == 0 or content[99] == ord("a"), seed


def test_attributes_may_be_durable_before_data() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"good")
    fs.pwrite(fd, [b"lost"], 4)
    fs.set_xattr(fd, "user.a", b"1")
    fs.power_cut("attributes")
    again = fs.open("/f")
    assert (fs.content("/f"), fs.get_xattr(again, "user.a")) == (b"good", b"1")


def test_a_remount_is_a_power_cut_of_one_folder_in_the_same_boot() -> None:
    fs = SimFileSystem()
    for folder in ("/a", "/b"):
        fs.make_dirs(folder)
        fs.fsync_dir("/")
        fd = new_file(fs, f"{folder}/f", data=b"good")
        fs.pwrite(fd, [b"more"], 4)
        fs.open(f"{folder}/new", create=True)
    before = fs.boot_id(), fs.mount_id("/a"), fs.mount_id("/b/f")
    fs.remount("/a")
    assert (fs.content("/a/f"), fs.content("/b/f")) == (b"good", b"goodmore")
    assert (names(fs, "/a"), names(fs, "/b")) == ({"f"}, {"f", "new"})
    after = fs.boot_id(), fs.mount_id("/a"), fs.mount_id("/b/f")
    assert [was == now for was, now in zip(before, after, strict=True)] == [True, False, True]


def test_by_chance_attributes_and_names_are_kept_or_lost_each_on_its_own() -> None:
    outcomes = set()
    for seed in SEEDS:
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs)
        fs.set_xattr(fd, "user.a", b"1")
        fs.set_xattr(fd, "user.b", b"1")
        fs.close(fs.open("/g", create=True))
        fs.power_cut("random")
        fd = fs.open("/f")
        outcomes.add((*sorted(fs.list_xattrs(fd)), "g" in names(fs)))
    assert len(outcomes) == 8


def test_by_chance_what_is_synced_always_stays() -> None:
    for seed in SEEDS:
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs, data=b"data")
        fs.set_xattr(fd, "user.a", b"1")
        fs.fsync(fd)
        fs.pwrite(fd, [b"more"], 4)
        fs.power_cut("random")
        fd = fs.open("/f")
        assert fs.pread(fd, 4, 0) == b"data"
        assert fs.get_xattr(fd, "user.a") == b"1"


def test_one_seed_gives_one_disk() -> None:
    def run(seed: int) -> tuple[bytes, set[str], str, list[str]]:
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs)
        for n in range(20):
            fs.pwrite(fd, [bytes([n]) * 10], 10 * n)
            fs.close(fs.open(f"/{n}", create=True))
        fs.power_cut("random")
        return fs.content("/f"), names(fs), fs.boot_id(), list(fs.log)

    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]


# --- stops -------------------------------------------------------------------------------------------------------


def work(fs: SimFileSystem) -> None:
    fd = fs.open("/f", create=True)  # 1
    fs.pwrite(fd, [b"0123456789"], 0)  # 2
    fs.set_xattr(fd, "user.a", b"1")  # 3
    fs.fsync(fd)  # 4
    fs.pread(fd, 1, 0)
    fs.rename("/f", "/g")  # 5
    fs.fsync_dir("/")  # 6
    fs.close(fd)


def test_steps_are_the_calls_that_change_something() -> None:
    fs = SimFileSystem()
    work(fs)
    assert fs.steps == 6
    assert [line.split()[:2] for line in fs.log if line.split()[0].isdigit()] == [
        ["1", "open"],
        ["2", "pwrite"],
        ["3", "set_xattr"],
        ["4", "fsync"],
        ["5", "rename"],
        ["6", "fsync_dir"],
    ]


@pytest.mark.parametrize("when", ["before", "after", "torn"])
@pytest.mark.parametrize("step", range(1, 7))
def test_a_stop_ends_the_process_at_that_step(step: int, when: Any) -> None:
    fs = SimFileSystem()
    fs.stop_at(step, when)
    with pytest.raises(SimulatedCrash):
        work(fs)
    calls: list[Callable[[], object]] = [
        lambda: fs.stat("/f"),
        lambda: fs.open("/f"),
        lambda: fs.pread(1001, 1, 0),
        lambda: fs.fdatasync(1001),
        lambda: fs.usage("/"),
        fs.boot_id,
    ]
    for call in calls:  # the dead do nothing
        with pytest.raises(SimulatedCrash):
            call()
    fs.crash()
    done = step if when == "after" else step - 1
    assert names(fs) == (set() if done < 1 else {"g"} if done >= 5 else {"f"})
    if done >= 1:
        size_bytes = len(fs.content("/g" if done >= 5 else "/f"))
        if step == 2 and when == "torn":
            assert 0 < size_bytes < 10
        else:
            assert size_bytes == (10 if done >= 2 else 0)
    fs.power_cut()
    assert names(fs) == ({"g"} if done >= 6 else set())


def test_a_simulated_crash_passes_through_code_that_catches_exceptions() -> None:
    assert not issubclass(SimulatedCrash, Exception)


# --- faults ------------------------------------------------------------------------------------------------------


def test_an_error_at_a_step_happens_there_once_and_does_nothing() -> None:
    fs = SimFileSystem()
    fs.fail(errno.EIO, step=2)
    with pytest.raises(OSError, match="Input/output error"):
        work(fs)
    assert fs.content("/f") == b""
    fd = fs.open("/f")
    assert fs.pwrite(fd, [b"ok"], 0) == 2


def test_an_error_for_a_path_lasts_until_it_is_cleared() -> None:
    fs = SimFileSystem()
    fs.make_dirs("/bad")
    fs.make_dirs("/good")
    bad, good = new_file(fs, "/bad/f"), new_file(fs, "/good/f")
    fault = fs.fail(errno.EIO, match=lambda operation, path: path.startswith("/bad"), times=None)
    for call in (lambda: fs.pread(bad, 1, 0), lambda: fs.stat("/bad/f"), lambda: fs.list_dir("/bad")):
        with pytest.raises(OSError, match="Input/output error"):
            call()
    assert fs.pread(good, 1, 0) == b""
    fault.clear()
    assert fs.pread(bad, 1, 0) == b""


def test_a_disk_without_space_fails_writes_and_not_reads() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"data")
    fault = fs.fail(errno.ENOSPC, match=lambda operation, path: operation in WRITES, times=None)
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, [b"more"], 4)
    assert fs.pread(fd, 10, 0) == b"data"
    fs.fsync(fd)
    fault.clear()
    assert fs.pwrite(fd, [b"more"], 4) == 4


@pytest.mark.parametrize("sync", ["fsync", "fdatasync"])
def test_after_a_failed_sync_a_later_one_succeeds_and_the_bytes_are_not_durable(sync: str) -> None:
    """As Linux does. Code that syncs again and believes it loses data (T23)."""
    fs = SimFileSystem()
    fd = new_file(fs, data=b"good")
    fs.pwrite(fd, [b"lost"], 4)
    fs.fail(errno.EIO, match=lambda operation, path: operation in SYNCS)
    with pytest.raises(OSError, match="Input/output error"):
        getattr(fs, sync)(fd)
    assert fs.pread(fd, 100, 0) == b"goodlost"  # still seen
    fs.pwrite(fd, [b"more"], 8)
    getattr(fs, sync)(fd)  # success
    assert fs.pread(fd, 100, 0) == b"goodlostmore"
    fs.power_cut()
    assert fs.content("/f") == b"good\0\0\0\0more"


def test_by_chance_a_failed_sync_leaves_a_part_on_the_disk() -> None:
    sizes = set()
    for seed in range(100):
        fs = SimFileSystem(random.Random(seed))
        fd = new_file(fs, data=b"good")
        fs.pwrite(fd, [b"lost"], 4)
        fs.fail(errno.EIO, match=lambda operation, path: operation in SYNCS)
        with pytest.raises(OSError, match="Input/output error"):
            fs.fdatasync(fd)
        fs.fdatasync(fd)
        fs.power_cut()
        sizes.add(len(fs.content("/f")))
    assert {4, 8} < sizes


def test_short_writes_say_how_much_they_wrote() -> None:
    fs = SimFileSystem(random.Random(5))
    fs.short_write_chance = 1.0
    fd = new_file(fs)
    written = fs.pwrite(fd, [b"01234", b"56789"], 0)
    assert 0 < written < 10
    assert fs.content("/f") == b"0123456789"[:written]


def test_a_flipped_bit_is_seen_at_once_in_mappings_too_and_survives() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"data")
    mapped = fs.map(fd, 4)
    fs.flip("/f", 1, 0)
    assert fs.pread(fd, 4, 0) == b"d`ta"
    assert bytes(mapped) == b"d`ta"
    fs.power_cut()
    assert fs.content("/f") == b"d`ta"


def test_a_flipped_bit_of_an_attribute_is_as_durable_as_the_attribute() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"data")
    fs.set_xattr(fd, "user.one", b"one")
    fs.fsync(fd)
    fs.set_xattr(fd, "user.two", b"two")
    assert fs.flip_xattr("/f", "user.two", random.Random(1)) == "user.two"
    assert fs.flip_xattr("/f", "user.none", random.Random(1)) in ("user.one", "user.two")
    assert fs.flip_xattr("/f", "user.one", random.Random(2)) == "user.one"
    seen = fs.get_xattr(fd, "user.one")
    assert seen not in (None, b"one")
    fs.power_cut()
    fd = fs.open("/f")
    assert (fs.get_xattr(fd, "user.one"), fs.get_xattr(fd, "user.two")) == (seen, None)


def test_a_mapped_file_can_still_grow_and_shrink() -> None:
    fs = SimFileSystem()
    fd = new_file(fs, data=b"data")
    mapped = fs.map(fd, 4)
    fs.pwrite(fd, [b"more"], 4)
    fs.truncate(fd, 2)
    assert fs.content("/f") == b"da"
    assert bytes(mapped) == b"data"


def test_a_wiped_folder_is_empty_for_ever() -> None:
    fs = SimFileSystem()
    fs.make_dirs("/d")
    fs.fsync_dir("/")
    new_file(fs, "/d/f", b"data")
    fs.close(fs.open("/d/g", create=True))
    mounted = fs.mount_id("/d")
    fs.wipe("/d")
    assert fs.mount_id("/d") != mounted
    assert names(fs, "/d") == set()
    fs.fsync_dir("/d")
    fs.power_cut("random")
    assert names(fs, "/d") == set()


def test_a_capacity_bounds_what_can_be_written_and_counts_what_is_reserved() -> None:
    fs = SimFileSystem()
    fs.make_dirs("/d")
    fs.make_dirs("/other")
    fs.set_capacity("/d", 100)
    fd, other = new_file(fs, "/d/f"), new_file(fs, "/other/f")
    assert fs.pwrite(fd, [bytes(60)], 0) == 60
    assert (fs.usage("/d").capacity_bytes, fs.usage("/d/f").free_bytes) == (100, 40)
    fs.preallocate(fd, 80)
    assert fs.usage("/d").free_bytes == 20
    with pytest.raises(OSError, match="No space left"):
        fs.preallocate(greedy := new_file(fs, "/d/g"), 21)
    assert fs.usage("/d").free_bytes == 0  # it has what there was
    fs.truncate(greedy, 0)
    assert fs.usage("/d").free_bytes == 20
    assert fs.pwrite(fd, [bytes(60)], 60) == 40  # as much as there is room for
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, [b"x"], 100)
    assert fs.pwrite(fd, [b"x"], 50) == 1  # over bytes that are there
    assert fs.pwrite(other, [bytes(1000)], 0) == 1000
    fs.unlink("/d/f")
    assert fs.usage("/d").free_bytes == 0  # still open
    fs.close(fd)
    assert fs.usage("/d").free_bytes == 100


# --- like the machine's own ----------------------------------------------------------------------------------------

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "a/x", "missing/x"])
NAMES = st.sampled_from(["user.a", "user.b"])


class SameAsReal(RuleBasedStateMachine):
    """Random calls on both file systems, with the same results, errors and contents, and no faults."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="neve-sim-disk-")
        self.real: FileSystem = RealFileSystem()
        self.sim: FileSystem = SimFileSystem()
        self.sim.make_dirs(self.folder)
        self.fds: list[tuple[int, int]] = []

    def teardown(self) -> None:
        for fd, _ in self.fds:
            self.real.close(fd)
        shutil.rmtree(self.folder)

    def both(self, call: Callable[[FileSystem], Any]) -> tuple[Any, Any] | None:
        """The two results; None if both failed with the same errno."""
        results: list[Any] = []
        failures: list[object] = []
        for fs in (self.real, self.sim):
            try:
                results.append(call(fs))
            except (OSError, ValueError) as error:
                failures.append(error.errno if isinstance(error, OSError) else ValueError)
        if failures:
            assert not results, (results, failures)
            assert failures[0] == failures[1]
            return None
        return results[0], results[1]

    def same(self, call: Callable[[FileSystem], Any]) -> None:
        results = self.both(call)
        assert results is None or results[0] == results[1]

    def at(self, path: str) -> str:
        return f"{self.folder}/{path}"

    def on_fd(self, which: int, call: Callable[[FileSystem, int], Any]) -> None:
        if self.fds:
            pair = self.fds[which % len(self.fds)]
            self.same(lambda fs: call(fs, pair[fs is self.sim]))

    @initialize()
    def begin_with_a_folder(self) -> None:
        self.same(lambda fs: fs.make_dirs(self.at("d")))

    @rule(path=PATHS, create=st.booleans(), exclusive=st.booleans(), writable=st.booleans())
    def open(self, path: str, create: bool, exclusive: bool, writable: bool) -> None:
        if not writable and os.path.isdir(self.at(path)):
            return  # the simulated one refuses what nobody needs
        fds = self.both(
            lambda fs: fs.open(self.at(path), create=create, exclusive=exclusive and create, writable=writable)
        )
        if fds is not None:
            self.fds.append(fds)

    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        if self.fds:
            pair = self.fds.pop(which % len(self.fds))
            self.same(lambda fs: fs.close(pair[fs is self.sim]))

    @rule(which=st.integers(0, 9), parts=st.lists(st.binary(max_size=9), max_size=3), offset=st.integers(0, 40))
    def pwrite(self, which: int, parts: list[bytes], offset: int) -> None:
        self.on_fd(which, lambda fs, fd: fs.pwrite(fd, list(parts), offset))

    @rule(which=st.integers(0, 9), size_bytes=st.integers(0, 50), offset=st.integers(0, 60))
    def pread(self, which: int, size_bytes: int, offset: int) -> None:
        self.on_fd(which, lambda fs, fd: fs.pread(fd, size_bytes, offset))

    @rule(which=st.integers(0, 9), size_bytes=st.integers(0, 50))
    def truncate(self, which: int, size_bytes: int) -> None:
        self.on_fd(which, lambda fs, fd: fs.truncate(fd, size_bytes))

    @rule(which=st.integers(0, 9), size_bytes=st.integers(0, 9000))
    def preallocate(self, which: int, size_bytes: int) -> None:
        self.on_fd(which, lambda fs, fd: fs.preallocate(fd, size_bytes))

    @rule(which=st.integers(0, 9), data_only=st.booleans())
    def sync(self, which: int, data_only: bool) -> None:
        self.on_fd(which, lambda fs, fd: fs.fdatasync(fd) if data_only else fs.fsync(fd))

    @rule(which=st.integers(0, 9), size_bytes=st.integers(0, 50))
    def map(self, which: int, size_bytes: int) -> None:
        self.on_fd(which, lambda fs, fd: bytes(fs.map(fd, size_bytes)))

    @rule(which=st.integers(0, 9), name=NAMES, value=st.binary(max_size=9))
    def set_xattr(self, which: int, name: str, value: bytes) -> None:
        self.on_fd(which, lambda fs, fd: fs.set_xattr(fd, name, value))

    @rule(which=st.integers(0, 9), name=NAMES)
    def remove_xattr(self, which: int, name: str) -> None:
        self.on_fd(which, lambda fs, fd: fs.remove_xattr(fd, name))

    @rule(which=st.integers(0, 9), name=NAMES)
    def get_xattrs(self, which: int, name: str) -> None:
        self.on_fd(which, lambda fs, fd: (fs.get_xattr(fd, name), sorted(fs.list_xattrs(fd))))

    @rule(path=PATHS)
    def make_dirs(self, path: str) -> None:
        self.same(lambda fs: fs.make_dirs(self.at(path)))

    @rule(path=PATHS, new_path=PATHS)
    def rename(self, path: str, new_path: str) -> None:
        self.same(lambda fs: fs.rename(self.at(path), self.at(new_path)))

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.same(lambda fs: fs.unlink(self.at(path)))

    @rule(path=PATHS)
    def remove_dir(self, path: str) -> None:
        self.same(lambda fs: (fs.remove_dir if isinstance(fs, SimFileSystem) else os.rmdir)(self.at(path)))

    @rule(path=PATHS)
    def fsync_dir(self, path: str) -> None:
        self.same(lambda fs: fs.fsync_dir(self.at(path)))

    @rule(path=PATHS)
    def lock(self, path: str) -> None:
        fds = self.both(lambda fs: fs.lock(self.at(path)))
        if fds is not None:
            self.fds.append(fds)

    @invariant()
    def the_trees_are_the_same(self) -> None:
        for folder in ("", "d", "d/e"):
            self.same(lambda fs, folder=folder: sorted(fs.list_dir(self.at(folder))))  # type: ignore[misc]
        for path in ("a", "b", "d", "d/a", "a/x", "missing/x"):
            self.same(lambda fs, path=path: self.described(fs, self.at(path)))  # type: ignore[misc]
        for pair in self.fds:
            self.same(lambda fs, pair=pair: self.content(fs, pair[fs is self.sim]))  # type: ignore[misc]

    @staticmethod
    def described(fs: FileSystem, path: str) -> object:
        stat = fs.stat(path)
        return None if stat is None else stat.is_dir or stat.size_bytes

    @staticmethod
    def content(fs: FileSystem, fd: int) -> object:
        return fs.fstat(fd).size_bytes, fs.pread(fd, 1000, 0)


SameAsReal.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSameAsReal = SameAsReal.TestCase
