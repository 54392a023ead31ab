"""Helpers that the commands of `neve` share: connecting to the cluster and printing lists."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import uvloop

from neve.client.command import options
from neve.client.command.failures import DONE
from neve.client.command.tables import Cell, print_json, print_table
from neve.tools.admin_link import AdminLink

T = TypeVar("T")
Command = Callable[[AdminLink, argparse.Namespace], Coroutine[Any, Any, int]]


def add_command(
    commands: Any, name: str, command: Command, *, help: str, description: str = "", json_too: bool = True
) -> argparse.ArgumentParser:
    """Add a sub-command that calls the managers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        parents=[options.connection_options()],
        epilog="Exit code: 0 done, 1 the cluster said no or could not, 2 wrong usage, 130 interrupted.",
    )
    if json_too:
        parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    parser.set_defaults(run=lambda args: uvloop.run(_run(command, args)))
    return parser


async def _run(command: Command, args: argparse.Namespace) -> int:
    tls = options.tls_files(args)
    async with AdminLink(
        args.managers, cluster=args.cluster, token=args.token, tls=tls, timeout_s=args.timeout
    ) as link:
        return await command(link, args)


def show(
    found: Iterable[T],
    args: argparse.Namespace,
    *,
    columns: Sequence[str],
    row: Callable[[T], Sequence[Cell]],
    value: Callable[[T], object],
    nothing: str,
) -> int:
    """Print a list as a table or as JSON."""
    if args.json:
        print_json([value(each) for each in found])
    else:
        print_table(columns, [row(each) for each in found], nothing=nothing)
    return DONE
