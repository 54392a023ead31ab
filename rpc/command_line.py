"""The command line of a server process: a configuration from a file and flags, logging, the loop, exit codes.

Exit codes: 0 stopped as told, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop

from neve.proto.errors import InvalidArgument, NeveError
from neve.rpc.logs import set_up_logging


class LogTable(Protocol):
    @property
    def json(self) -> bool: ...
    @property
    def level(self) -> str: ...


class ServerConfig(Protocol):
    @property
    def log(self) -> LogTable: ...


C = TypeVar("C", bound=ServerConfig)


def run_server(
    arguments: Sequence[str] | None,
    *,
    kind: str,
    load: Callable[[Path | None, Sequence[str]], C],
    serve: Callable[[C], Coroutine[Any, Any, None]],
) -> int:
    """`kind` as in "stream manager"; its package has a `config.py` that lists the keys."""
    program = "neve-" + kind.replace(" ", "-")
    parser = argparse.ArgumentParser(prog=program, description=f"Run a {kind} of Neve.")
    keys = f"{kind.replace(' ', '_')}/config.py"
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"a TOML file; {keys} lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key over the file's")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config, options.set)
    except InvalidArgument as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    set_up_logging(as_json=config.log.json, level=config.log.level)
    try:
        uvloop.run(serve(config))
    except (NeveError, TimeoutError, OSError) as error:
        print(f"{program}: cannot run: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0
