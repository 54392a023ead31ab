"""What `make demo` shows: a real etcd, a leader elected and deposed, and one servicer on three transports.

python examples/demo.py       exit code 0 when everything was as it should be; nothing is left running
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from neve.meta.etcd_binary import find_etcd

HERE = Path(__file__).parent
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
STARTS_MAX = 5  # somebody may take a port between our looking and etcd's binding

# Runs before etcd in the child: the kernel kills it with us, even if we are killed ourselves (PR_SET_PDEATHSIG).
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def start_etcd(path: Path, folder: Path, client_port: int, peer_port: int) -> subprocess.Popen[bytes]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command = [sys.executable, "-S", "-E", "-c", DIE_WITH_PARENT, str(os.getpid()), str(path)]
    command += ["--name", "demo", "--data-dir", str(folder / "data"), "--logger", "zap", "--log-level", "error"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"demo={peer}"]
    # etcd reads every flag from ETCD_... too: what happens to be set here is for another etcd.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with (folder / "etcd.log").open("wb") as log_file:
        return subprocess.Popen(command, stdout=log_file, stderr=log_file, env=environment)


def serves(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until etcd accepts connections; False if it ends or takes too long."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """One etcd on free ports of this machine; stopped at the end."""
    binary = find_etcd()
    for start in range(1, STARTS_MAX + 1):
        client_port, peer_port = free_ports(2)
        own_folder = folder / f"etcd-{start}"
        own_folder.mkdir()
        process = start_etcd(binary.path, own_folder, client_port, peer_port)
        try:
            if serves(process, client_port):
                print(f"etcd {binary.version} serves on 127.0.0.1:{client_port}\n", flush=True)
                yield f"127.0.0.1:{client_port}"
                return
        finally:
            stop(process)
        words = (own_folder / "etcd.log").read_text(errors="replace")
        if "address already in use" not in words or start == STARTS_MAX:
            sys.exit(f"etcd did not start:\n{words}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and make it end if it does not."""
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def show(title: str, *command: str) -> int:
    print(f"--- {title}", flush=True)
    process = subprocess.Popen([sys.executable, *command])
    try:
        code = process.wait()
    except BaseException:
        stop(process)
        raise
    print(flush=True)
    return code


def main() -> int:
    # As an exception, so that etcd is stopped and the folder removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    with tempfile.TemporaryDirectory(prefix="neve-demo-") as folder, running_etcd(Path(folder)) as endpoint:
        election = show("Election: who may write", str(HERE / "election.py"), endpoint)
    transports = show("Transports: one servicer, three ways to call it", str(HERE / "transports.py"))
    if election or transports:
        print("the demo FAILED: see above")
        return 1
    print("all as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
