"""Data folders of several etcd releases, on real processes: Debian's 3.4, PyPI's 3.5.1, and the one that Neve builds.

Each test needs releases that a machine may not have, and is skipped there.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neve.meta.etcd import binary as etcd_binary
from neve.meta.etcd.binary import EtcdBinary
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import KeyRange
from neve.tools.etcd.folder import minor_of, read_folder, record_path
from tests.cluster.etcd import STARTS_MAX, dying_with_parent, free_ports
from tests.cluster.local_cluster import NEVE, TIMEOUT_S

pytestmark = pytest.mark.slow

KEYS = {b"/a/%d" % number: b"value %d" % number for number in range(200)}


@pytest.fixture(scope="module")
def etcds() -> dict[str, EtcdBinary]:
    """By minor release. NEVE_ETCD would hide the others, so it is not looked at."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv(etcd_binary.ENVIRONMENT_VARIABLE, raising=False)
        found: dict[str, EtcdBinary] = {}
        for binary in etcd_binary.found_etcds():
            major, minor = minor_of(binary) or (0, 0)
            found.setdefault(f"{major}.{minor}", binary)
        return found


def needed(etcds: dict[str, EtcdBinary], *minors: str) -> list[EtcdBinary]:
    for minor in minors:
        if minor not in etcds:
            pytest.skip(f"there is no etcd {minor} on this machine")
    return [etcds[minor] for minor in minors]


def environment(binary: EtcdBinary | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != etcd_binary.ENVIRONMENT_VARIABLE}
    return {**inherited, etcd_binary.ENVIRONMENT_VARIABLE: str(binary.path)} if binary else inherited


def neve_etcd(*words: str | Path, binary: EtcdBinary | None) -> subprocess.CompletedProcess[str]:
    command = dying_with_parent(*NEVE, "etcd", *words)
    return subprocess.run(
        command, env=environment(binary), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@contextmanager
def serving(folder: Path, binary: EtcdBinary | None) -> Iterator[str]:
    """`neve etcd` on that folder, killed at the end; where it serves. Without `binary` it chooses by itself."""
    for start in range(STARTS_MAX):
        client, peer = free_ports(2)
        process = _started(folder, binary, client, peer)
        try:
            if _served(process, client, last=start == STARTS_MAX - 1, log=_log(folder)):
                yield f"127.0.0.1:{client}"
                return
        finally:
            process.kill()
            process.wait()


def _log(folder: Path) -> Path:
    return folder.parent / "etcd.log"


def _started(folder: Path, binary: EtcdBinary | None, client: int, peer: int) -> subprocess.Popen[bytes]:
    words: list[str | Path] = [*NEVE, "etcd", "--data", folder, "--client-port", str(client), "--peer-port", str(peer)]
    with _log(folder).open("wb") as output:
        return subprocess.Popen(
            dying_with_parent(*words), env=environment(binary), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def _served(process: subprocess.Popen[bytes], port: int, *, last: bool, log: Path) -> bool:
    """Wait until it serves. False if it ended because somebody took its port, and this was not the last attempt."""
    while not _serves(port):
        if process.poll() is not None:
            text = log.read_text(errors="replace")
            assert "address already in use" in text, text[-4000:]
            assert not last, text[-4000:]
            return False
        time.sleep(0.05)
    return True


def _serves(port: int) -> bool:
    """Healthy, and its own cluster version is decided."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        answers = []
        for path in ("/health", "/version"):
            connection.request("GET", path)
            answers.append(json.loads(connection.getresponse().read()))
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    server, cluster = answers[1]["etcdserver"], answers[1]["etcdcluster"]
    return bool(answers[0]["health"] == "true" and server.split(".")[:2] == cluster.split(".")[:2])


async def write(endpoint: str) -> None:
    async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
        for key, value in KEYS.items():
            await store.put(key, value)


async def written(endpoint: str) -> dict[bytes, bytes]:
    async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
        return {kv.key: kv.value for kv in (await store.range_all(KeyRange.prefix(b"/a/"))).kvs}


@pytest.mark.parametrize("minor", ["3.4", "3.5", "3.6"])
async def test_a_folder_knows_its_etcd_and_is_opened_with_it_also_without_the_file_beside_it(
    etcds: dict[str, EtcdBinary], tmp_path: Path, minor: str
) -> None:
    """Folders that were made before there was such a file have none. The program is killed, not stopped."""
    (binary,) = needed(etcds, minor)
    folder = tmp_path / "etcd"
    with serving(folder, binary) as endpoint:
        await write(endpoint)
    assert read_folder(folder).made_by == f"etcd {binary.version}"
    record_path(folder).unlink()
    with serving(folder, None) as endpoint:
        assert await written(endpoint) == KEYS
    assert read_folder(folder).made_by == f"etcd {binary.version}"


@pytest.mark.parametrize(("older", "newer"), [("3.4", "3.5"), ("3.4", "3.6"), ("3.5", "3.6")])
async def test_neither_an_older_nor_a_newer_etcd_opens_a_folder_and_its_own_still_does(
    etcds: dict[str, EtcdBinary], tmp_path: Path, older: str, newer: str
) -> None:
    first, second = needed(etcds, older, newer)
    for own, other, says in ((second, first, "an older etcd does not open"), (first, second, "neve etcd upgrade")):
        folder = tmp_path / own.version / "etcd"
        folder.parent.mkdir()
        with serving(folder, own) as endpoint:
            await write(endpoint)
        refused = neve_etcd("--data", folder, binary=other)
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert f"was made by etcd {own.version}" in refused.stderr
        assert says in refused.stderr
        with serving(folder, None) as endpoint:
            assert await written(endpoint) == KEYS


async def test_an_upgrade_keeps_all_keys_and_the_old_folder(etcds: dict[str, EtcdBinary], tmp_path: Path) -> None:
    old, new = needed(etcds, "3.5", "3.6")
    folder = tmp_path / "etcd"
    with serving(folder, old) as endpoint:
        await write(endpoint)
        running = neve_etcd("upgrade", "--data", folder, binary=new)
        assert running.returncode == 1
        assert "stop the cluster first" in running.stderr
    upgraded = neve_etcd("upgrade", "--data", folder, binary=new)
    assert upgraded.returncode == 0, upgraded.stderr
    assert f"{folder} is now of etcd {new.version}" in upgraded.stdout
    assert read_folder(folder).made_by == f"etcd {new.version}"
    for path in (folder, tmp_path / "etcd-3.5"):
        with serving(path, None) as endpoint:
            assert await written(endpoint) == KEYS
    assert not (tmp_path / "etcd.upgrading").exists()


async def test_an_upgrade_that_fails_leaves_the_folder_as_it_was(etcds: dict[str, EtcdBinary], tmp_path: Path) -> None:
    """3.6 does not read the log of a folder that began with 3.4 and has had no snapshot since: it panics."""
    first, second, third = needed(etcds, "3.4", "3.5", "3.6")
    folder = tmp_path / "etcd"
    with serving(folder, first) as endpoint:
        await write(endpoint)
    assert neve_etcd("upgrade", "--data", folder, binary=second).returncode == 0
    failed = neve_etcd("upgrade", "--data", folder, binary=third)
    assert failed.returncode == 1
    assert "the upgrade failed, and the folder is as it was" in failed.stderr
    assert "panic" in failed.stderr
    with serving(folder, None) as endpoint:
        assert await written(endpoint) == KEYS
    assert not (tmp_path / "etcd.upgrading").exists()
