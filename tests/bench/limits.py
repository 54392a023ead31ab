"""What this machine can do at most: the numbers that every other benchmark stands beside.

Each limit is a function that takes one sample and returns a `Quantity`; other benchmarks put the ones they are
compared with into their own rounds, because a limit of yesterday, or of a quieter hour, is no limit.

    python -m tests.bench.limits --quick
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import google_crc32c
import numpy as np

from tests.bench import harness
from tests.bench.baselines import tcp_pair
from tests.bench.baselines.tcp_pair import KERNEL_DEFAULT, KERNEL_TUNED, TcpPair
from tests.bench.harness import Measure, Plan, Settings
from tests.bench.report import BenchError, Comparison, Quantity

KIB = 1024
MIB = 1024 * KIB

# Without a bound the kernel lets a receive buffer grow to tcp_rmem[2], 32 MiB on some machines: the bytes in
# flight no longer fit the cache, and loopback falls from 7 to 2.2 GB/s. A limit is what can be reached, so it is
# taken with the bound; the row with the kernel's own tuning shows what a program that sets nothing may expect.
RECEIVE_BUFFER_BYTES = 512 * KIB

PAGE_BYTES = 4 * KIB
FALLOC_FL_KEEP_SIZE = 1

HUGE_PAGE_BYTES = 2 * MIB
CLAIM_FACTOR = 3  # of what a sample writes


def megabytes_per_second(size_bytes: float, took_s: float) -> Quantity:
    return Quantity(size_bytes / took_s / 1e6, "MB/s")


def microseconds(took_s: float) -> Quantity:
    return Quantity(took_s * 1e6, "µs")


# The network.


def tcp_bandwidth(
    pair: TcpPair,
    *,
    congestion: str = "reno",
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    duration_s: float = 1.0,
) -> Quantity:
    """Loopback TCP in one direction, sends of 1 MiB."""
    rate = pair.bandwidth(congestion=congestion, receive_buffer_bytes=receive_buffer_bytes, duration_s=duration_s)
    return megabytes_per_second(rate, 1.0)


def tcp_ping_pong(pair: TcpPair, *, congestion: str = "reno", duration_s: float = 1.0) -> Quantity:
    """The median round trip of 1 KiB between two processes, each on a core of its own where there are two."""
    return microseconds(pair.latency(congestion=congestion, duration_s=duration_s))


# The page cache and the disk.


def page_cache_write(directory: Path, *, cached: bool, size_bytes: int = 256 * MIB) -> Quantity:
    """Writes of 1 MiB to a new file, or again over the pages that they left in the cache; never synced."""
    if not cached:
        claim_free_pages(size_bytes=size_bytes)
    block = os.urandom(MIB)
    with _scratch_file(directory) as fd:
        if cached:
            _write_blocks(fd, block, size_bytes)
        return _write_blocks(fd, block, size_bytes)


def claim_free_pages(*, size_bytes: int) -> Quantity:
    """Have the machine own more free pages than what is measured next will write to; how fast it got them.

    A hypervisor takes back memory that has been free for seconds (free page reporting), and the first write to each
    such page then stops the processor until it has found another. That is no cost of a page cache, and it comes by
    chance: the pages of one sample's deleted files are those of the next sample. So memory is touched and given back
    just before: huge pages and small ones, since the kernel fills a file from either, by the size and place of each
    write; several times as much, since nothing says which it takes; and not in a file, of which the kernel would begin
    to write back what is deleted a moment later. Written to a file, as much as the sample would take, it left two
    samples of three with 340 MB/s in place of 900.
    """
    size_bytes = max(CLAIM_FACTOR * size_bytes, HUGE_PAGE_BYTES)
    begun_s = time.perf_counter()
    with _touched(size_bytes, huge=True), _touched(size_bytes, huge=False):
        return megabytes_per_second(2 * size_bytes, time.perf_counter() - begun_s)


@contextmanager
def _touched(size_bytes: int, *, huge: bool) -> Iterator[None]:
    """Memory, each page of it written to."""
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # a kernel without huge pages has no other
            memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        for at in range(0, size_bytes, PAGE_BYTES):
            memory[at] = 1
        yield


def fdatasync_prewritten(directory: Path, *, count: int = 200) -> Quantity:
    """4 KiB written over blocks that are on disk already, then fdatasync: the median of both together."""
    with _scratch_file(directory) as fd:
        _write_blocks(fd, b"\0" * PAGE_BYTES, count * PAGE_BYTES)
        os.fsync(fd)
        return _sync_each(fd, count)


def fdatasync_fallocated(directory: Path, *, count: int = 200) -> Quantity:
    """4 KiB written to blocks that are reserved and not yet part of the file, as in an open extent."""
    with _scratch_file(directory) as fd:
        fallocate_keep_size(fd, count * PAGE_BYTES)
        os.fsync(fd)
        return _sync_each(fd, count)


def fdatasync_growing(directory: Path, *, count: int = 200) -> Quantity:
    """4 KiB appended to a file with nothing reserved."""
    with _scratch_file(directory) as fd:
        return _sync_each(fd, count)


def fallocate_keep_size(fd: int, size_bytes: int) -> None:
    """`os.posix_fallocate` would also grow the file, and so leave out the cost of a new size at each sync."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, size_bytes) != 0:
        code = ctypes.get_errno()
        raise BenchError(f"fallocate in the benchmark's folder: {os.strerror(code)}; choose another by --dir")


@contextmanager
def _scratch_file(directory: Path) -> Iterator[int]:
    fd, path = tempfile.mkstemp(dir=directory)
    try:
        yield fd
    finally:
        os.close(fd)
        os.unlink(path)


def _write_blocks(fd: int, block: bytes, size_bytes: int) -> Quantity:
    started_s = time.perf_counter()
    for offset in range(0, size_bytes, len(block)):
        os.pwrite(fd, block, offset)
    return megabytes_per_second(size_bytes, time.perf_counter() - started_s)


def _sync_each(fd: int, count: int) -> Quantity:
    page = os.urandom(PAGE_BYTES)
    took_s = []
    for index in range(count):
        started_s = time.perf_counter()
        os.pwrite(fd, page, index * PAGE_BYTES)
        os.fdatasync(fd)
        took_s.append(time.perf_counter() - started_s)
    return microseconds(statistics.median(took_s))


# Memory and checksums.


def memory_copy(*, size_bytes: int = 64 * MIB, duration_s: float = 0.3) -> Quantity:
    """memcpy between two buffers that are larger than the cache and touched before."""
    source = np.ones(size_bytes, dtype=np.uint8)
    sink = np.zeros(size_bytes, dtype=np.uint8)
    sink[:] = source
    return megabytes_per_second(size_bytes, _seconds_a_call(lambda: np.copyto(sink, source), duration_s))


def crc32c_bandwidth(*, size_bytes: int = MIB, duration_s: float = 0.2) -> Quantity:
    block = os.urandom(size_bytes)
    return megabytes_per_second(size_bytes, _seconds_a_call(lambda: google_crc32c.value(block), duration_s))


def crc32c_call(*, size_bytes: int = KIB, count: int = 200_000) -> Quantity:
    """One call for a small block, as Python pays for it."""
    block = os.urandom(size_bytes)
    started_s = time.perf_counter()
    deque(map(google_crc32c.value, itertools.repeat(block, count)), maxlen=0)  # no loop of Python's in between
    return microseconds((time.perf_counter() - started_s) / count)


def _seconds_a_call(call: Callable[[], object], duration_s: float) -> float:
    calls = 0
    started_s = now_s = time.perf_counter()
    while calls == 0 or now_s - started_s < duration_s:
        call()
        calls += 1
        now_s = time.perf_counter()
    return (now_s - started_s) / calls


# The benchmark: all of them.


def tcp_name(pair: TcpPair, *, congestion: str = "reno") -> str:
    """The row of the limit that others are compared with; it says which language measured it."""
    return f"loopback TCP, {congestion} ({pair.language} pair)"


def ping_pong_name(pair: TcpPair) -> str:
    return f"TCP ping-pong of 1 KiB, p50 ({pair.language} pair)"


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    pair = tcp_pair.build(settings.directory)
    directory = settings.directory
    duration_s = settings.pick(1.0, quick=0.3)
    file_bytes = settings.pick(256 * MIB, quick=64 * MIB)
    syncs = settings.pick(200, quick=50)

    reno = tcp_name(pair)
    reno_tuned = f"loopback TCP, reno, kernel's buffers ({pair.language} pair)"
    default = tcp_name(pair, congestion=KERNEL_DEFAULT)
    default_tuned = f"loopback TCP, default, kernel's buffers ({pair.language} pair)"
    fresh, cached = "page cache, fresh pages", "page cache, over cached pages"
    as_found = "fresh memory, as the machine has it"
    prewritten = "fdatasync 4 KiB, prewritten"
    fallocated = "fdatasync 4 KiB, fallocated"
    growing = "fdatasync 4 KiB, growing"
    yield Plan(
        measures=(
            Measure(reno, lambda: tcp_bandwidth(pair, duration_s=duration_s)),
            Measure(default, lambda: tcp_bandwidth(pair, congestion=KERNEL_DEFAULT, duration_s=duration_s)),
            Measure(
                reno_tuned,
                lambda: tcp_bandwidth(pair, receive_buffer_bytes=KERNEL_TUNED, duration_s=duration_s),
            ),
            Measure(
                default_tuned,
                lambda: tcp_bandwidth(
                    pair,
                    congestion=KERNEL_DEFAULT,
                    receive_buffer_bytes=KERNEL_TUNED,
                    duration_s=duration_s,
                ),
            ),
            Measure(ping_pong_name(pair), lambda: tcp_ping_pong(pair, duration_s=duration_s)),
            Measure(as_found, lambda: claim_free_pages(size_bytes=file_bytes)),
            Measure(fresh, lambda: page_cache_write(directory, cached=False, size_bytes=file_bytes)),
            Measure(cached, lambda: page_cache_write(directory, cached=True, size_bytes=file_bytes)),
            Measure(prewritten, lambda: fdatasync_prewritten(directory, count=syncs)),
            Measure(fallocated, lambda: fdatasync_fallocated(directory, count=syncs)),
            Measure(growing, lambda: fdatasync_growing(directory, count=syncs)),
            Measure("memcpy", memory_copy),
            Measure("crc32c, 1 MiB", crc32c_bandwidth),
            Measure("crc32c, 1 KiB", crc32c_call),
        ),
        comparisons=(
            Comparison(default, reno),
            Comparison(reno_tuned, reno),
            Comparison(default_tuned, reno),
            Comparison(fresh, cached),
            Comparison(as_found, cached),
            Comparison(fallocated, prewritten),
            Comparison(growing, prewritten),
        ),
    )


if __name__ == "__main__":
    sys.exit(harness.main("limits", __doc__, prepare))
