"""The command neve. Each task of an operator is a sub-command, in a module with `add_parser` and `run`.

Invariants: an error is one sentence on stderr and an exit code, never a traceback;
            exit codes: 0 done and good, 1 something is bad or could not be done, 2 wrong usage, 130 interrupted,
            141 the output was closed (`inspect` says 2 also for what it could not look at).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from neve.client.command.failures import guarded
from neve.client.command.options import Parser
from neve.rpc.command_line import parsed
from neve.rpc.entry import enter
from neve.tools import inspect, lists, orders, status
from neve.tools.local import etcd as local_etcd
from neve.tools.local import up
from neve.tools.objects import kv, partitions


def parser() -> argparse.ArgumentParser:
    main_parser = Parser(prog="neve", description="Run and look after Neve.")
    commands = main_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (up, status, lists, orders, partitions, kv, inspect, local_etcd):
        module.add_parser(commands)
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(parser(), argv)
    return guarded("neve", lambda: int(args.run(args)), managers=getattr(args, "managers", None) or ())


if __name__ == "__main__":
    raise SystemExit(enter("neve", "neve.tools.main"))
