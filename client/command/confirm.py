"""Confirmation of destructive operations, for stream-client and neve.

Invariants: a destructive operation runs only with --yes, or after "yes" was typed at a terminal;
            Ctrl-C at the question ends the command, whatever is typed after it;
            a stream of the key-value store is changed only with --force.
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
    parser.add_argument("--force", action="store_true", help="allow streams of the key-value store")


def refuse_partition(stream_id: int, labels: Mapping[str, str], args: argparse.Namespace) -> None:
    """Raise CommandFailed if the stream belongs to a partition and --force is not given."""
    if labels.get(KIND_LABEL) == PARTITION_KIND and not args.force:
        raise CommandFailed(
            f"stream {stream_id} belongs to a partition of the key-value store, and this would destroy its range of "
            "keys; nothing was done; --force does it all the same",
            USAGE,
        )


def confirm(question: str, args: argparse.Namespace) -> None:
    """Return if the user confirms, else raise CommandFailed. Called in a task, and blocks its loop too."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} Without a terminal, this needs --yes.", USAGE)
    with _interrupts_raise():
        print(f"{question} Type yes to continue: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() != "yes":
        raise CommandFailed("nothing was changed")


@contextlib.contextmanager
def _interrupts_raise() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt.

    The loop's own handler only cancels the task. A task that waits for the keyboard does not notice that, and would
    read on and run the operation.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
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
