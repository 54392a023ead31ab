"""Ask before harm: for the orders that cannot be taken back, of stream-client and neve.

Invariants: such an order is given only after --yes, or after "yes" was typed at a terminal.
"""

from __future__ import annotations

import argparse
import sys

from neve.client.command.failures import USAGE, CommandFailed


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def confirm(question: str, args: argparse.Namespace) -> None:
    """Returns if the user wants it; CommandFailed otherwise."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} This needs --yes where nobody can be asked.", USAGE)
    print(f"{question} Type yes to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise CommandFailed("nothing was done")
