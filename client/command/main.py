"""The stream-client command: create, append, read, measure.

Exit codes: 0 success; 1 the cluster refused or failed; 2 wrong usage; 130 interrupted.

Invariants: an error is one sentence on stderr and an exit code, never a traceback.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from neve.client.command import plot, rbench, streams, transfer, wbench
from neve.client.command.failures import guarded
from neve.client.command.options import Parser
from neve.rpc.command_line import parsed

EPILOG = """\
The cluster is given by --managers or $NEVE_MANAGERS. Exit codes: 0 success; 1 the cluster refused or failed; 2 wrong
usage; 130 interrupted. Examples:

  stream-client create events --replicas 3
  stream-client append events access.log
  stream-client tail events
  stream-client wbench --duration 30 --size 64KiB --json run.json && stream-client plot run.json -o run.png
"""


def parser() -> argparse.ArgumentParser:
    main_parser = Parser(
        prog="stream-client",
        description="Write, read and measure streams of Neve.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("-v", "--verbose", action="store_true", help="log what the client does, on stderr")
    commands = main_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    streams.add_parsers(commands)
    transfer.add_parsers(commands)
    wbench.add_parser(commands)
    rbench.add_parser(commands)
    plot.add_parser(commands)
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(parser(), argv)
    # The result or the error already has what a user needs to know; a log would only repeat it.
    level = logging.DEBUG if args.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    return guarded("stream-client", lambda: int(args.run(args)), managers=getattr(args, "managers", ()))
