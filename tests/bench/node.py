"""One client and one extent node, each a process on uvloop, beside the limits of the same machine in the same run.

Appends that are not synced go to the page cache: their samples stay below the bytes at which a node begins to write
back. Reads are of extents in the page cache, and the client checks every block. A target that was set for three
replicas is marked so: with one, a node is expected to be far above.

    python -m tests.bench.node --quick
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from neve.rpc.descriptors import raise_descriptor_limit
from tests.bench import harness, limits, processes
from tests.bench.baselines import tcp_pair
from tests.bench.baselines.tcp_pair import TcpPair
from tests.bench.harness import Measure, Plan, Settings
from tests.bench.limits import MIB
from tests.bench.node_rows import disk as node_disk
from tests.bench.node_rows import process as node_process
from tests.bench.node_rows import samples as node_samples
from tests.bench.node_rows.samples import LARGE_BYTES, SMALL_BYTES, NodeBench, SealedExtents, Together
from tests.bench.processes import Child
from tests.bench.report import Comparison, Derived, Quantity, Target, at_least, at_most

RANDOM_READ_WINDOW = 128
FEW_EXTENTS, MANY_EXTENTS = 64, 512

# The journal is not used however many extents wait: each is synced by its own fdatasync, in the node's threads.
NO_JOURNAL = {"store.journal_extents_min": str(1 << 30), "kernel_syncs_max": "0"}
ONE_BY_ONE = {**NO_JOURNAL, "threads": "1"}  # and there is one thread for it
# One sealed extent stays open: reading another one closes it, so that the next reading is a first one again.
ONE_OPEN = {"store.sealed_files_max": "1"}

PING_PONG_FACTOR = 2.5
FDATASYNC_FACTOR = 3.5


@dataclass(slots=True)
class Rows:
    """A plan that grows. Methods return the name of what they added, for who compares with it."""

    measures: list[Measure] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)

    def measure(self, name: str, take: Callable[[], Quantity]) -> str:
        self.measures.append(Measure(name, take))
        return name

    def derive(self, name: str, unit: str, formula: Callable[..., float], *of: str) -> str:
        self.derived.append(Derived(name, of, formula, unit))
        return name

    def compare(self, measure: str, baseline: str, target: Target | None = None, *, name: str = "") -> None:
        self.comparisons.append(Comparison(measure, baseline, target, name))

    def plan(self) -> Plan:
        return Plan(measures=self.measures, comparisons=self.comparisons, derived=self.derived)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRows:
    """The names of the limits."""

    tcp: str
    ping_pong: str
    fresh_pages: str
    fdatasync: str


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    raise_descriptor_limit()  # for a thousand connections; children inherit it
    rows = Rows()
    with ExitStack() as stack:
        client = stack.enter_context(processes.start("tests.bench.node_rows.client"))
        main = NodeBench(client, stack.enter_context(node_process.start(settings.directory / "main", ONE_OPEN)))
        machine = _machine(rows, settings, tcp_pair.build(settings.directory))
        _appends(rows, settings, machine, main, stack, client)
        _one_at_a_time(rows, settings, machine, main)
        _many_extents(rows, settings, main, stack, client)
        _reads(rows, settings, machine, main)
        _start_up(rows, settings)
        _many_writers(rows, settings, client)
        yield rows.plan()


def _machine(rows: Rows, settings: Settings, pair: TcpPair) -> MachineRows:
    directory = settings.directory
    duration_s = settings.pick(1.0, quick=0.3)
    file_bytes = settings.pick(256 * MIB, quick=128 * MIB)
    syncs = settings.pick(200, quick=50)
    return MachineRows(
        tcp=rows.measure(limits.tcp_name(pair), lambda: limits.tcp_bandwidth(pair, duration_s=duration_s)),
        ping_pong=rows.measure(limits.ping_pong_name(pair), lambda: limits.tcp_ping_pong(pair, duration_s=duration_s)),
        fresh_pages=rows.measure(
            "page cache, fresh pages", lambda: limits.page_cache_write(directory, cached=False, size_bytes=file_bytes)
        ),
        fdatasync=rows.measure(
            "fdatasync 4 KiB, fallocated", lambda: limits.fdatasync_fallocated(directory, count=syncs)
        ),
    )


def _appends(
    rows: Rows, settings: Settings, machine: MachineRows, main: NodeBench, stack: ExitStack, client: Child
) -> None:
    """Bandwidth into one extent, not synced."""
    large_bytes = settings.pick(256 * MIB, quick=128 * MIB)
    small_bytes = settings.pick(128 * MIB, quick=64 * MIB)
    folder = settings.directory / "over_cached"
    node_disk.format_node(folder)
    command = ("tests.bench.node_rows.over_cached", str(folder / "scratch"), str(large_bytes))
    over_cached = NodeBench(client, stack.enter_context(node_process.start(folder, command=command)))

    large = rows.measure("append 1 MiB, no sync", lambda: main.append(block_bytes=LARGE_BYTES, total_bytes=large_bytes))
    cached = rows.measure(
        "append 1 MiB, no sync, over cached pages",
        lambda: over_cached.append(block_bytes=LARGE_BYTES, total_bytes=large_bytes),
    )
    small = rows.measure(
        "append 1 KiB in frames of 1 MiB, no sync",
        lambda: main.append(block_bytes=SMALL_BYTES, total_bytes=small_bytes),
    )
    moved = rows.derive(
        "over TCP, then to fresh pages",
        "MB/s",
        lambda tcp, pages: 1 / (1 / tcp + 1 / pages),
        machine.tcp,
        machine.fresh_pages,
    )
    rows.derive("appends of 1 KiB, no sync", "appends/s", lambda rate: rate * 1e6 / SMALL_BYTES, small)
    rows.compare(large, machine.tcp, at_least(0.11), name=f"{large} (target of 3 replicas)")
    rows.compare(large, moved, name=f"{large}, against both copies it takes")
    # Its target is of three replicas, which share what the machine can move: tests.bench.stream has it.
    rows.compare(large, cached, name=f"{large}, fresh against cached pages")
    rows.compare(small, large, at_least(0.65))


def _one_at_a_time(rows: Rows, settings: Settings, machine: MachineRows, main: NodeBench) -> None:
    duration_s = settings.pick(1.0, quick=0.3)
    unsynced = rows.measure(
        "one append of 1 KiB, no sync, p50", lambda: main.append_latency(sync=False, duration_s=duration_s)
    )
    synced = rows.measure(
        "one append of 1 KiB, sync, p50", lambda: main.append_latency(sync=True, duration_s=duration_s)
    )
    echo = rows.measure("an echo of 1 KiB by the node, p50", lambda: main.echo_latency(duration_s=duration_s))
    allowed = rows.derive(
        f"{PING_PONG_FACTOR:g} × ping-pong + {FDATASYNC_FACTOR:g} × fdatasync",
        "µs",
        lambda ping_pong, fdatasync: PING_PONG_FACTOR * ping_pong + FDATASYNC_FACTOR * fdatasync,
        machine.ping_pong,
        machine.fdatasync,
    )
    rows.compare(unsynced, machine.ping_pong, at_most(PING_PONG_FACTOR))
    rows.compare(unsynced, echo, name="one append of 1 KiB, no sync, against an echo")
    rows.compare(echo, machine.ping_pong)
    rows.compare(synced, allowed, at_most(1))


def _many_extents(rows: Rows, settings: Settings, main: NodeBench, stack: ExitStack, client: Child) -> None:
    """Synced appends, one in flight for each extent: a journal for all of them against an fdatasync for each.

    The targets are gains of one choice over another in one system: a journal for all that wait, instead of an fdatasync
    for each extent, one after the other. So their baseline is this node without its journal. Two others stand beside
    it: the same with many threads, and a bare loop of writes and syncs without any node, which no network slows down.
    """
    duration_s = settings.pick(1.0, quick=0.4)
    folder = settings.directory / "no_journal"
    node_disk.format_node(folder)
    no_journal = NodeBench(client, stack.enter_context(node_process.start(folder, NO_JOURNAL)))
    one_by_one_folder = settings.directory / "one_by_one"
    node_disk.format_node(one_by_one_folder)
    one_by_one = NodeBench(client, stack.enter_context(node_process.start(one_by_one_folder, ONE_BY_ONE)))
    # One baseline for both: going round more files changes nothing about the cost of one sync.
    bare = rows.measure(
        f"{FEW_EXTENTS} files, 1 KiB and fdatasync in a loop",
        lambda: node_disk.fdatasync_each(
            settings.directory, files=FEW_EXTENTS, block_bytes=SMALL_BYTES, duration_s=duration_s
        ),
    )
    for extents, target in ((FEW_EXTENTS, at_least(5)), (MANY_EXTENTS, at_least(8))):
        what = f"{extents} extents, 1 KiB, sync"
        journaled = rows.measure(what, partial(main.synced_appends, extents=extents, duration_s=duration_s))
        in_place = rows.measure(
            f"{what}, fdatasync for each in threads",
            partial(no_journal.synced_appends, extents=extents, duration_s=duration_s),
        )
        each = rows.measure(
            f"{what}, fdatasync for each, one by one",
            partial(one_by_one.synced_appends, extents=extents, duration_s=duration_s),
        )
        rows.compare(journaled, each, target)
        rows.compare(journaled, in_place, name=f"{what}, against threads")
        rows.compare(journaled, bare, name=f"{what}, against a bare loop")
    apart = rows.measure(
        f"{FEW_EXTENTS} extents, 1 KiB, sync, a frame for each",
        lambda: main.synced_appends(extents=FEW_EXTENTS, frame_extents=1, duration_s=duration_s),
    )
    rows.compare(apart, f"{FEW_EXTENTS} extents, 1 KiB, sync")


def _reads(rows: Rows, settings: Settings, machine: MachineRows, main: NodeBench) -> None:
    size_bytes = settings.pick(1024 * MIB, quick=256 * MIB)
    small_bytes = settings.pick(256 * MIB, quick=64 * MIB)
    duration_s = settings.pick(1.0, quick=0.4)
    count = settings.pick(200_000, quick=50_000)
    sealed = SealedExtents(main, large_bytes=size_bytes, small_bytes=small_bytes)
    what = f"sealed {size_bytes // MIB} MiB"

    through = rows.measure(f"{what}, read through", lambda: sealed.read_through(total_bytes=size_bytes))
    first = rows.measure(f"{what}, read through, first time", sealed.read_first_time)
    small = rows.measure(
        f"sealed {small_bytes // MIB} MiB of 4 KiB blocks, read through",
        lambda: sealed.read_small_blocks(total_bytes=small_bytes),
    )
    one = rows.measure(
        "random 4 KiB reads, one at a time", lambda: sealed.read_at_random(window=1, duration_s=duration_s)
    )
    many = rows.measure(
        f"random 4 KiB reads, {RANDOM_READ_WINDOW} in flight",
        lambda: sealed.read_at_random(window=RANDOM_READ_WINDOW, duration_s=duration_s),
    )
    rows.compare(through, machine.tcp, at_least(0.5))
    rows.compare(first, machine.tcp)
    rows.compare(small, machine.tcp)
    rows.compare(many, one, at_least(4))

    read = partial(node_disk.read_sequentially, sealed.path)
    mapped = rows.measure(f"no node: {what}, mmap, 1 MiB", lambda: read(mapped=True))
    untouched = rows.measure(f"no node: {what}, mmap, first touch", lambda: read(mapped=True, touched=False))
    plain = rows.measure(f"no node: {what}, pread, 1 MiB", lambda: read(mapped=False))
    read_at_random = partial(node_disk.read_at_random, sealed.path, count=count)
    mapped_random = rows.measure(f"no node: {what}, mmap, random 4 KiB", lambda: read_at_random(mapped=True))
    plain_random = rows.measure(f"no node: {what}, pread, random 4 KiB", lambda: read_at_random(mapped=False))
    rows.compare(mapped, plain)
    rows.compare(untouched, plain)
    rows.compare(mapped_random, plain_random)


def _start_up(rows: Rows, settings: Settings) -> None:
    """With extents in the page cache; a node with none shows what Python's own start takes."""
    extents = settings.pick(100_000, quick=5_000)
    folder, empty = settings.directory / "start_up", settings.directory / "start_up_empty"
    node_disk.make_extents(folder, extents)
    node_disk.make_extents(empty, 0)
    full = Together(lambda: node_samples.start_up(folder))
    none = Together(lambda: node_samples.start_up(empty))
    full_s = rows.measure(f"start-up with {extents:,} extents", lambda: full.take("s"))
    none_s = rows.measure("start-up without extents", lambda: none.take("s"))
    full_rss = rows.measure(f"memory with {extents:,} extents", lambda: full.take("rss"))
    none_rss = rows.measure("memory without extents", lambda: none.take("rss"))
    rows.compare(full_s, none_s)
    rows.derive("memory for each extent", "bytes", lambda full, none: (full - none) / extents * MIB, full_rss, none_rss)


def _many_writers(rows: Rows, settings: Settings, client: Child) -> None:
    writers = settings.pick(1_000, quick=100)
    duration_s = settings.pick(2.0, quick=0.5)
    folder = settings.directory / "writers"
    together = Together(
        lambda: node_samples.growth_under_writers(client, folder, writers=writers, duration_s=duration_s)
    )
    first = rows.measure(f"memory growth under {writers:,} writers", lambda: together.take("first"))
    later = rows.measure(f"memory growth under {writers:,} writers, later", lambda: together.take("later"))
    bound = rows.measure("memory that the limits allow them", lambda: node_samples.writers_bound(writers))
    rows.compare(first, bound, at_most(1))
    rows.compare(later, first, name=f"memory growth under {writers:,} writers, later against first")


if __name__ == "__main__":
    sys.exit(harness.main("node", __doc__, prepare))
