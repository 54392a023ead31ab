"""The command line of a server process (configuration, logging, event loop, exit codes), and parsing for all commands.

Exit codes: 0 stopped by a signal, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop

import neve
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


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line. Every command gets the option `--version`.

    Arguments that are not UTF-8 are wrong usage, because messages are UTF-8. File names (`Path`) and arguments that are
    parsed to `bytes` are exempt.
    """
    parser.add_argument("--version", action="version", version=f"{parser.prog} {neve.__version__}")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        for text in _texts(value):
            try:
                text.encode()
            except UnicodeEncodeError:
                parser.error(f"argument {name}: this is not UTF-8")  # not shown, because it may be a secret
    return options


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def run_server(
    arguments: Sequence[str] | None,
    *,
    kind: str,
    load: Callable[[Path | None, Sequence[str]], C],
    serve: Callable[[C], Coroutine[Any, Any, None]],
) -> int:
    """Run a server. `kind` is for example "stream manager"; its package's `config.py` lists the keys."""
    program = "neve-" + kind.replace(" ", "-")
    parser = argparse.ArgumentParser(prog=program, description=f"Run a {kind} of Neve.")
    keys = f"{kind.replace(' ', '_')}/config.py"
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"a TOML file; {keys} lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key over the file's")
    options = parsed(parser, arguments)
    set_up_logging(as_json=False, level="WARNING")  # for warnings about the configuration itself
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
