"""neve etcd upgrade: moves the data folder of a local cluster's etcd to the next minor release.

etcd upgrades its data in place, when it first opens it, and there is no way back. So the new etcd is run on a copy. The
copy takes the folder's place only when that etcd serves with its own version.

Invariants: the folder is unchanged until the copy is upgraded, and is then kept beside the new one;
            no folder of a running etcd is upgraded: etcd's lock on the database is taken first.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neve.client.command import options
from neve.client.command.failures import DONE, CommandFailed
from neve.meta.etcd.binary import ENVIRONMENT_VARIABLE, EtcdBinary, found_etcds
from neve.meta.etcd.version import BUILT_VERSION, INSTALL_COMMAND, parse_version
from neve.tools.etcd import process as etcd_process
from neve.tools.etcd.folder import EtcdFolder, database_path, minor_of, read_folder, remember
from neve.tools.local.layout import HOST
from neve.tools.local.supervisor import dying_with_parent

UPGRADE_TIMEOUT_S = 120.0  # a bound; a local cluster's metadata takes a few seconds
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1
HTTP_TIMEOUT_S = 5.0
LINES_SHOWN, LINE_CHARACTERS = 5, 300


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "upgrade",
        help="move the data folder of a local cluster's etcd to the next minor release",
        description="Move the data folder of a local cluster's etcd to the next minor release, for example from 3.5 to "
        "3.6. The upgraded copy takes its place, and the old folder is kept beside it. Stop the cluster first.",
    )
    parser.add_argument(
        "--data",
        type=options.text_path,
        dest="folder",
        required=True,
        metavar="FOLDER",
        help="etcd's folder, such as .neve/etcd",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    folder: Path = args.folder.absolute()
    state = read_folder(folder)
    if not state.has_data:
        raise CommandFailed(f"there is no etcd data in {folder}: the folder of etcd itself is needed, as in .neve/etcd")
    binary = _target(state)
    with _locked(folder):
        kept = upgrade(state, binary)
    print(f"{folder} is now of etcd {binary.version}; what it was is kept in {kept}")
    return DONE


def upgrade(state: EtcdFolder, binary: EtcdBinary) -> Path:
    """Upgrade the folder and return the path of the old one."""
    folder = state.path
    copy = folder.with_name(f"{folder.name}.upgrading")
    shutil.rmtree(copy, ignore_errors=True)  # of an upgrade that was interrupted
    try:
        shutil.copytree(folder, copy)
        _open_once(copy, binary)
        os.sync()
        assert state.minor is not None
        kept = _free_name(folder, f"{state.minor[0]}.{state.minor[1]}")
        folder.rename(kept)
        copy.rename(folder)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    remember(folder, binary)
    return kept


def _target(state: EtcdFolder) -> EtcdBinary:
    if state.minor is None:
        raise CommandFailed(f"it cannot be found out which etcd made {state.path}, so nothing can upgrade it")
    following = (state.minor[0], state.minor[1] + 1)
    name = f"{following[0]}.{following[1]}"
    explicit = bool(os.environ.get(ENVIRONMENT_VARIABLE))
    found = [binary for binary in found_etcds() if minor_of(binary) == following]
    binary = next((binary for binary in found if binary.warning is None or explicit), None)
    if binary is not None:
        return binary
    start = (
        f"{state.path} was made by {state.made_by}; etcd is upgraded one minor release at a time, so it needs {name}"
    )
    if found:
        start += f"; {found[0].path} is not used, because {found[0].warning}"
    if BUILT_VERSION.startswith(f"{name}."):
        raise CommandFailed(f"{start}; `{INSTALL_COMMAND}` builds it")
    raise CommandFailed(f"{start}; {ENVIRONMENT_VARIABLE}=/path/to/etcd-{name} names one")


def _open_once(folder: Path, binary: EtcdBinary) -> None:
    """Run that etcd on the folder until it serves with its own cluster version, and stop it."""
    client_port, peer_port = _free_ports()
    words = etcd_process.arguments(data=str(folder), client_port=client_port, peer_port=peer_port)
    log = folder / "upgrade.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            dying_with_parent(str(binary.path), *words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=etcd_process.environment(list(os.environ.items())),
        )
        try:
            _wait_until_upgraded(process, f"http://{HOST}:{client_port}", minor_of(binary))
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        except (_Failed, subprocess.TimeoutExpired) as error:
            print("\n".join(_telling_lines(log.read_text(errors="replace"))), file=sys.stderr)
            why = str(error) if isinstance(error, _Failed) else "did not stop"
            detail = f"etcd {binary.version} {why}, the lines above are from its log"
            raise CommandFailed(f"the upgrade failed, and the folder is as it was: {detail}") from error
        finally:
            process.kill()
            process.wait()
    log.unlink()


def _telling_lines(log: str) -> list[str]:
    """The panics in etcd's log, or else its end."""
    lines = log.splitlines()
    panics = [line for line in lines if line.startswith("panic:") or '"level":"panic"' in line[:50]]
    return [line[:LINE_CHARACTERS] for line in (panics or lines)[-LINES_SHOWN:]]


class _Failed(Exception):
    """etcd did not serve; the message says what it did instead."""


def _wait_until_upgraded(process: subprocess.Popen[bytes], url: str, minor: tuple[int, int] | None) -> None:
    deadline_s = time.monotonic() + UPGRADE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise _Failed(f"ended with exit code {process.returncode}")
        with contextlib.suppress(urllib.error.URLError, OSError, ValueError, KeyError):  # it does not serve yet
            version = parse_version(str(_get(f"{url}/version")["etcdcluster"]))
            if version is not None and version[:2] == minor and _get(f"{url}/health")["health"] == "true":
                return
        time.sleep(POLL_S)
    raise _Failed(f"did not serve with its own version within {UPGRADE_TIMEOUT_S:g} s")


def _get(url: str) -> dict[str, Any]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    with direct.open(url, timeout=HTTP_TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind((HOST, 0))
        second.bind((HOST, 0))
        return first.getsockname()[1], second.getsockname()[1]


def _free_name(folder: Path, version: str) -> Path:
    names = itertools.chain([version], (f"{version}.{number}" for number in itertools.count(1)))
    return next(path for name in names if not (path := folder.with_name(f"{folder.name}-{name}")).exists())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock that a running etcd holds on its database."""
    with database_path(folder).open("rb+") as database:
        try:
            fcntl.flock(database, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(f"an etcd is running on {folder}: stop the cluster first") from error
        yield
