"""A cluster as processes of a benchmark: one etcd for all, one manager and three nodes for each cluster on it.

Invariants: all of it ends with the block that started it, and its files are below one folder;
            deleted extents give their room back before the next sample: what of them was not written to the disk yet
            never is, and does not disturb anybody.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.metadata_rows import process as metadata_process
from tests.bench.node_rows import process as node_process
from tests.bench.node_rows.process import NODE_MODULE, NodeProcess
from tests.bench.report import BenchError

NODES = 3
DELETE_TIMEOUT_S = 60.0
POLL_S = 0.05

SCRATCH = "scratch"  # what a node of cached pages writes over
TOUCH_BYTES = 1 << 20

# Leftovers go soon after a sample: the defaults, in tens of seconds, are for clusters that live for longer.
MANAGER_SETTINGS = {"collecting.interval_s": "0.2", "recovery.poll_s": "0.2"}


class BenchCluster:
    def __init__(self, folder: Path, name: str, manager: str, nodes: Sequence[NodeProcess]) -> None:
        self.folder = folder
        self.name = name
        self.manager = manager  # its wire address
        self._nodes = tuple(nodes)
        self._kept: set[str] = set()

    @property
    def node_pids(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def cpu_s(self) -> float:
        """Processor time that the nodes have used so far."""
        return sum(node.cpu_s() for node in self._nodes)

    def keep(self) -> None:
        """The extents that are there now stay until the end."""
        self._kept = self._extents()

    def collect(self) -> None:
        """Wait until the nodes have dropped what was deleted, and give its room back."""
        deadline_s = time.monotonic() + DELETE_TIMEOUT_S
        while left := self._extents() - self._kept:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{len(left)} extents are not deleted after {DELETE_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        for node in self._nodes:
            node.empty_trash()

    def touch_scratch(self) -> None:
        """Have what nodes write over in the page cache: some kernels take back what was not used for a while, and leave
        less of it by the next sample."""
        for path in self.folder.glob(f"*/{SCRATCH}"):
            with path.open("rb", buffering=0) as file:
                while file.read(TOUCH_BYTES):
                    pass

    def _extents(self) -> set[str]:
        return {path.name for node in self._nodes for path in (node.disk / "extents").glob("*/*.ext")}


def node_settings(name: str, node_id: int, manager: str) -> dict[str, str]:
    return {
        "cluster": name,
        "node_id": str(node_id),
        "managers": f'["{manager}"]',
    }


@contextmanager
def start(
    folder: Path,
    name: str,
    endpoints: Sequence[str],
    *,
    settings: Mapping[str, str] | None = None,
    scratch_bytes: int = 0,
) -> Iterator[BenchCluster]:
    """A manager and nodes on an etcd that runs. `scratch_bytes`: nodes that write over so many cached bytes."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        manager_settings = {"cluster": name, **MANAGER_SETTINGS}
        log_path = folder / "manager.log"
        manager = stack.enter_context(metadata_process.start(log_path, endpoints, manager_settings)).address
        nodes = []
        for node_id in range(1, NODES + 1):
            node_folder = folder / f"node{node_id}"
            command: tuple[str, ...] = (NODE_MODULE,)
            if scratch_bytes:
                node_folder.mkdir()
                command = ("tests.bench.node_rows.over_cached", str(node_folder / SCRATCH), str(scratch_bytes))
            keys = {**node_settings(name, node_id, manager), **(settings or {})}
            nodes.append(stack.enter_context(node_process.start(node_folder, keys, command=command)))
        yield BenchCluster(folder, name, manager, nodes)
