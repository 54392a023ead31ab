"""neve up: a whole cluster on this machine, from a Procfile that it writes: etcd, managers, nodes, partitions, gateway.

Invariants: the same folder is the same cluster: name, counts and ports are in layout.json, and its data is found;
            "ready" is said once, when a manager leads, every node is registered and alive, and every key has a server;
            Ctrl-C or SIGTERM stops everything in order (partitions, managers, nodes, etcd) and loses nothing; a second
            one kills;
            a process that dies is reported, and the cluster goes on, unless --exit-on-death.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from neve.client.command import options
from neve.client.command.failures import DONE, FAILED, USAGE, CommandFailed
from neve.meta.etcd.binary import EtcdBinary
from neve.rpc.front import until_told_to_stop
from neve.tools.etcd.folder import advice, etcd_for
from neve.tools.local import layout as local_layout
from neve.tools.local.layout import (
    ETCD,
    HOST,
    MANAGERS_MAX,
    NODES_MAX,
    STOP_ORDER,
    Counts,
    Layout,
    LayoutDamaged,
    Process,
    kind_of,
)
from neve.tools.local.ready import etcd_serves, until_ready
from neve.tools.local.supervisor import Ended, Supervisor, parse_procfile

DATA_DEFAULT = ".neve"
READY_TIMEOUT_S = 120.0  # a bound for a slow machine; it takes a few seconds
COUNTS_DEFAULT = Counts(managers=3, nodes=4, partition_managers=2, partition_servers=2)
SPLIT_KEYS_DEFAULT = "g,n,u"  # for keys that are words; balancing does the rest
LAYOUT, PROCFILE, LOCK, LOGS = "layout.json", "Procfile", "lock", "logs"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "up",
        help="run a cluster on this machine",
        description="Run a whole cluster on this machine: etcd, stream managers, extent nodes, partition managers and "
        "servers, the gateway. Ctrl-C stops it cleanly; the same folder starts it again with its data.",
        epilog="Exit code: 0 stopped as told, 1 it could not start or a process had to be killed, 2 wrong usage.",
    )
    parser.add_argument(
        "--data",
        type=options.text_path,
        default=Path(DATA_DEFAULT),
        metavar="FOLDER",
        help=f"data folder (default: {DATA_DEFAULT})",
    )
    parser.add_argument(
        "--nodes", type=options.whole_number(1, NODES_MAX), metavar="N", help="extent nodes (default: 4)"
    )
    parser.add_argument(
        "--managers",
        type=options.whole_number(0, MANAGERS_MAX),
        dest="manager_count",  # `managers` are addresses in the other commands
        metavar="N",
        help="stream managers (default: 3); with 0 the nodes are on their own",
    )
    parser.add_argument(
        "--partition-managers",
        type=options.whole_number(1, MANAGERS_MAX),
        metavar="N",
        help=f"partition managers (default: {COUNTS_DEFAULT.partition_managers})",
    )
    parser.add_argument(
        "--partition-servers",
        type=options.whole_number(0, MANAGERS_MAX),
        metavar="N",
        help=f"partition servers (default: {COUNTS_DEFAULT.partition_servers}); with 0 there is no key-value store",
    )
    parser.add_argument(
        "--split-keys",
        default=SPLIT_KEYS_DEFAULT,
        metavar="KEY,…",
        help=f"where the key space of a new cluster is split (default: {SPLIT_KEYS_DEFAULT}); empty: nowhere",
    )
    parser.add_argument("--cluster", help=f"the cluster's name (default: {options.CLUSTER_DEFAULT})")
    options.add_token(parser)
    ports = parser.add_mutually_exclusive_group()
    ports.add_argument(
        "--base-port",
        type=options.whole_number(1, 65000),
        metavar="PORT",
        help="etcd here, managers from 101 above, nodes from 201 above, partition managers and servers from 401 and "
        "501 above, the gateway 650 above (default: 2379, 3401…, 3501…, 3701…, 3801…, 3950)",
    )
    ports.add_argument("--free-ports", action="store_true", help="take ports that nobody uses")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KIND.KEY=VALUE",
        help="a setting of all processes of a kind or of one: node.scrub_bytes_per_s=0, manager1.log.level=DEBUG",
    )
    parser.add_argument("--quiet", action="store_true", help="write what the processes say to FOLDER/logs instead")
    parser.add_argument("--exit-on-death", action="store_true", help="stop everything when a process ends by itself")
    parser.add_argument("--json", action="store_true", help="on stdout one line of JSON an event; logs go to stderr")
    parser.add_argument("--print-procfile", action="store_true", help="print the Procfile, and start nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_by_kind(args.set)
    if args.print_procfile:
        layout = _new_layout(args)
        listed = _processes(layout, str(args.data), settings)
        sys.stdout.write(local_layout.procfile(listed))
        return DONE
    args.data.mkdir(parents=True, exist_ok=True)
    with _locked(args.data):
        layout = _layout(args)
        listed = _processes(layout, str(args.data.absolute()), settings)
        _check_ports(layout)
        etcd = etcd_for(args.data.absolute() / ETCD)  # fails with a hint before anything is started
        (args.data / LAYOUT).write_text(layout.encode())
        (args.data / PROCFILE).write_text(local_layout.procfile(listed))
        return asyncio.run(LocalCluster(layout, args, etcd).run())


class LocalCluster:
    """The cluster while it runs."""

    def __init__(self, layout: Layout, args: argparse.Namespace, etcd: EtcdBinary) -> None:
        self._layout = layout
        self._data: Path = args.data
        self._etcd = etcd
        self._etcd_advice = advice(etcd, args.data.absolute() / ETCD)
        self._json: bool = args.json
        self._exit_on_death: bool = args.exit_on_death
        self._token: str = args.token
        self._split_keys = sorted({key.encode() for key in args.split_keys.split(",") if key})
        self._death = asyncio.Event()
        log_folder = None
        if args.quiet:
            log_folder = self._data / LOGS
            log_folder.mkdir(exist_ok=True)
        out: TextIO = sys.stderr if args.json else sys.stdout
        commands = parse_procfile((self._data / PROCFILE).read_text())
        self._supervisor = Supervisor(commands, out=out, log_folder=log_folder, on_ended=self._on_ended)

    async def run(self) -> int:
        stop = asyncio.ensure_future(until_told_to_stop())
        starting = asyncio.ensure_future(self._start())
        death = asyncio.ensure_future(self._death.wait())
        code = DONE
        try:
            await asyncio.wait({stop, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait(
                    {stop, death} if self._exit_on_death else {stop}, return_when=asyncio.FIRST_COMPLETED
                )
                code = DONE if stop.done() else FAILED
        finally:
            for task in (starting, death):
                task.cancel()
            await asyncio.gather(starting, death, return_exceptions=True)
            reason = stop.result().name if stop.done() else "a process ended, or the start failed"
            self._event("stopping", f"stopping: {reason}", reason=reason)
            clean = await self._supervisor.stop(STOP_ORDER)
            self._event("stopped", "all stopped", clean=clean)
            stop.cancel()
        return code if clean else FAILED

    async def _start(self) -> None:
        supervisor, layout = self._supervisor, self._layout
        names = list(supervisor.children)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                for name in names:
                    if kind_of(name) == ETCD:
                        await supervisor.start(name)
                await self._unless_dead(etcd_serves(HOST, layout.etcd_port), "etcd")
                for name in names:
                    if kind_of(name) != ETCD:
                        await supervisor.start(name)
                await self._unless_dead(until_ready(layout, token=self._token, split_keys=self._split_keys), *names)
        except TimeoutError as error:
            where = f"the lines above, or {self._data}/{LOGS}, say why"
            raise CommandFailed(f"the cluster was not ready within {READY_TIMEOUT_S:g} s: {where}") from error
        self._event("ready", self._ready_text(), **self._facts())

    async def _unless_dead(self, waiting: Any, *names: str) -> None:
        """Wait, unless a process has ended already."""
        task = asyncio.ensure_future(waiting)
        death = asyncio.ensure_future(self._death.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return
            gone = [name for name in names if not self._supervisor.children[name].runs]
            raise CommandFailed(f"{', '.join(gone)} ended before the cluster was ready: the log says why")
        finally:
            for each in (task, death):
                each.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    def _on_ended(self, ended: Ended) -> None:
        self._death.set()
        if self._json:
            _print_json({"event": "ended", "name": ended.name, "pid": ended.pid, "code": ended.code})

    def _event(self, event: str, text: str, **facts: object) -> None:
        if self._json:
            _print_json({"event": event, **facts})
        else:
            for line in text.splitlines():
                self._supervisor.say(line)

    def _facts(self) -> dict[str, object]:
        layout = self._layout
        pids = {
            name: child.process.pid for name, child in self._supervisor.children.items() if child.process is not None
        }
        return {
            "cluster": layout.cluster,
            "data": str(self._data.absolute()),
            "etcd": layout.etcd_address,
            "etcd_version": self._etcd.version,
            "etcd_warning": self._etcd_advice,
            "managers": list(layout.manager_addresses),
            "nodes": list(layout.node_addresses),
            "partition_managers": list(layout.partition_manager_addresses),
            "partition_servers": list(layout.partition_server_addresses),
            "gateway": layout.gateway_address,
            "status": {name: f"{HOST}:{port}" for name, port in layout.status_ports.items()},
            "pids": pids,
        }

    def _ready_text(self) -> str:
        layout = self._layout
        managers = ",".join(layout.manager_addresses)
        cluster = "" if layout.cluster == options.CLUSTER_DEFAULT else f" {options.CLUSTER_VARIABLE}={layout.cluster}"
        lines = [
            f"cluster {layout.cluster!r} is ready, its data is in {self._data}",
            f"  etcd                {layout.etcd_address} (version {self._etcd.version})",
            f"  stream managers     {', '.join(layout.manager_addresses) or 'none'}",
            f"  extent nodes        {', '.join(layout.node_addresses)}",
            f"  partition managers  {', '.join(layout.partition_manager_addresses) or 'none'}",
            f"  partition servers   {', '.join(layout.partition_server_addresses) or 'none'}",
            f"  gateway             {layout.gateway_address or 'none'}",
        ]
        if layout.managers:
            lines.append(f"in another terminal: export {options.MANAGERS_VARIABLE}={managers}{cluster}")
            lines.append("                     neve status; stream-client wbench")
        if layout.partition_servers:
            partition_managers = ",".join(layout.partition_manager_addresses)
            lines.append(f"                     export {options.PARTITION_MANAGERS_VARIABLE}={partition_managers}")
            lines.append("                     neve partitions; neve kv bench")
            lines.append(f"                     curl http://{layout.gateway_address}/docs")
        if self._etcd_advice:
            lines.append(f"not for data that matters: {self._etcd_advice}")
        return "\n".join([*lines, "Ctrl-C stops it"])


def settings_by_kind(assignments: list[str]) -> dict[str, list[str]]:
    """`node.a.b=1` → {"node": ["a.b=1"]}."""
    found: dict[str, list[str]] = {}
    for assignment in assignments:
        who, dot, setting = assignment.partition(".")
        if not dot or "=" not in setting or "=" in who or kind_of(who) not in STOP_ORDER or kind_of(who) == ETCD:
            detail = "expected KIND.KEY=VALUE: manager, node, pmanager, pserver, gateway, or a process such as node1"
            raise CommandFailed(f"--set {assignment}: {detail}", USAGE)
        found.setdefault(who, []).append(setting)
    return found


def _processes(layout: Layout, data: str, settings: dict[str, list[str]]) -> list[Process]:
    """The processes to run. A setting for a process that is not among them is an error; a kind may have no process."""
    listed = local_layout.processes(layout, data=data, python=sys.executable, settings=settings)
    names = [process.name for process in listed if process.kind != ETCD]
    for who, (setting, *_) in settings.items():
        if who not in (*names, *STOP_ORDER):
            raise CommandFailed(f"--set {who}.{setting}: no {who} is started, only {', '.join(names)}", USAGE)
    return listed


def _new_layout(args: argparse.Namespace) -> Layout:
    cluster = args.cluster or options.CLUSTER_DEFAULT
    counts = _counts(args, COUNTS_DEFAULT)
    if args.free_ports:
        return local_layout.free_ports_layout(cluster, counts, free_ports=free_ports)
    return local_layout.fixed_ports(cluster, counts, base_port=args.base_port)


def _counts(args: argparse.Namespace, otherwise: Counts) -> Counts:
    """The options of the command line, with missing ones from `otherwise`."""

    def given(wanted: int | None, default: int) -> int:
        return default if wanted is None else wanted

    managers = given(args.manager_count, otherwise.managers)
    servers = given(args.partition_servers, otherwise.partition_servers) if managers else 0
    if managers == 0 and args.partition_servers:
        raise CommandFailed("partition servers need stream managers", USAGE)
    return Counts(
        managers=managers,
        nodes=given(args.nodes, otherwise.nodes),
        partition_managers=given(args.partition_managers, otherwise.partition_managers or 1) if servers else 0,
        partition_servers=servers,
    )


def _layout(args: argparse.Namespace) -> Layout:
    """The folder's own layout, if it has one. The command line must not contradict it, but may change ports."""
    path = args.data / LAYOUT
    try:
        saved = local_layout.decode(path.read_text())
    except FileNotFoundError:
        return _new_layout(args)
    except LayoutDamaged as error:
        raise CommandFailed(f"{path} cannot be used: {error}") from error
    if args.cluster not in (None, saved.cluster):
        raise CommandFailed(f"{args.data} is cluster {saved.cluster!r}, not {args.cluster!r}: give another --data")
    args.cluster = saved.cluster
    if args.nodes is not None and args.nodes < len(saved.nodes):
        advice = "start them all, and decommission those that are too many (`neve decommission`)"
        raise CommandFailed(f"{args.data} has {len(saved.nodes)} nodes: {advice}")
    had = Counts(
        managers=len(saved.managers),
        nodes=len(saved.nodes),
        partition_managers=len(saved.partition_managers),
        partition_servers=len(saved.partition_servers),
    )
    wanted = _counts(args, had)
    if wanted == had and args.base_port is None and (not args.free_ports or _ports_are_free(saved)):
        return saved
    args.manager_count, args.nodes = wanted.managers, wanted.nodes
    args.partition_managers, args.partition_servers = wanted.partition_managers or None, wanted.partition_servers
    return _new_layout(args)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in sockets]


def _taken(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like servers: a port in TIME_WAIT counts as free
        try:
            sock.bind((HOST, port))
        except OSError:
            return True
        return False


def _ports_are_free(layout: Layout) -> bool:
    return not any(map(_taken, layout.ports))


def _check_ports(layout: Layout) -> None:
    taken = [str(port) for port in layout.ports if _taken(port)]
    if taken:
        which = f"port {taken[0]} is" if len(taken) == 1 else f"ports {', '.join(taken[:5])} are"
        raise CommandFailed(f"{which} in use: is a cluster running already? --base-port or --free-ports take others")


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Hold the folder's lock: a folder has at most one running cluster."""
    descriptor = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandFailed(f"a cluster is running on {data} already") from error
        yield
    finally:
        os.close(descriptor)


def _print_json(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)
