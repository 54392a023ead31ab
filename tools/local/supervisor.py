"""The supervisor of a Procfile's processes: prefixes their output, reports which of them end, stops them in order.

Invariants: a process that ends by itself is reported, and the others go on: a cluster survives the loss of a process,
            and to see that is what a local one is for;
            no process outlives the supervisor, not even if that is killed (PR_SET_PDEATHSIG);
            a terminal's Ctrl-C reaches the supervisor alone, which stops the processes in their order;
            a process that does not stop in time is killed, and that is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from neve.client.command.failures import CommandFailed
from neve.tools.local.layout import kind_of

STOP_TIMEOUT_S = 20.0  # a node syncs its data; etcd stops at once
LINE_BYTES_MAX = 1 << 20

# Runs first in each child, so that the kernel kills it with its parent. No preexec_fn: it is unsafe with threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(*command: str) -> list[str]:
    """The command line that runs `command` so that the kernel kills it when this process ends."""
    return [sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def parse_procfile(text: str) -> dict[str, list[str]]:
    """The words of each command by its name, parsed by honcho."""
    parsed = _honcho("environ").parse_procfile(text)
    return {name: shlex.split(command) for name, command in parsed.processes.items()}


def _honcho(module: str) -> Any:
    try:
        return __import__(f"honcho.{module}", fromlist=["*"])
    except ImportError as error:
        raise CommandFailed("`neve up` needs honcho: pip install 'neve[local]'") from error


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended by itself."""

    name: str
    pid: int
    code: int  # negative: the signal that ended it

    def __str__(self) -> str:
        how = f"by {signal.Signals(-self.code).name}" if self.code < 0 else f"with exit code {self.code}"
        return f"{self.name} (pid {self.pid}) ended {how}"


class Child:
    """One process and its output."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.command = command
        self.process: asyncio.subprocess.Process | None = None
        self.watching: asyncio.Task[None] | None = None
        self.is_stopping = False

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None


class Supervisor:
    """Calls `on_ended` for each process that ends by itself. With `log_folder` output goes to files, not to `out`."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        *,
        out: TextIO,
        log_folder: Path | None = None,
        on_ended: Callable[[Ended], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        printer = _honcho("printer")
        colours = _honcho("colour").get_colours()
        self.children = {name: Child(name, command) for name, command in commands.items()}
        self._colours = {name: next(colours) for name in commands}
        self._printer = printer.Printer(out, width=max(map(len, [*commands, "neve"])))
        self._message = printer.Message
        self._log_folder = log_folder
        self._on_ended = on_ended
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}

    async def start(self, name: str) -> int:
        """Start one process and return its pid."""
        child = self.children[name]
        assert not child.runs, name
        child.is_stopping = False
        child.process = await asyncio.create_subprocess_exec(
            *dying_with_parent(*child.command),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,  # so that Ctrl-C on the terminal does not reach it
            limit=LINE_BYTES_MAX,
            env=self._environment,
        )
        child.watching = asyncio.create_task(self._watch(child), name=f"watch {name}")
        return child.process.pid

    async def _watch(self, child: Child) -> None:
        process = child.process
        assert process is not None
        assert process.stdout is not None
        with contextlib.ExitStack() as stack:
            log = None
            if self._log_folder is not None:
                log = stack.enter_context((self._log_folder / f"{child.name}.log").open("ab", buffering=0))
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # longer than the limit: that much of it is dropped
                    continue
                if not line:
                    break
                if log is not None:
                    log.write(line)
                else:
                    self._print(child.name, line)
        code = await process.wait()
        if not child.is_stopping:
            ended = Ended(child.name, process.pid, code)
            self.say(f"{ended}; the others go on")
            if self._on_ended is not None:
                self._on_ended(ended)

    def say(self, text: str) -> None:
        """Print a line of the supervisor itself."""
        self._print("neve", text.encode())

    def _print(self, name: str, line: bytes) -> None:
        colour = self._colours.get(name)
        now = datetime.datetime.now()
        self._printer.write(self._message(type="line", data=line, time=now, name=name, colour=colour))

    async def stop(self, kinds: Sequence[str]) -> bool:
        """Stop all running processes, kind after kind. Returns True if each of them ended by itself when asked to."""
        all_clean = True
        for kind in kinds:
            group = [child for child in self.children.values() if kind_of(child.name) == kind]
            clean = await asyncio.gather(*(self._stop_one(child) for child in group))
            all_clean = all_clean and all(clean)
        strangers = [child for child in self.children.values() if kind_of(child.name) not in kinds]
        return all(await asyncio.gather(*(self._stop_one(child) for child in strangers))) and all_clean

    async def _stop_one(self, child: Child) -> bool:
        process = child.process
        if process is None or child.watching is None:
            return True
        if process.returncode is not None:
            await child.watching
            return True  # it had ended before, which was reported
        child.is_stopping = True
        in_time = True
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)  # a paused process could not stop
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            in_time = False
            self.say(f"{child.name} (pid {process.pid}) did not stop within {STOP_TIMEOUT_S:g} s: it is killed")
            process.kill()
        await child.watching
        return in_time and process.returncode in (0, -signal.SIGTERM)
