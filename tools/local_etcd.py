"""neve etcd: the etcd of a local cluster. `neve etcd install` builds one; with --data this process becomes it.

The Procfile calls `neve etcd --data`, so that it need not know where etcd is.

Invariants: this process *becomes* etcd (exec): signals and its exit code are etcd's;
            what happens to be set in ETCD_… is for another etcd and is not seen by this one.
Not here:   an etcd for real data: that is three members on three machines, and the operator's (docs/operations.md).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from neve.client.command import options
from neve.client.command.failures import USAGE, CommandFailed
from neve.meta.etcd_binary import find_etcd
from neve.tools import etcd_install
from neve.tools.local_layout import HOST

NAME = "local"
# A laptop's disk may stall for a moment; a single member has no other to be elected, so a long timeout costs nothing.
HEARTBEAT_MS, ELECTION_MS = 100, 1000
QUOTA_BYTES = 2 << 30


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "etcd",
        help="run the etcd of a local cluster, or build a current one",
        description="Run one etcd on this machine, for a local cluster: `neve up` and the Procfile use it.",
    )
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    etcd_install.add_parser(subcommands)
    parser.add_argument("--data", metavar="FOLDER", help="where its data is; needed to run it")
    parser.add_argument("--client-port", type=options.whole_number(1, 65535), default=2379)
    parser.add_argument("--peer-port", type=options.whole_number(1, 65535), default=2380)
    parser.set_defaults(run=run)


def arguments(*, data: str, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{HOST}:{client_port}", f"http://{HOST}:{peer_port}"
    return [
        f"--name={NAME}",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={NAME}={peer}",
        f"--heartbeat-interval={HEARTBEAT_MS}",
        f"--election-timeout={ELECTION_MS}",
        f"--quota-backend-bytes={QUOTA_BYTES}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
    ]


def environment(inherited: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in inherited if not name.startswith("ETCD_")}


def run(args: argparse.Namespace) -> int:
    if args.data is None:
        raise CommandFailed("neve etcd needs --data FOLDER to run, or a command: install", USAGE)
    binary = find_etcd()
    if binary.warning:
        print(f"neve etcd: {binary.path}: {binary.warning}", file=sys.stderr, flush=True)
    os.makedirs(args.data, mode=0o700, exist_ok=True)
    words = arguments(data=args.data, client_port=args.client_port, peer_port=args.peer_port)
    os.execve(binary.path, [str(binary.path), *words], environment(list(os.environ.items())))
