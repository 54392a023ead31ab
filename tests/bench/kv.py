"""Objects through the key-value client, beside the same mixes of YCSB on an etcd of three members, in the same run.

Neve: an etcd, a stream manager, three nodes, a partition manager and two partition servers, as `neve up` starts them;
every put is synced on three replicas before it is answered. etcd: three members, which sync, too; puts and
linearizable reads are single calls of Python's gRPC, spread over the members. Both are driven by the same
workers from two client processes, with several numbers of operations in flight, and the best one counts.

    python -m tests.bench.kv --quick
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from tests.bench import harness, processes
from tests.bench.harness import Plan, Settings
from tests.bench.limits import microseconds
from tests.bench.node import Rows
from tests.bench.processes import Child
from tests.bench.report import Quantity, at_least
from tests.cluster.etcd import EtcdCluster
from tests.cluster.local_cluster import LocalCluster

MIXES = ("A", "B", "C", "F")
SIZE_BYTES = 1024
CLIENTS = 2
IN_FLIGHT = (64, 256, 1024)  # of each client process
PUTS_RATIO_MIN = 3.0
PROCESSES = ("--nodes", "3", "--managers", "1", "--partition-managers", "1", "--partition-servers", "2")
SPLIT_KEYS = "bench/user046,bench/user092,bench/user138"  # quarters of what twenty digits of FNV are spread over
ASK_TIMEOUT_S = 300.0


class Store:
    """One of the two, and the processes that ask it."""

    def __init__(
        self, clients: Sequence[Child], name: str, addresses: Sequence[str], cluster: str, objects: int
    ) -> None:
        self._clients = clients
        self._order = {"store": name, "addresses": list(addresses), "cluster": cluster}
        self._sizes = {"objects": objects, "size_bytes": SIZE_BYTES}

    def _ask(self, client: Child, case: str, **arguments: Any) -> float:
        return client.ask({"case": case, **self._order, **self._sizes, **arguments}, timeout_s=ASK_TIMEOUT_S)

    def load(self) -> Quantity:
        return Quantity(self._ask(self._clients[0], "load"), "ops/s")

    def best_rate(self, mix: str, *, duration_s: float, in_flight: Sequence[int]) -> Quantity:
        """Operations a second of all clients together, with the best number in flight."""
        with ThreadPoolExecutor(len(self._clients)) as threads:

            def rate(workers: int) -> float:
                asked = [
                    threads.submit(self._ask, client, "run", mix=mix, workers=workers, duration_s=duration_s)
                    for client in self._clients
                ]
                return sum(each.result() for each in asked)

            return Quantity(max(map(rate, in_flight)), "ops/s")

    def latency(self, mix: str, *, duration_s: float, share: float) -> Quantity:
        took_s = self._ask(self._clients[0], "latency", mix=mix, duration_s=duration_s, share=share)
        return microseconds(took_s)


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    rows = Rows()
    objects = settings.pick(20_000, quick=2_000)
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(3))
        cluster = stack.enter_context(
            LocalCluster(settings.directory / "neve", *PROCESSES, "--split-keys", SPLIT_KEYS, settings=())
        )
        clients = [stack.enter_context(processes.start("tests.bench.kv_client")) for _ in range(CLIENTS)]
        neve = Store(clients, "neve", cluster.facts["partition_managers"], cluster.facts["cluster"], objects)
        peer = Store(clients, "etcd", etcd.endpoints, "", objects)
        for store in (neve, peer):
            store.load()
        _mixes(rows, settings, neve, peer)
        _one_at_a_time(rows, settings, neve, peer)
        yield rows.plan()


def _mixes(rows: Rows, settings: Settings, neve: Store, peer: Store) -> None:
    duration_s = settings.pick(3.0, quick=0.7)
    in_flight = settings.pick(IN_FLIGHT, quick=IN_FLIGHT[-1:])
    for mix, what in (("put", "puts of 1 KiB, synced"), *((mix, f"YCSB {mix}") for mix in MIXES)):
        target = at_least(PUTS_RATIO_MIN) if mix == "put" else None
        baseline = rows.measure(
            f"{what}, etcd", partial(peer.best_rate, mix, duration_s=duration_s, in_flight=in_flight)
        )
        measure = rows.measure(what, partial(neve.best_rate, mix, duration_s=duration_s, in_flight=in_flight))
        rows.compare(measure, baseline, target)


def _one_at_a_time(rows: Rows, settings: Settings, neve: Store, peer: Store) -> None:
    duration_s = settings.pick(1.5, quick=0.5)
    for mix, what in (("put", "one put"), ("C", "one get")):
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            baseline = rows.measure(
                f"{what}, {name}, etcd", partial(peer.latency, mix, duration_s=duration_s, share=share)
            )
            measure = rows.measure(f"{what}, {name}", partial(neve.latency, mix, duration_s=duration_s, share=share))
            rows.compare(measure, baseline)


if __name__ == "__main__":
    sys.exit(harness.main("kv", __doc__, prepare))
