"""The wire against grpc.aio: the same servicer and the same callers, each end a process on uvloop.

Bulk bytes go one way and a small reply comes back, as in an append. Each transport has one channel.

    python -m tests.bench.rpc --quick
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.bench import harness, limits, processes
from tests.bench.baselines import tcp_pair
from tests.bench.harness import Measure, Plan, Settings
from tests.bench.limits import KIB, MIB
from tests.bench.processes import Child
from tests.bench.report import Comparison, Quantity, at_least, at_most

SMALL_BYTES = 1 * KIB
SMALL_WINDOW = 256
LARGE_BYTES = 256 * KIB
LARGE_WINDOW = 32
HUGE_BYTES = 1 * MIB
HUGE_WINDOW = 16

ANSWER_TIMEOUT_S = 60.0  # beyond the sample's own time: the calls in flight at its end still have to be answered

# How each transport is called in rows. "grpc.aio" is the bare library, the fair opponent; "grpc edge" is
# `rpc.grpc_server`, the same with our errors, limits and authentication.
NAMES = {"wire": "wire", "bare_grpc": "grpc.aio", "grpc": "grpc edge"}


class Client:
    """Takes samples with one channel to one server, both in processes of their own."""

    def __init__(self, child: Child, server: Child) -> None:
        self._child = child
        self._server = server

    def calls_per_second(self, *, duration_s: float) -> Quantity:
        return Quantity(self._flood("rate", SMALL_BYTES, SMALL_WINDOW, duration_s), "calls/s")

    def cpu_of_a_call(self, *, duration_s: float) -> Quantity:
        """Processor time of both ends: unlike the rate, it hardly moves when other work shares the machine."""
        before_s = self._child.cpu_s() + self._server.cpu_s()
        calls = self._flood("count", SMALL_BYTES, SMALL_WINDOW, duration_s)
        return limits.microseconds((self._child.cpu_s() + self._server.cpu_s() - before_s) / calls)

    def bandwidth(self, *, size_bytes: int, window: int, duration_s: float) -> Quantity:
        return limits.megabytes_per_second(size_bytes * self._flood("rate", size_bytes, window, duration_s), 1.0)

    def latency(self, *, duration_s: float) -> Quantity:
        order = {"case": "latency", "attachment_bytes": SMALL_BYTES, "duration_s": duration_s}
        return limits.microseconds(self._child.ask(order, timeout_s=duration_s + ANSWER_TIMEOUT_S))

    def _flood(self, case: str, size_bytes: int, window: int, duration_s: float) -> float:
        order = {
            "case": case,
            "attachment_bytes": size_bytes,
            "window": window,
            "duration_s": duration_s,
        }
        return self._child.ask(order, timeout_s=duration_s + ANSWER_TIMEOUT_S)


def start_client(transport: str, stack: ExitStack) -> Client:
    server = stack.enter_context(processes.start("tests.bench.baselines.echo_server", transport))
    address = server.read_line()
    client = stack.enter_context(processes.start("tests.bench.baselines.echo_client", transport, address))
    return Client(client, server)


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    pair = tcp_pair.build(settings.directory)
    duration_s = settings.pick(1.5, quick=0.4)
    tcp, ping_pong = limits.tcp_name(pair), limits.ping_pong_name(pair)
    with ExitStack() as stack:
        clients = {name: start_client(transport, stack) for transport, name in NAMES.items()}

        def each(row: str, sample: Callable[[Client], Quantity]) -> list[Measure]:
            return [Measure(f"{name}, {row}", partial(sample, client)) for name, client in clients.items()]

        rate, large, latency = "1 KiB pipelined", "256 KiB", "one 1 KiB call at a time, p50"
        cpu, huge = "CPU of a 1 KiB call, both ends", "wire, 1 MiB"
        yield Plan(
            measures=[
                *each(rate, lambda client: client.calls_per_second(duration_s=duration_s)),
                *each(cpu, lambda client: client.cpu_of_a_call(duration_s=duration_s)),
                *each(
                    large,
                    lambda client: client.bandwidth(size_bytes=LARGE_BYTES, window=LARGE_WINDOW, duration_s=duration_s),
                ),
                *each(latency, lambda client: client.latency(duration_s=duration_s)),
                Measure(
                    huge,
                    lambda: clients["wire"].bandwidth(size_bytes=HUGE_BYTES, window=HUGE_WINDOW, duration_s=duration_s),
                ),
                Measure(tcp, lambda: limits.tcp_bandwidth(pair, duration_s=duration_s / 2)),
                Measure(ping_pong, lambda: limits.tcp_ping_pong(pair, duration_s=duration_s / 2)),
            ],
            comparisons=[
                Comparison(f"wire, {rate}", f"grpc.aio, {rate}", at_least(8)),
                Comparison(f"wire, {large}", f"grpc.aio, {large}", at_least(2.5)),
                Comparison(f"wire, {latency}", f"grpc.aio, {latency}", at_most(0.5)),
                Comparison(f"wire, {cpu}", f"grpc.aio, {cpu}"),
                Comparison(huge, tcp),
                Comparison(f"wire, {latency}", ping_pong, name="wire, one call, p50, against TCP"),
                Comparison(f"grpc edge, {rate}", f"grpc.aio, {rate}"),
                Comparison(f"grpc edge, {cpu}", f"grpc.aio, {cpu}"),
                Comparison(f"grpc edge, {large}", f"grpc.aio, {large}"),
                Comparison(f"grpc edge, {latency}", f"grpc.aio, {latency}"),
            ],
        )


if __name__ == "__main__":
    sys.exit(harness.main("rpc", __doc__, prepare))
