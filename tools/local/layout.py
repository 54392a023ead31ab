"""The layout of a cluster on one machine: its processes, their ports and folders. Pure.

    DATA/layout.json     cluster name, counts and ports: a restart on the same folder is the same cluster
    DATA/Procfile        the processes; honcho or goreman can run it, too
    DATA/etcd/           the metadata store's data; DATA/etcd.json says which etcd made it
    DATA/node1/disk1/    a node's disk; DATA/node1/journal/ its journal
    DATA/logs/           a file for each process, with --quiet

Invariants: the same layout gives the same Procfile; the Procfile at the top of the repository is the one of the default
            layout, and a test holds it to that.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

FORMAT_VERSION = 1
HOST = "127.0.0.1"

MANAGERS_MAX, NODES_MAX = 9, 49

ETCD, MANAGER, NODE, PMANAGER, PSERVER = "etcd", "manager", "node", "pmanager", "pserver"
GATEWAY = "gateway"

# The order in which a cluster stops: first the processes that accept requests, then the partition managers, the
# partition servers, the stream managers, the extent nodes, and last etcd.
STOP_ORDER = (GATEWAY, PMANAGER, PSERVER, MANAGER, NODE, ETCD)


class LayoutDamaged(Exception):
    """layout.json cannot be used. The message gives the reason."""


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
    partition_managers: tuple[Doors, ...] = ()
    partition_servers: tuple[Doors, ...] = ()
    gateway_port: int = 0  # HTTP; 0: no gateway
    gateway_status_port: int = 0

    @property
    def servers(self) -> dict[str, Doors]:
        """The ports of all processes that speak the wire protocol, by name."""
        kinds = (
            (MANAGER, self.managers),
            (NODE, self.nodes),
            (PMANAGER, self.partition_managers),
            (PSERVER, self.partition_servers),
        )
        return {f"{kind}{n}": doors for kind, each in kinds for n, doors in enumerate(each, start=1)}

    @property
    def manager_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.managers)

    @property
    def node_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.nodes)

    @property
    def partition_manager_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.partition_managers)

    @property
    def partition_server_addresses(self) -> tuple[str, ...]:
        return tuple(f"{HOST}:{doors.wire}" for doors in self.partition_servers)

    @property
    def gateway_address(self) -> str:
        return f"{HOST}:{self.gateway_port}" if self.gateway_port else ""

    @property
    def status_ports(self) -> dict[str, int]:
        """The status ports of all processes except etcd, by name."""
        gateway = {GATEWAY: self.gateway_status_port} if self.gateway_port else {}
        return {**{name: doors.status for name, doors in self.servers.items()}, **gateway}

    @property
    def etcd_address(self) -> str:
        return f"{HOST}:{self.etcd_port}"

    @property
    def ports(self) -> tuple[int, ...]:
        servers = [port for doors in self.servers.values() for port in (doors.wire, doors.grpc, doors.status)]
        gateway = (self.gateway_port, self.gateway_status_port) if self.gateway_port else ()
        return (self.etcd_port, self.etcd_peer_port, *servers, *gateway)

    def encode(self) -> str:
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the Procfile."""

    name: str  # etcd, manager1, node3, pmanager1, pserver2, gateway
    kind: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of processes of each kind. There is one gateway if there are partition servers."""

    managers: int = 3
    nodes: int = 4
    partition_managers: int = 0
    partition_servers: int = 0


def fixed_ports(cluster: str, counts: Counts, *, base_port: int | None) -> Layout:
    """The ports that the documentation names, or the same scheme from `base_port` on.

    Without a base: etcd 2379 and 2380, managers 3401…, nodes 3501…, partition managers 3701…, partition servers 3801…,
    the gateway 3950 and its status page 3951. With one: etcd at the base, the others from 101, 201, 401, 501 and 650
    above it. gRPC is 10 (managers) or 50 above the wire, the status page twice that.
    """
    base = 3300 if base_port is None else base_port
    etcd_port = 2379 if base_port is None else base_port

    def doors(count: int, above: int, step: int) -> tuple[Doors, ...]:
        first = base + above
        return tuple(Doors(first + n, first + step + n, first + 2 * step + n) for n in range(1, count + 1))

    return Layout(
        cluster,
        etcd_port,
        etcd_port + 1,
        doors(counts.managers, 100, 10),
        doors(counts.nodes, 200, 50),
        doors(counts.partition_managers, 400, 10),
        doors(counts.partition_servers, 500, 50),
        *((base + 650, base + 651) if counts.partition_servers else ()),
    )


def free_ports_layout(cluster: str, counts: Counts, *, free_ports: Callable[[int], Sequence[int]]) -> Layout:
    groups = (counts.managers, counts.nodes, counts.partition_managers, counts.partition_servers)
    count = 2 + 3 * sum(groups)
    ports = list(free_ports(count + (2 if counts.partition_servers else 0)))
    doors = iter([Doors(*ports[first : first + 3]) for first in range(2, count, 3)])
    managers, nodes, partition_managers, partition_servers = (tuple(itertools.islice(doors, count)) for count in groups)
    return Layout(cluster, ports[0], ports[1], managers, nodes, partition_managers, partition_servers, *ports[count:])


def decode(text: str) -> Layout:
    """Decode the result of `encode`; raise LayoutDamaged for anything else."""
    try:
        table: Any = json.loads(text)
        if table["format"] != FORMAT_VERSION:
            raise LayoutDamaged(f"it has format {table['format']}, and {FORMAT_VERSION} is what is known here")
        table.setdefault("partition_managers", ())  # missing in layouts of Neve before it had partition managers
        table.setdefault("partition_servers", ())
        table.setdefault("gateway_port", 0)
        table.setdefault("gateway_status_port", 0)
        values = {field.name: table[field.name] for field in fields(Layout)}
        for kind in ("managers", "nodes", "partition_managers", "partition_servers"):
            values[kind] = tuple(Doors(**doors) for doors in table[kind])
        return Layout(**values)
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
            # Without managers nothing assigns ids, so each node is given its id and told to format its empty disk.
            *([f"managers=[{known}]"] if known else [f"node_id={number}", "format_empty_disks=true"]),
            # The managers assign ids in the order of the first registrations, so the rack identifies a node.
            f"location.rack=r{number}",
        ]
        listed.append(server("neve.extent_node", NODE, number, doors, assignments))
    for number, doors in enumerate(layout.partition_managers, start=1):
        assignments = [f"stream_managers=[{known}]", f'etcd.endpoints=["{layout.etcd_address}"]']
        listed.append(server("neve.partition_manager", PMANAGER, number, doors, assignments))
    partition_managers = ", ".join(f'"{address}"' for address in layout.partition_manager_addresses)
    for number, doors in enumerate(layout.partition_servers, start=1):
        assignments = [
            f"stream_managers=[{known}]",
            f"partition_managers=[{partition_managers}]",
            f"server_id={number}",
        ]
        listed.append(server("neve.partition_server", PSERVER, number, doors, assignments))
    if layout.gateway_port:
        assignments = [
            f"cluster={layout.cluster}",
            f"managers=[{partition_managers}]",
            f"listen.http={layout.gateway_address}",
            f"listen.status={HOST}:{layout.gateway_status_port}",
            *extra.get(GATEWAY, ()),
        ]
        words = [word for assignment in assignments for word in ("--set", assignment)]
        listed.append(Process(GATEWAY, GATEWAY, (python, "-m", "neve.gateway", *words)))
    return listed


def procfile(listed: Sequence[Process]) -> str:
    """The text of a Procfile. The commands need no shell; words are quoted where necessary."""
    return "".join(f"{process.name}: {shlex.join(process.command)}\n" for process in listed)


def kind_of(name: str) -> str:
    """The kind of a process of a Procfile: its name without the number."""
    return name.rstrip("0123456789.")
