"""What `make demo` shows: a real etcd, a leader elected and deposed, and one servicer on three transports.

python examples/demo.py       exit code 0 when everything was as it should be; nothing is left running
"""

from __future__ import annotations

import contextlib
import logging
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """One etcd on free ports of this machine; stopped at the end."""
    binary = find_etcd()
    client_port, peer_port = free_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    command: list[str | Path] = [
        binary.path,
        "--name",
        "demo",
        "--data-dir",
        folder / "etcd",
        "--logger",
        "zap",
        "--log-level",
        "error",
    ]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"demo={peer}"]
    with (folder / "etcd.log").open("wb") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"etcd did not start:\n{(folder / 'etcd.log').read_text()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", client_port), timeout=1):
                break
            time.sleep(0.05)
        print(f"etcd {binary.version} serves on 127.0.0.1:{client_port}\n")
        yield f"127.0.0.1:{client_port}"
    finally:
        process.terminate()
        process.wait(timeout=START_TIMEOUT_S)


def show(title: str, *command: str) -> int:
    print(f"--- {title}", flush=True)
    code = subprocess.run([sys.executable, *command], check=False).returncode
    print(flush=True)
    return code


def main() -> int:
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
