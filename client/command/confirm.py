"""Ask before harm: for the orders that cannot be taken back, of stream-client and neve.

Invariants: such an order is given only after --yes, or after "yes" was typed at a terminal;
            Ctrl-C at the question ends the command: whatever is typed after it, nothing is done;
            a stream of the key-value store is harmed only after --force.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping

from neve.client.command.failures import USAGE, CommandFailed

KIND_LABEL, PARTITION_KIND = "neve.kind", "partition"  # as the partition manager labels its streams


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="also a stream of the key-value store")


def refuse_partition(stream_id: int, labels: Mapping[str, str], args: argparse.Namespace) -> None:
    """CommandFailed if the stream is one of a partition, and --force is not given."""
    if labels.get(KIND_LABEL) == PARTITION_KIND and not args.force:
        raise CommandFailed(
            f"stream {stream_id} belongs to a partition of the key-value store, and this would destroy its range of "
            "keys; nothing was done; --force does it all the same",
            USAGE,
        )


def confirm(question: str, args: argparse.Namespace) -> None:
    """Returns if the user wants it; CommandFailed otherwise. To be called in a task; its loop waits, too."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} This needs --yes where nobody can be asked.", USAGE)
    with _interrupts_raise():
        print(f"{question} Type yes to go on: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() != "yes":
        raise CommandFailed("nothing was done")


@contextlib.contextmanager
def _interrupts_raise() -> Iterator[None]:
    """The loop's own handler only cancels the task, which a task that waits for a keyboard does not notice: it would
    go on to read, and begin what it was told to do."""
    if threading.current_thread() is not threading.main_thread():  # no signal comes here
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # Ctrl-C came just before
            raise KeyboardInterrupt
        yield
    finally:
        signal.signal(signal.SIGINT, before)
