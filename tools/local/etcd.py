"""neve etcd: the etcd of a local cluster. `install` builds one, `upgrade` moves its data, --data runs it.

The Procfile calls `neve etcd --data`, so that it need not know where etcd is.

Invariants: this process *becomes* etcd (exec): signals and its exit code are etcd's;
            what happens to be set in ETCD_… is for another etcd and is not seen by this one.
Not here:   an etcd for real data: that is three members on three machines, and the operator's (docs/operations.md).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from neve.client.command import options
from neve.client.command.failures import USAGE, CommandFailed
from neve.tools.etcd import install as etcd_install
from neve.tools.etcd import process as etcd_process
from neve.tools.etcd import upgrade as etcd_upgrade
from neve.tools.etcd.folder import advice, etcd_for, remember


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "etcd",
        help="run, build or upgrade the etcd of a local cluster",
        description="Run one etcd on this machine, for a local cluster: `neve up` and the Procfile use it.",
    )
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    etcd_install.add_parser(subcommands)
    etcd_upgrade.add_parser(subcommands)
    parser.add_argument("--data", metavar="FOLDER", help="where its data is; needed to run it")
    parser.add_argument("--client-port", type=options.whole_number(1, 65535), default=2379)
    parser.add_argument("--peer-port", type=options.whole_number(1, 65535), default=2380)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.data is None:
        raise CommandFailed("neve etcd needs --data FOLDER to run, or a command: install, upgrade", USAGE)
    folder = Path(args.data).absolute()
    binary = etcd_for(folder)
    if warning := advice(binary, folder):
        print(f"neve etcd: {binary.path}: {warning}", file=sys.stderr, flush=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    remember(folder, binary)
    words = etcd_process.arguments(data=args.data, client_port=args.client_port, peer_port=args.peer_port)
    os.execve(binary.path, [str(binary.path), *words], etcd_process.environment(list(os.environ.items())))
