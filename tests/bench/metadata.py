"""Metadata operations of one stream manager beside single puts to the same etcd, and elections over many extents.

Streams are created by a manager whose nodes reply at once, so that the manager is what is measured. Rolls are measured
on a cluster as users run it: a manager and three extent nodes. Each manager, each node, etcd and each caller is a
process. An operation is requested over the wire and its reply comes when etcd has stored it. A put is one call of the
same library to the same etcd. All are taken with several numbers of calls in flight, and the best one counts.

Managers are elected over extents that were written to a second etcd before. A standby follows that etcd all the time
and takes over when the leader resigns.

    python -m tests.bench.metadata --quick
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.bench import harness, processes
from tests.bench.harness import Plan, Settings
from tests.bench.limits import MIB
from tests.bench.metadata_rows import process as metadata_process
from tests.bench.metadata_rows.process import ManagerProcess
from tests.bench.node import Rows
from tests.bench.node_rows.process import CLUSTER
from tests.bench.node_rows.samples import Together
from tests.bench.processes import Child
from tests.bench.report import Quantity, at_least, at_most
from tests.bench.stream_rows import cluster as stream_cluster
from tests.cluster.etcd import EtcdCluster

MANAGER_MODULE = "tests.bench.metadata_rows.manager"

IN_FLIGHT = (64, 256, 1024)
ROLLS_IN_FLIGHT = (16, 64, 256)  # each is three files that nodes create and sync; more only wait for their turn
CREATE_RATIO_MIN = 1.5
ROLL_RATIO_MIN = 0.75
ROLL_CLUSTER = "rolls"
MEMORY_MIB_MAX = 2048.0

ASK_TIMEOUT_S = 300.0  # for a sample and what it prepares
FILL_TIMEOUT_S = 3600.0
ELECTION_TIMEOUT_S = 700.0

# The nodes of that cluster are in its metadata only. They are silent, and must not be declared dead for it.
ELECTION_SETTINGS = {"health.leader_grace_s": "3600"}

_FOLLOWED = re.compile(r"follower_loaded revision=(\d+)")


class Caller:
    """Orders to the caller's process."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def connect(self, address: str, endpoints: Sequence[str], *, cluster: str, nodes: int) -> None:
        """`nodes`: how many real nodes the cluster has; 0: the caller registers made-up ones."""
        order = {"case": "connect", "address": address, "endpoints": list(endpoints), "cluster": cluster}
        self._child.ask({**order, "nodes": nodes}, timeout_s=ASK_TIMEOUT_S)

    def best_rate(self, case: str, *, duration_s: float, in_flight: Sequence[int] = IN_FLIGHT) -> Quantity:
        """Operations a second with the best number of calls in flight."""
        orders = ({"case": case, "in_flight": calls, "duration_s": duration_s} for calls in in_flight)
        return Quantity(max(self._child.ask(order, timeout_s=ASK_TIMEOUT_S) for order in orders), "ops/s")

    def fill(self, endpoints: Sequence[str], extents: int) -> None:
        order = {"case": "fill", "endpoints": list(endpoints), "extents": extents}
        self._child.ask(order, timeout_s=FILL_TIMEOUT_S)

    def until_leading(self, manager: ManagerProcess) -> Quantity:
        order = {"case": "until_leading", "address": manager.address}
        return Quantity(self._child.ask(order, timeout_s=ELECTION_TIMEOUT_S), "s")


def elections(caller: Caller, endpoints: Sequence[str], folder: Path) -> dict[str, Quantity]:
    """A first manager is elected, a second one follows; then the first resigns, and the second is elected.

    Time counts from the moment in which there is something to win: the start of the first, the resigning of the other.
    Memory is the peak of each process.
    """
    start = partial(metadata_process.start, endpoints=endpoints, settings=ELECTION_SETTINGS, module=MANAGER_MODULE)
    with start(folder / "first.log") as first:
        first_s = caller.until_leading(first)
        first_peak = _peak(first)
        with start(folder / "standby.log") as standby:
            standby.wait_for(_FOLLOWED, timeout_s=ELECTION_TIMEOUT_S)
            first.resign()
            standby_s = caller.until_leading(standby)
            standby_peak = _peak(standby)
    return {"first": first_s, "first peak": first_peak, "standby": standby_s, "standby peak": standby_peak}


def _peak(manager: ManagerProcess) -> Quantity:
    return Quantity(manager.rss_peak_bytes() / MIB, "MiB")


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    rows = Rows()
    with ExitStack() as stack:
        caller = Caller(stack.enter_context(processes.start("tests.bench.metadata_rows.client")))
        _operations(rows, settings, caller, stack)
        _elections(rows, settings, caller, stack)
        yield rows.plan()


def _operations(rows: Rows, settings: Settings, caller: Caller, stack: ExitStack) -> None:
    duration_s = settings.pick(2.0, quick=0.4)
    etcd = stack.enter_context(EtcdCluster())
    log_path = settings.directory / "manager.log"
    manager = stack.enter_context(metadata_process.start(log_path, etcd.endpoints, module=MANAGER_MODULE))
    caller.connect(manager.address, etcd.endpoints, cluster=CLUSTER, nodes=0)
    cluster = stack.enter_context(stream_cluster.start(settings.directory / ROLL_CLUSTER, ROLL_CLUSTER, etcd.endpoints))
    roller = Caller(stack.enter_context(processes.start("tests.bench.metadata_rows.client")))
    roller.connect(cluster.manager, etcd.endpoints, cluster=ROLL_CLUSTER, nodes=stream_cluster.NODES)
    puts = rows.measure("single puts to etcd", lambda: caller.best_rate("put", duration_s=duration_s))
    create = rows.measure("create a stream", lambda: caller.best_rate("create", duration_s=duration_s))
    rows.compare(create, puts, at_least(CREATE_RATIO_MIN))

    def rolls() -> Quantity:
        rate = roller.best_rate("allocate", duration_s=duration_s, in_flight=ROLLS_IN_FLIGHT)
        cluster.collect()
        return rate

    rows.compare(rows.measure("seal and allocate an extent", rolls), puts, at_least(ROLL_RATIO_MIN))
    alone = rows.measure(
        "seal and allocate, nodes that reply at once", lambda: caller.best_rate("allocate", duration_s=duration_s)
    )
    rows.compare(alone, puts)


def _elections(rows: Rows, settings: Settings, caller: Caller, stack: ExitStack) -> None:
    extents = settings.pick(1_000_000, quick=20_000)
    etcd = stack.enter_context(EtcdCluster())
    caller.fill(etcd.endpoints, extents)
    together = Together(lambda: elections(caller, etcd.endpoints, settings.directory))
    bound = rows.measure("memory that a manager may take", lambda: Quantity(MEMORY_MIB_MAX, "MiB"))
    rows.measure(f"election of a manager, {extents:,} extents", lambda: together.take("first"))
    rows.measure(f"take-over by a standby, {extents:,} extents", lambda: together.take("standby"))
    first_peak = rows.measure(f"memory of the manager, {extents:,} extents", lambda: together.take("first peak"))
    standby_peak = rows.measure(f"memory of the standby, {extents:,} extents", lambda: together.take("standby peak"))
    rows.compare(first_peak, bound, at_most(1))
    rows.compare(standby_peak, bound, at_most(1))


if __name__ == "__main__":
    sys.exit(harness.main("metadata", __doc__, prepare))
