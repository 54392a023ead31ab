"""The command neve. One sub-command for each thing an operator does; each has its module with `add_parser` and `run`.

Invariants: an error is one sentence on stderr and an exit code, never a traceback;
            exit codes: 0 done and good, 1 done and something is bad, 2 could not be done.
Neighbours: inspect.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from neve.tools import inspect

INTERRUPTED = 130  # as shells have it for SIGINT


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(prog="neve", description="Run and look after Neve.")
    commands = main_parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    inspect.add_parser(commands)
    return main_parser


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has had enough, as in `neve inspect … | head`. Python would complain once more when it
        # flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
