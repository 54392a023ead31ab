"""Runs a command of stream-client with a client made from the command line, on uvloop, and closes the client."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from neve.client.command import options
from neve.client.streams.client import Client
from neve.client.streams.options import DEFAULT_OPTIONS, ClientOptions

Command = Callable[[Client, argparse.Namespace], Coroutine[Any, Any, int]]


def connect(args: argparse.Namespace) -> Client:
    """Make the client. `--timeout` bounds one request; background work of writers and readers has its own limits."""
    client_options = ClientOptions(
        call_timeout_s=args.timeout,
        attempt_timeout_s=min(args.timeout, DEFAULT_OPTIONS.attempt_timeout_s),
        lock_timeout_s=args.timeout,
        cache_bytes_max=getattr(args, "cache_bytes_max", DEFAULT_OPTIONS.cache_bytes_max),
    )
    return Client(
        args.managers,
        cluster=args.cluster,
        token=args.token,
        tls=options.tls_files(args),
        etcd=options.etcd_access(args),
        options=client_options,
    )


def add_command(
    commands: Any, name: str, command: Command, *, help: str, description: str = "", json_too: bool = True
) -> argparse.ArgumentParser:
    """Add a sub-command that needs a cluster."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        parents=[options.connection_options(), options.etcd_options()],
    )
    if json_too:
        parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    parser.set_defaults(run=lambda args: uvloop.run(_run(command, args)))
    return parser


async def _run(command: Command, args: argparse.Namespace) -> int:
    async with connect(args) as client:
        return await command(client, args)
