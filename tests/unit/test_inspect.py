"""neve inspect: every kind of damage is found and told, and nothing is changed by looking."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neve.extent_node.disk import attributes, index
from neve.extent_node.disk.attributes import Attributes, Doubt, Meta, Seal
from neve.extent_node.disk.block_scan import Scanner
from neve.extent_node.disk.disk import format_disk
from neve.extent_node.disk.file_system import FileSystem, RealFileSystem
from neve.proto import blocks
from neve.rpc.entry import PIPE_CLOSED
from neve.tools import inspect, main
from tests.sim.disks.disk import SimFileSystem

DISK = uuid.UUID(int=0xD15C)
NODE_ID = 3
PAYLOADS = [b"first", b"second block", b"", b"the fourth and last"]


def new_disk(fs: FileSystem, folder: str) -> None:
    format_disk(fs, folder, cluster="test", node_id=NODE_ID, disk_uuid=DISK, journal_uuid=str(uuid.UUID(int=0x10)))


def new_extent(
    fs: FileSystem,
    folder: str,
    extent_id: int,
    *,
    sealed: bool = True,
    with_index: bool = True,
    payloads: list[bytes] = PAYLOADS,
    **changes: Any,
) -> str:
    """A good extent file on a disk; its path."""
    content = b"".join(blocks.encode_blocks(payloads).buffers)
    meta = Meta(
        extent_id=extent_id,
        eversion=5,
        incarnation=0xABC,
        stream_id=7,
        created_ms=1_700_000_000_000,
        extent_bytes_max=1 << 20,
        node_id=changes.pop("node_id", NODE_ID),
        disk_uuid=changes.pop("disk_uuid", str(DISK)),
    )
    scanner = Scanner()
    scanner.feed(content)
    scan = scanner.finish()
    seal = Seal(length=len(content), eversion=6, digest=scan.digest)
    sub_folder = f"{folder}/extents/{extent_id & 0xFF:02x}"
    path = f"{sub_folder}/{extent_id:016x}.ext"
    fd = fs.open(path, create=True)
    fs.pwrite(fd, [content], 0)
    state = Attributes(meta, token=10, fenced=sealed, seal=seal if sealed else None, **changes)
    for name, value in attributes.encode_all(state).items():
        fs.set_xattr(fd, name, value)
    fs.close(fd)
    if sealed and with_index:
        made = index.from_scan(extent_id, seal, scan)
        index.write(fs, made, path=path.replace(".ext", ".idx"), temporary_path=f"{folder}/tmp/x", folder=sub_folder)
    return path


class Result:
    def __init__(self, fs: FileSystem, path: str, *, blocks: bool = False) -> None:
        self.table, self.errors, document = io.StringIO(), io.StringIO(), io.StringIO()
        self.code = inspect.inspect(fs, path, blocks=blocks, as_json=False, out=self.table, err=self.errors)
        code = inspect.inspect(fs, path, blocks=blocks, as_json=True, out=document, err=io.StringIO())
        assert code == self.code  # both ways say the same
        self.json: Any = json.loads(document.getvalue()) if document.getvalue() else None
        if self.json is not None and not (self.json.get("disk") or {}).get("unreadable"):
            assert self.json["good"] == (code == 0)

    @property
    def text(self) -> str:
        return self.table.getvalue()

    @property
    def extent(self) -> Any:
        (only,) = self.json["extents"]
        return only


@pytest.fixture
def fs() -> SimFileSystem:
    made = SimFileSystem(random.Random(1))
    new_disk(made, "/disk")
    return made


# --- what is good --------------------------------------------------------------------------------------------------


def test_a_good_disk_is_good(fs: SimFileSystem) -> None:
    for extent_id in (0x1FF, 0x200, 0x3FF):
        new_extent(fs, "/disk", extent_id)
    new_extent(fs, "/disk", 0x400, sealed=False, unsynced=True)
    new_extent(fs, "/disk", 0x401, payloads=[])
    result = Result(fs, "/disk")
    assert result.code == 0
    assert "5 extents: 5 good, 0 bad, 0 with warnings" in result.text
    assert [e["extent_id"] for e in result.json["extents"]] == [0x200, 0x400, 0x401, 0x1FF, 0x3FF]
    assert result.json["disk"]["label"]["uuid"] == str(DISK)
    assert result.json["disk"]["problems"] == result.json["disk"]["warnings"] == []


def test_a_sealed_extent_tells_all_it_knows(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    result = Result(fs, path)
    length = sum(8 + len(payload) for payload in PAYLOADS)
    assert result.code == 0
    assert result.text.splitlines()[1].split() == [
        *("00000000000001ff", "sealed", str(length), str(length), "4", "6", "10", "good", "good"),
    ]
    assert result.extent == {
        "path": path,
        "good": True,
        "state": "sealed",
        "file_bytes": length,
        "valid_length": length,
        "blocks": 4,
        "index": "good",
        "problems": [],
        "warnings": [],
        "extent_id": 0x1FF,
        "eversion": 5,
        "incarnation": "0000000000000abc",
        "stream_id": 7,
        "created_ms": 1_700_000_000_000,
        "extent_bytes_max": 1 << 20,
        "node_id": NODE_ID,
        "disk_uuid": str(DISK),
        "token": 10,
        "fenced": True,
        "unsynced": False,
        "doubtful": None,
        "seal": {"length": length, "eversion": 6, "digest": blocks.extent_digest([fs.content(path)]).hex()},
    }


def test_blocks_are_listed_on_request(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    result = Result(fs, path, blocks=True)
    offsets = [0, 13, 33, 41]
    assert [line.split() for line in result.text.splitlines()[2:]] == [
        [str(offset), str(len(payload)), "FULL"] for offset, payload in zip(offsets, PAYLOADS, strict=True)
    ]
    assert result.extent["block_list"] == [
        {"offset": offset, "size_bytes": len(payload), "type": "FULL"}
        for offset, payload in zip(offsets, PAYLOADS, strict=True)
    ]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "open"),
        ({"unsynced": True}, "open+unsynced"),
        ({"doubt": Doubt.POWER_CUT, "unsynced": True}, "open+doubtful+unsynced"),
    ],
)
def test_the_state_of_an_open_replica_is_shown(fs: SimFileSystem, changes: dict[str, Any], state: str) -> None:
    result = Result(fs, new_extent(fs, "/disk", 1, sealed=False, **changes))
    assert (result.code, result.extent["state"]) == (0, state)
    assert bool(result.extent["warnings"]) == ("doubtful" in state)


# --- what is bad ---------------------------------------------------------------------------------------------------


def bad(fs: SimFileSystem, path: str, words: str) -> None:
    """The extent is bad for that reason, by itself and as one of its disk."""
    alone = Result(fs, path)
    assert alone.code == 1
    assert words in " ".join(alone.extent["problems"]), alone.extent
    assert "BAD: " in alone.text
    new_extent(fs, "/disk", 0xBEEF)
    whole = Result(fs, "/disk")
    assert whole.code == 1
    assert "2 extents: 1 good, 1 bad" in whole.text


def rewrite(fs: SimFileSystem, path: str, change: Callable[[int], object]) -> None:
    fd = fs.open(path)
    change(fd)
    fs.close(fd)


@pytest.mark.parametrize("byte", [0, 5, 7, 10, 13, 33, 40, 67])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_flipped_bit_in_any_region_is_bad(fs: SimFileSystem, byte: int, sealed: bool) -> None:
    path = new_extent(fs, "/disk", 0x1FF, sealed=sealed)
    fs.flip(path, byte, 1)
    bad(fs, path, "block at offset")


@pytest.mark.parametrize("name", attributes.ALL)
def test_a_broken_attribute_is_bad_and_named(fs: SimFileSystem, name: str) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    rewrite(fs, path, lambda fd: fs.set_xattr(fd, name, b"\1broken"))
    bad(fs, path, f"attribute {name}: ")
    assert Result(fs, path).extent["state"] == "absent"


def test_a_file_without_attributes_is_absent_and_bad(fs: SimFileSystem) -> None:
    fs.close(fs.open("/disk/extents/ff/00000000000001ff.ext", create=True))
    bad(fs, "/disk/extents/ff/00000000000001ff.ext", "user.neve.meta: missing")


def test_missing_sealed_bytes_are_bad(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    size_bytes = len(fs.content(path))
    rewrite(fs, path, lambda fd: fs.truncate(fd, 41))  # at a block's boundary: only the seal tells
    bad(fs, path, f"41 of {size_bytes} sealed bytes are here")


def test_whole_blocks_with_another_digest_are_bad(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    other = b"".join(blocks.encode_blocks([payload.upper() for payload in PAYLOADS]).buffers)
    rewrite(fs, path, lambda fd: fs.pwrite(fd, [other], 0))
    bad(fs, path, "the digest is")


def test_a_file_from_another_disk_node_extent_or_folder_is_bad(fs: SimFileSystem) -> None:
    """T32."""
    path = new_extent(fs, "/disk", 0x1FF, disk_uuid=str(uuid.UUID(int=1)))
    bad(fs, path, f"made for disk {uuid.UUID(int=1)}, and lies on disk {DISK}")
    path = new_extent(fs, "/disk", 0x1FF, node_id=99)
    bad(fs, path, "made for node 99, and lies on node 3")
    path = new_extent(fs, "/disk", 0x1FF)
    fs.rename(path, "/disk/extents/ff/00000000000002ff.ext")
    bad(fs, "/disk/extents/ff/00000000000002ff.ext", "it is extent 00000000000001ff by its attributes")
    fs.rename("/disk/extents/ff/00000000000002ff.ext", "/disk/extents/00/00000000000001ff.ext")
    bad(fs, "/disk/extents/00/00000000000001ff.ext", "belongs in the folder ff")


def test_a_disk_that_cannot_read_one_extent_still_shows_the_others(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    fs.fail(errno.EIO, match=lambda operation, at: operation == "pread" and at == path, times=None)
    bad(fs, path, "it cannot be read: Input/output error")


def test_an_index_that_lies_with_right_checksums_is_bad(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    content = fs.content(path)
    seal = Seal(len(content), 6, blocks.extent_digest([content]))
    scanner = Scanner()
    scanner.feed(blocks.encode_block(bytes(len(content) - 8)))  # one block of the same length
    lie = index.from_scan(0x1FF, seal, scanner.finish())
    index.write(fs, lie, path=path.replace(".ext", ".idx"), temporary_path="/disk/tmp/x", folder="/disk/extents/ff")
    bad(fs, path, "the index has right checksums")


@pytest.mark.parametrize("damage", ["missing", "broken", "folder"])
def test_a_damaged_disk_is_bad_though_its_extents_are_good(fs: SimFileSystem, damage: str) -> None:
    new_extent(fs, "/disk", 0x1FF)
    if damage == "missing":
        fs.unlink("/disk/disk.json")
    elif damage == "broken":
        fs.flip("/disk/disk.json", 20, 0)
    else:
        fs.remove_dir("/disk/tombstones")
    result = Result(fs, "/disk")
    assert result.code == 1
    assert "1 extents: 1 good, 0 bad" in result.text
    assert len(result.json["disk"]["problems"]) == 1


# --- what only deserves a warning ----------------------------------------------------------------------------------


def warned(fs: SimFileSystem, path: str, words: str) -> None:
    result = Result(fs, path)
    assert result.code == 0
    assert words in " ".join(result.extent["warnings"])
    assert "warning: " in result.text


def test_a_torn_last_block_of_an_open_replica_is_a_warning_and_of_a_sealed_one_bad(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 1, sealed=False)
    rewrite(fs, path, lambda fd: fs.truncate(fd, 50))
    warned(fs, path, "block at offset 41: only 9 of its 27 bytes exist: a torn write")
    path = new_extent(fs, "/disk", 2)
    rewrite(fs, path, lambda fd: fs.truncate(fd, 50))
    assert Result(fs, path).code == 1


def test_bytes_beyond_a_seal_are_a_warning(fs: SimFileSystem) -> None:
    """What a crash between a seal and its cut leaves."""
    path = new_extent(fs, "/disk", 0x1FF)
    rewrite(fs, path, lambda fd: fs.pwrite(fd, [b"x"], len(fs.content(path))))
    warned(fs, path, "1 bytes lie beyond the seal")


def test_an_index_that_a_node_would_rebuild_is_a_warning(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 1, with_index=False)
    warned(fs, path, "the index is missing")
    path = new_extent(fs, "/disk", 2)
    fs.flip(path.replace(".ext", ".idx"), 100, 0)
    warned(fs, path, "the index is damaged")
    path = new_extent(fs, "/disk", 3)
    rewrite(fs, path, lambda fd: fs.remove_xattr(fd, attributes.SEAL))
    warned(fs, path, "though it is not sealed")


def test_strangers_left_overs_and_quarantine_are_warnings_of_the_disk(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    for stranger in (
        "extents/stray",
        "extents/00/note.txt",
        "extents/00/0000000000000100.idx",
        "tmp/left",
        "quarantine/q",
    ):
        fs.close(fs.open(f"/disk/{stranger}", create=True))
    result = Result(fs, "/disk")
    assert result.code == 0
    assert len(result.json["disk"]["warnings"]) == 5
    assert result.json["disk"]["counts"] == {"tmp": 1, "trash": 0, "quarantine": 1, "tombstones": 0}
    assert [e["path"] for e in result.json["extents"]] == [path]


# --- what cannot be looked at --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/nothing", "/folder", "/disk/disk.json/x"])
def test_what_is_no_extent_and_no_disk_is_one_sentence(fs: SimFileSystem, path: str) -> None:
    fs.make_dirs("/folder")
    result = Result(fs, path)
    assert result.code == 2
    assert result.json is None
    message = result.errors.getvalue()
    assert message.startswith(f"neve inspect: {path}")
    assert message.count("\n") == 1


def test_an_extent_that_may_not_be_read_ends_with_code_2_and_the_others_are_shown(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    new_extent(fs, "/disk", 0x2FF)
    fs.fail(errno.EACCES, match=lambda operation, at: operation == "open" and at == path, times=None)
    assert Result(fs, path).code == 2
    result = Result(fs, "/disk")
    assert result.code == 2
    assert "1 extents: 1 good" in result.text
    assert "not all of the disk could be looked at" in result.errors.getvalue()
    assert len(result.json["disk"]["unreadable"]) == 1


def test_a_folder_that_may_not_be_read_is_told_and_the_others_are_shown(fs: SimFileSystem) -> None:
    new_extent(fs, "/disk", 0x1FF)
    fs.fail(errno.EACCES, match=lambda operation, at: at == "/disk/extents/00" and operation == "list_dir", times=None)
    result = Result(fs, "/disk")
    assert result.code == 2
    assert result.json["disk"]["unreadable"] == ["/disk/extents/00 cannot be read: Permission denied"]
    assert len(result.json["extents"]) == 1


# --- the command ---------------------------------------------------------------------------------------------------


def test_looking_changes_nothing(fs: SimFileSystem) -> None:
    path = new_extent(fs, "/disk", 0x1FF)
    fs.flip(path, 3, 3)
    new_extent(fs, "/disk", 0x200, sealed=False)
    steps = fs.steps
    Result(fs, "/disk", blocks=True)
    Result(fs, path)
    assert fs.steps == steps


def test_on_the_machines_file_system_with_a_node_holding_the_lock(tmp_path: Path) -> None:
    real, folder = RealFileSystem(), str(tmp_path / "disk")
    new_disk(real, folder)
    new_extent(real, folder, 0x1FF)
    assert Result(real, folder).json["disk"]["locked"] is False
    lock = real.lock(f"{folder}/lock")
    result = Result(real, folder)
    assert result.code == 0
    assert result.json["disk"]["locked"] is True
    assert "a node uses this disk now" in result.text
    real.close(lock)


def neve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neve.tools.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_from_outside(tmp_path: Path) -> None:
    real, folder = RealFileSystem(), str(tmp_path / "disk")
    new_disk(real, folder)
    path = new_extent(real, folder, 0x1FF)
    good = neve("inspect", folder, "--json")
    assert (good.returncode, good.stderr, json.loads(good.stdout)["good"]) == (0, "", True)
    with open(path, "r+b") as file:
        file.seek(20)
        file.write(b"X")
    found = neve("inspect", path, "--blocks")
    assert found.returncode == 1
    assert "BAD: block at offset 13" in found.stdout
    for arguments in ([], ["inspect"], ["inspect", "--what"], ["frobnicate"]):
        wrong = neve(*arguments)
        assert wrong.returncode == 2
        assert "usage: neve" in wrong.stderr
    missing = neve("inspect", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "Traceback" not in missing.stderr


def test_a_reader_that_goes_away_is_no_error_message(tmp_path: Path) -> None:
    real, folder = RealFileSystem(), str(tmp_path / "disk")
    new_disk(real, folder)
    new_extent(real, folder, 0x1FF, payloads=[b""] * 20_000)
    command = f"{sys.executable} -m neve.tools.main inspect {folder} --blocks | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.startswith("disk ")
    assert result.returncode == PIPE_CLOSED  # neither good nor bad: the rest was not looked at


def test_main_takes_arguments_and_gives_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["inspect", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_progress_and_clears_it(fs: SimFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr(inspect, "PROGRESS_EVERY_S", 0.0)
    new_extent(fs, "/disk", 0x1FF)
    new_extent(fs, "/disk", 0x2FF)
    fs.close(fs.open("/disk/extents/00/stranger", create=True))
    out, err = io.StringIO(), Terminal()
    assert inspect.inspect(fs, "/disk", blocks=False, as_json=False, out=out, err=err) == 0
    assert "100%" in err.getvalue()
    assert err.getvalue().endswith("\r\033[K")
    assert out.getvalue().count("stranger") == 1
    assert os.linesep not in err.getvalue()
