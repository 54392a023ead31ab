"""Real processes on the real file system that kill themselves (SIGKILL) at operation N, and others that start next.

Goal: what holds on the simulated disk holds on this machine's: no answered request is forgotten by a killed process.
Method: this module, run as a program, forks for each N a process that runs a scenario of test_crash.py and dies at its
N-th change of the disk, in the middle of it if it is a write; then one that starts the store and compares it with the
model, which the dying process kept in a file. A sample of N in the test suite; all of them by NEVE_CRASH_PROCESS_ALL=1.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from neve.extent_node.disk.file_system import Buffer, FileSystem, RealFileSystem
from neve.extent_node.store.storage import Storage
from tests.unit.extent_node.store import rig
from tests.unit.extent_node.store.model import Model
from tests.unit.extent_node.store.test_crash import CASES

T = TypeVar("T")

NAMES = ("append_journaled", "seal", "delete", "journal_ring")
SAMPLE = 12  # deaths of each scenario

CHANGES = {"pwrite", "truncate", "fdatasync", "fsync", "set_xattr", "remove_xattr", "rename", "unlink", "fsync_dir"}


class DeadlyFileSystem(RealFileSystem):
    """Counts changes, and kills the process at one of them; a write is cut in the middle first."""

    def __init__(self, step: int) -> None:
        self.steps = itertools.count(1)
        self.step = step
        self.last = 0
        self.mutex = threading.Lock()

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            self._count(name)
        return super().__getattribute__(name)

    def _count(self, name: str) -> None:
        with self.mutex:
            self.last = next(self.steps)
            if self.last == self.step and name != "pwrite":
                os.kill(os.getpid(), signal.SIGKILL)

    def pwrite_one(self, fd: int, buffer: Buffer, offset: int) -> int:  # type: ignore[override]  # static there
        return self.pwrite(fd, [buffer], offset)

    def pwrite(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        if self.last == self.step:
            data = b"".join(buffers)
            os.pwrite(fd, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwrite(fd, buffers, offset)


class LoggedModel(Model):
    """Keeps itself in a file, before and after each request, so that it outlives its process."""

    path = ""

    def save(self) -> None:
        aside = self.path + ".new"
        Path(aside).write_bytes(pickle.dumps(self))
        os.rename(aside, self.path)

    def logged(self, request: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def wrapped(*args: Any, **how: Any) -> T:
            if request.__name__ == "append":
                self.save()
                result = await request(*args, **how)
                self.save()
                return result
            task = asyncio.ensure_future(request(*args, **how))
            await asyncio.sleep(0)  # it has noted what it sends, and waits for its first answer
            self.save()
            result = await task
            self.save()
            return result

        return wrapped

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return self.logged(value) if name in ("create", "append", "fence", "raise_token", "seal", "delete") else value


class RealFiles:
    def __init__(self, root: str) -> None:
        self.root = root

    def content(self, path: str) -> bytes:
        return Path(self.root + path).read_bytes()


def process(root: str, disks: int, fs: FileSystem, work: Callable[[Storage], Coroutine[Any, Any, None]]) -> None:
    """One life of a store."""

    async def life() -> None:
        with ThreadPoolExecutor(4) as pool:
            config = rig.config_for(disks, root=root)
            store = Storage(config, fs, pool=pool, rng=random.SystemRandom(), wall_clock_ms=lambda: 1_700_000_000_000)
            await store.start()
            await work(store)
            await store.stop(clean=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(life())


def forked(life: Callable[[], None]) -> int:
    """The exit status of a process that does this: 0, 1 with a traceback, or negative for a signal."""
    gc.disable()  # in the child, too: what other tests have left may need threads that it has not (gRPC's, for one)
    child = os.fork()
    if child == 0:
        try:
            life()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the other process reads the status
            traceback.print_exc()
            os._exit(1)
    gc.enable()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def one_death(name: str, root: str, step: int) -> int:
    """Run the scenario until it dies at `step`, then recover and compare; the number of steps if it did not die."""
    case = CASES[name]
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(root + ".formatted", root)
    path = root + "/model"

    def run() -> None:
        model = LoggedModel()
        model.path = path
        model.save()
        fs = DeadlyFileSystem(step)
        process(root, case.disks, fs, lambda store: _scenario(case.scenario(store, model)))
        Path(root + "/steps").write_text(str(fs.last))

    def recover() -> None:
        model = pickle.loads(Path(path).read_bytes())
        plain = Model()
        plain.extents = model.extents

        async def check(store: Storage) -> None:
            await plain.check(store, RealFiles(root), "kill")
            await plain.finish(store)
            await plain.check(store, RealFiles(root), "kill")

        process(root, case.disks, RealFileSystem(), check)

    status = forked(run)
    if status == 0:
        return int(Path(root + "/steps").read_text())
    assert status == -signal.SIGKILL, f"{name} at step {step}: the dying process ended with {status}"
    assert forked(recover) == 0, f"{name}, killed at step {step}: see the traceback above"
    return 0


async def _scenario(work: Awaitable[None]) -> None:
    await work


def main(name: str, root: str, sample: int) -> None:
    logging.disable(logging.CRITICAL)
    case = CASES[name]
    formatted = root + ".formatted"
    os.makedirs(formatted)
    rig.format_all(RealFileSystem(), case.disks, segment_bytes=case.segment_bytes, root=formatted)
    for number in range(case.disks):
        for unused in range(rig.FOLDERS_KEPT, 256):  # as `rig.keep_few_folders` does
            os.rmdir(f"{formatted}/disk{number}/extents/{unused:02x}")
    steps = one_death(name, root, 0)
    assert steps > sample, steps
    wanted = range(1, steps + 1)
    chosen = wanted if sample == 0 else sorted(random.Random(name).sample(wanted, sample))
    for step in chosen:
        one_death(name, root, step)
    print(f"{name}: {len(chosen)} deaths in {steps} steps")


@pytest.mark.parametrize("name", NAMES)
def test_t27_processes_killed_on_the_real_file_system_forget_nothing(name: str, tmp_path: Path) -> None:
    sample = 0 if os.environ.get("NEVE_CRASH_PROCESS_ALL") else SAMPLE
    command = [
        sys.executable,
        "-m",
        "tests.unit.extent_node.store.test_crash_process",
        name,
        str(tmp_path / "root"),
        str(sample),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deaths" in done.stdout


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
