"""The entry point of every Neve process: the steps before all imports, and those after the end of `main`.

Invariants: descriptors 0 to 2 are open. A closed one (`>&-`) becomes /dev/null. Otherwise the first file that the
process
            opens would get its number, and the event loop would abort;
            Ctrl-C during the imports ends the process by the signal and without output, because nothing has begun;
            when the process ends, its output has been written, or the exit code says that it has not.
Note:       This module imports nothing of Neve, on purpose.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

INTERRUPTED, PIPE_CLOSED = 130, 141  # the shells' exit codes for SIGINT and SIGPIPE
OUTPUT_LOST = 1


def enter(program: str, module: str) -> int:
    """Run `main()` of that module and return the exit code. `program` is the name of the command."""
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
    except OSError as error:  # from the parser or the flush: a command reports its own errors
        drop_output()
        with contextlib.suppress(OSError):  # if stderr is full too, the exit code must do
            print(f"{program}: the output is lost: {error.strerror}", file=sys.stderr)
        return OUTPUT_LOST


def open_standard_descriptors() -> None:
    """Open /dev/null for each of 0, 1 and 2 that is closed, and Python's stream for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            assert opened == number, (opened, number)
            os.set_inheritable(opened, True)  # like the standard descriptors
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, "r", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def drop_output() -> None:
    """Discard stdout, which is closed or full. Otherwise Python would report the error again when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextlib.contextmanager
def _interrupts_end_the_process() -> Iterator[None]:
    """Let SIGINT end the process. A KeyboardInterrupt during an import may surface as any error, or not at all."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # for example ignored, in a shell's background job
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(main: Callable[[], int]) -> int:
    """The exit code of `main`, including argparse's after --help or wrong usage."""
    try:
        return main()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        return end.code or 0
