"""neve status and neve watch: the cluster on one screen, once or again and again."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from neve.client.command import options
from neve.client.command.failures import DONE, FAILED, sentence
from neve.client.command.tables import console, print_json
from neve.proto import partition_manager_pb2 as pm
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.tools import views
from neve.tools.admin_link import AdminLink
from neve.tools.ask import add_command
from neve.tools.objects import partitions

_GOOD, _BAD = "green", "bold red"


def add_parser(commands: Any) -> None:
    status = add_command(commands, "status", run_status, help="show the cluster on one screen")
    status.add_argument("--check", action="store_true", help="exit with 1 if there is any problem")
    status.add_argument(
        "--partition-managers",
        type=options.addresses,
        default=os.environ.get(options.PARTITION_MANAGERS_VARIABLE) or None,
        metavar="HOST:PORT,…",
        help=f"to tell of the key ranges, too (default: ${options.PARTITION_MANAGERS_VARIABLE}, or nobody)",
    )
    watch = add_command(commands, "watch", run_watch, help="show the cluster again and again", json_too=False)
    watch.add_argument("--json", action="store_true", help="one line of JSON each time")
    watch.add_argument("--interval", type=options.duration_s, default=1.0, metavar="SECONDS")
    watch.add_argument(
        "--count", type=options.whole_number(1, 10**9), metavar="N", help="stop after so many (default: never)"
    )


async def run_status(link: AdminLink, args: argparse.Namespace) -> int:
    status = await link.status()
    replicas = link.cluster.defaults.replicas
    regions: Sequence[pm.Region] = ()
    if args.partition_managers is not None:
        async with partitions.linked(args, args.partition_managers, timeout_s=args.timeout) as ranges:
            regions, version = await ranges.regions()
            servers = await ranges.servers()
    if args.json:
        value = views.status_value(status, replicas=replicas)
        if args.partition_managers is not None:
            value["partitions"] = {
                "version": version,
                "regions": len(regions),
                "servers": len(servers),
                "without_server": partitions.homeless(regions),
            }
        print_json(value)
    else:
        shown: list[RenderableType] = [screen(status, replicas=replicas)]
        if args.partition_managers is not None:
            shown.append(Text(f"key ranges  {partitions.summary(regions, servers, version)}"))
        console().print(Group(*shown))
    good = views.verdict(status, replicas=replicas).good and not partitions.homeless(regions)
    return FAILED if args.check and not good else DONE


def screen(status: sm.ClusterStatusReply, *, replicas: int) -> RenderableType:
    judged = views.verdict(status, replicas=replicas)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    for label, text in views.status_rows(status, replicas=replicas):
        style = ""
        if label.startswith("in danger"):
            style = _BAD if judged.data_in_danger else _GOOD
        elif label == "problems":
            style = _GOOD if judged.good else _BAD
        grid.add_row(label, Text(text, style=style))
    return grid


async def run_watch(link: AdminLink, args: argparse.Namespace) -> int:
    """An error is shown, not fatal: what is worth watching is a cluster in trouble."""
    on_terminal = sys.stdout.isatty() and not args.json
    live = Live(console=console(), screen=True, auto_refresh=False) if on_terminal else None
    replicas = link.cluster.defaults.replicas
    number = 0
    if live is not None:
        live.start()
    try:
        while args.count is None or number < args.count:
            if number:
                await asyncio.sleep(args.interval)
            number += 1
            try:
                status = await link.status()
                tasks = [task async for task in link.tasks()] if live is not None else []
            except NeveError as error:
                _show_error(sentence(error, managers=args.managers), live, args)
                continue
            if live is not None:
                live.update(_watch_screen(status, tasks, replicas=replicas), refresh=True)
            elif args.json:
                print(json.dumps(views.status_value(status, replicas=replicas)), flush=True)
            else:
                console().print(screen(status, replicas=replicas))
                print(flush=True)
    finally:
        if live is not None:
            live.stop()
    return DONE


def _show_error(text: str, live: Live | None, args: argparse.Namespace) -> None:
    if live is not None:
        live.update(Text(text, style=_BAD), refresh=True)
    elif args.json:
        print(json.dumps({"error": text}), flush=True)
    else:
        print(f"neve watch: {text}", file=sys.stderr, flush=True)


def _watch_screen(status: sm.ClusterStatusReply, tasks: list[sm.RecoveryTask], *, replicas: int) -> RenderableType:
    nodes = Table(box=None, pad_edge=False)
    for column in views.NODE_COLUMNS:
        nodes.add_column(column)
    for node in status.nodes:
        style = "" if node.health == sm.NODE_HEALTH_ALIVE else _BAD
        nodes.add_row(*(str(cell or "-") for cell in views.node_row(node)), style=style)
    parts: list[RenderableType] = [screen(status, replicas=replicas), Text(), nodes]
    if tasks:
        parts += [Text(), Text(f"recovery: {len(tasks)} extents wait or are being copied")]
    return Group(*parts, Text("\nCtrl-C ends", style="dim"))
