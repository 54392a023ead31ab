"""The way into every process of Neve: what has to be right before anything is imported, and after everything is done.

Invariants: descriptors 0 to 2 are open: what was closed (`>&-`) is /dev/null, or the first file that we open would take
            its place, and the loop would abort on it;
            Ctrl-C while modules are imported ends the process by the signal, without a word: nothing has begun;
            what was printed has left when the process ends, or the exit code says that it has not.
Note:       It imports nothing of Neve, on purpose.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

INTERRUPTED, PIPE_CLOSED = 130, 141  # as shells have them for SIGINT and SIGPIPE
OUTPUT_LOST = 1


def enter(program: str, module: str) -> int:
    """Run `main()` of that module; the exit code. `program` is what the command is called."""
    open_standard_descriptors()
    with _interrupts_end_the_process():
        main: Callable[[], int] = importlib.import_module(module).main
    try:
        code = _ended(main)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except OSError as error:  # of the parser, or of the flush: a command tells its own, which may be of a file
        drop_output()
        with contextlib.suppress(OSError):  # stderr may be as full: then the exit code has to do
            print(f"{program}: the output is lost: {error.strerror}", file=sys.stderr)
        return OUTPUT_LOST


def open_standard_descriptors() -> None:
    """Whichever of 0, 1 and 2 is closed becomes /dev/null, and Python's stream for it with it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, hence this one
            assert opened == number, (opened, number)
            os.set_inheritable(opened, True)  # as the standard descriptors are
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def drop_output() -> None:
    """Nobody reads stdout, or it is full: Python would complain once more when it flushes it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def _interrupts_end_the_process() -> Iterator[None]:
    """A KeyboardInterrupt in the middle of somebody's import may show up as anything, or not at all."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, for one: a shell's background job
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(main: Callable[[], int]) -> int:
    """The exit code also of argparse, after --help or wrong usage."""
    try:
        return main()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        return end.code or 0
