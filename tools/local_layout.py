"""A cluster on one machine, on paper: which processes, on which ports, with which folders. Pure.

    DATA/layout.json     cluster name, counts and ports: a restart on the same folder is the same cluster
    DATA/Procfile        the processes; honcho or goreman can run it, too
    DATA/etcd/           the metadata store's data
    DATA/node1/disk1/    a node's disk; DATA/node1/journal/ its journal
    DATA/logs/           a file for each process, with --quiet

Invariants: the same layout gives the same Procfile; the Procfile at the top of the repository is the one of the default
            layout, and a test holds it to that.
Neighbours: up.py starts what is described here; local_supervisor.py runs the lines of the Procfile.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

FORMAT_VERSION = 1
HOST = "127.0.0.1"

MANAGERS_MAX, NODES_MAX = 9, 49

ETCD, MANAGER, NODE = "etcd", "manager", "node"

# The order in which a cluster stops: first nobody gives orders any more, then the data is put down, then the metadata.
STOP_ORDER = (MANAGER, NODE, ETCD)


class LayoutDamaged(Exception):
    """layout.json cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The ports of one server."""

    wire: int
    grpc: int
    status: int


@dataclass(frozen=True, slots=True)
class Layout:
    cluster: str
    etcd_port: int
    etcd_peer_port: int
    managers: tuple[Doors, ...]
    nodes: tuple[Doors, ...]

    @property
    def manager_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.managers)

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.nodes)

    @property
    def etcd_address(self) -> str:
        return f"{HOST}:{self.etcd_port}"

    @property
    def ports(self) -> tuple[int, ...]:
        servers = [port for doors in (*self.managers, *self.nodes) for port in (doors.wire, doors.grpc, doors.status)]
        return (self.etcd_port, self.etcd_peer_port, *servers)

    def encode(self) -> str:
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the Procfile."""

    name: str  # etcd, manager1, node3
    kind: str
    command: tuple[str, ...]


def fixed_ports(cluster: str, *, managers: int, nodes: int, base_port: int | None) -> Layout:
    """The ports that the documentation names, or the same scheme from `base_port` on.

    Without a base: etcd 2379 and 2380, managers 3401…, nodes 3501…. With one: etcd at the base, managers from 101 above
    it, nodes from 201 above it. gRPC is 10 (managers) or 50 (nodes) above the wire, the status page twice that.
    """
    base = 3300 if base_port is None else base_port
    etcd_port = 2379 if base_port is None else base_port
    return Layout(
        cluster,
        etcd_port,
        etcd_port + 1,
        tuple(Doors(base + 100 + n, base + 110 + n, base + 120 + n) for n in range(1, managers + 1)),
        tuple(Doors(base + 200 + n, base + 250 + n, base + 300 + n) for n in range(1, nodes + 1)),
    )


def free_ports_layout(cluster: str, *, managers: int, nodes: int, free_ports: Callable[[int], Sequence[int]]) -> Layout:
    ports = list(free_ports(2 + 3 * (managers + nodes)))
    doors = [Doors(*ports[first : first + 3]) for first in range(2, len(ports), 3)]
    return Layout(cluster, ports[0], ports[1], tuple(doors[:managers]), tuple(doors[managers:]))


def decode(text: str) -> Layout:
    """What `encode` wrote; LayoutDamaged for anything else."""
    try:
        table: Any = json.loads(text)
        if table["format"] != FORMAT_VERSION:
            raise LayoutDamaged(f"it has format {table['format']}, and {FORMAT_VERSION} is what is known here")
        names = [field.name for field in fields(Layout)]
        return Layout(
            **{
                **{name: table[name] for name in names},
                "managers": tuple(Doors(**doors) for doors in table["managers"]),
                "nodes": tuple(Doors(**doors) for doors in table["nodes"]),
            }
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LayoutDamaged(f"it is not a layout ({type(error).__name__}: {error})") from error


def processes(
    layout: Layout,
    *,
    data: str,
    python: str,
    settings: Mapping[str, Sequence[str]] | None = None,
) -> list[Process]:
    """All processes, in the order of their start. `settings` are more `key=value`, by kind or by name."""
    extra = settings or {}

    def server(module: str, kind: str, number: int, doors: Doors, assignments: Sequence[str]) -> Process:
        name = f"{kind}{number}"
        all_assignments = [
            f"cluster={layout.cluster}",
            *assignments,
            f"listen.wire={HOST}:{doors.wire}",
            f"listen.grpc={HOST}:{doors.grpc}",
            f"listen.status={HOST}:{doors.status}",
            *extra.get(kind, ()),
            *extra.get(name, ()),
        ]
        words = [word for assignment in all_assignments for word in ("--set", assignment)]
        return Process(name, kind, (python, "-m", module, *words))

    etcd = [python, "-m", "neve.tools.main", "etcd", "--data", f"{data}/etcd"]
    etcd += ["--client-port", str(layout.etcd_port), "--peer-port", str(layout.etcd_peer_port)]
    listed = [Process(ETCD, ETCD, tuple(etcd))]
    for number, doors in enumerate(layout.managers, start=1):
        endpoints = [f'etcd.endpoints=["{layout.etcd_address}"]']
        listed.append(server("neve.stream_manager", MANAGER, number, doors, endpoints))
    known = ", ".join(f'"{address}"' for address in layout.manager_addresses)
    for number, doors in enumerate(layout.nodes, start=1):
        assignments = [
            f'disks=["{data}/node{number}/disk1"]',
            f"journal={data}/node{number}/journal",
            # Without managers the nodes are on their own: they must be told their ids, and that they are new.
            *([f"managers=[{known}]"] if known else [f"node_id={number}", "format_empty_disks=true"]),
            # Ids are the managers' to give, in the order of the first registrations: the rack says which node is which.
            f"location.rack=r{number}",
        ]
        listed.append(server("neve.extent_node", NODE, number, doors, assignments))
    return listed


def procfile(listed: Sequence[Process]) -> str:
    """The text of a Procfile. The commands need no shell: words are quoted where they must be."""
    return "".join(f"{process.name}: {shlex.join(process.command)}\n" for process in listed)


def kind_of(name: str) -> str:
    """The kind of a process of a Procfile: its name without the number."""
    return name.rstrip("0123456789.")
