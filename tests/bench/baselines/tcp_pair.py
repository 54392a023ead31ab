"""What TCP over loopback can do, measured by a pair of processes: in C where there is a compiler, else in Python.

`build` returns the pair that this machine can run; both take the same arguments (tcp_pair.c states them) and print
one number, so that a caller sees only which language it was. Run as a program, this module is the Python pair.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.report import BenchError

SEND_BYTES = 1 << 20
PING_BYTES = 1 << 10
PINGS_WARM_UP = 200

KERNEL_DEFAULT = "default"  # as CONGESTION
KERNEL_TUNED = 0  # as RECEIVE_BUFFER

START_TIMEOUT_S = 30.0  # beyond the time asked for; a loaded machine may take seconds to start two processes


@dataclass(frozen=True, slots=True)
class TcpPair:
    command: tuple[str, ...]
    language: str

    def bandwidth(self, *, congestion: str, receive_buffer_bytes: int, duration_s: float) -> float:
        """Bytes per second in one direction, with sends of 1 MiB."""
        return self._run("bandwidth", congestion, receive_buffer_bytes, duration_s)

    def latency(self, *, congestion: str, duration_s: float) -> float:
        """The median round trip of 1 KiB between two cores, in seconds."""
        return self._run("latency", congestion, KERNEL_TUNED, duration_s)

    def _run(self, what: str, congestion: str, receive_buffer_bytes: int, duration_s: float) -> float:
        command = [*self.command, what, congestion, str(receive_buffer_bytes), str(duration_s)]
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[3],
                timeout=duration_s + START_TIMEOUT_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise BenchError(f"the pair that measures loopback TCP failed: {error.stderr.strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"loopback TCP did not finish in {error.timeout:.0f} s") from error
        return float(ran.stdout)


def build(directory: Path) -> TcpPair:
    """Compile the C pair into this folder, or fall back to Python when there is no compiler that can."""
    compiler = shutil.which("cc")
    source = Path(__file__).with_name("tcp_pair.c")
    if compiler is not None:
        program = directory / "tcp_pair"
        compiled = subprocess.run([compiler, "-O2", "-o", str(program), str(source)], capture_output=True, check=False)
        if compiled.returncode == 0:
            return TcpPair((str(program),), "C")
    return python_pair()


def python_pair() -> TcpPair:
    return TcpPair((sys.executable, "-m", "tests.bench.baselines.tcp_pair"), "Python")


def _stay_on_core(rank: int) -> None:
    """Run on the allowed core of this rank; tcp_pair.c says why."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) >= 2:
        os.sched_setaffinity(0, {allowed[rank]})


def _make_socket(congestion: str, receive_buffer_bytes: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if congestion != KERNEL_DEFAULT:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    if receive_buffer_bytes != KERNEL_TUNED:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return made


def _receive_all(peer: socket.socket, view: memoryview) -> bool:
    """False when the peer has closed."""
    received = 0
    while received < len(view):
        got = peer.recv_into(view[received:])
        if got == 0:
            return False
        received += got
    return True


def _send_for(peer: socket.socket, duration_s: float) -> None:
    block = b"n" * SEND_BYTES
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        peer.sendall(block)


def _bandwidth(peer: socket.socket) -> float:
    """Timed where the bytes arrive: what only filled a socket's buffer was not moved."""
    buffer = bytearray(SEND_BYTES)
    peer.recv_into(buffer)
    start_s, total_bytes = time.monotonic(), 0
    while got := peer.recv_into(buffer):
        total_bytes += got
    return total_bytes / (time.monotonic() - start_s)


def _echo(peer: socket.socket) -> None:
    _stay_on_core(1)
    view = memoryview(bytearray(PING_BYTES))
    while _receive_all(peer, view):
        peer.sendall(view)


def _latency(peer: socket.socket, duration_s: float) -> float:
    _stay_on_core(0)
    view = memoryview(bytearray(PING_BYTES))
    end_s = time.monotonic() + duration_s
    took_s: list[float] = []
    pings = 0
    while not took_s or time.monotonic() < end_s:
        start_s = time.monotonic()
        peer.sendall(view)
        if not _receive_all(peer, view):
            raise ConnectionError("the echo closed")
        if pings >= PINGS_WARM_UP:
            took_s.append(time.monotonic() - start_s)
        pings += 1
    return statistics.median(took_s)


def _main(argv: list[str]) -> int:
    what, congestion = argv[0], argv[1]
    receive_buffer_bytes, duration_s = int(argv[2]), float(argv[3])
    listener = _make_socket(congestion, receive_buffer_bytes)  # what it accepts inherits its options
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    address = listener.getsockname()
    child = os.fork()
    if child == 0:
        listener.close()
        with _make_socket(congestion, receive_buffer_bytes) as peer:
            peer.connect(address)
            if what == "bandwidth":
                _send_for(peer, duration_s)
            else:
                _echo(peer)
        os._exit(0)
    with listener:
        peer, _ = listener.accept()
    with peer:
        print(_bandwidth(peer) if what == "bandwidth" else _latency(peer, duration_s))
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
