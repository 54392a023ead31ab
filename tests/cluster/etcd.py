"""Real etcd processes for tests: start one or three, kill, pause and restart them, and leave nothing behind.

Invariants: no process outlives its test run, not even one that is killed: each child asks the kernel to be killed
            with its parent (PR_SET_PDEATHSIG);
            ports are chosen by the kernel, and a clash with another run is tried again with new ones.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from neve.meta.etcd.binary import find_etcd

START_TIMEOUT_S = 60.0  # a bound for a very slow machine, not an expectation
STARTS_MAX = 5
HEARTBEAT_MS = 100
ELECTION_MS = 1000  # a leader is replaced within about two seconds; the shortest lease is 2 s

# Runs before etcd in the child: no preexec_fn, which is not safe in a process with threads (gRPC has some).
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background of a script inherit that it is ignored
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


class PortClash(Exception):
    """Somebody else took a port between our looking and etcd's binding."""


def dying_with_parent(*command: str | Path) -> list[str]:
    """The command line that runs `command` so that it is killed when this process ends."""
    return [sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, str(os.getpid()), *map(str, command)]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class EtcdProcess:
    """One member. `endpoint` is for clients."""

    def __init__(
        self, name: str, folder: Path, client_port: int, peer_port: int, *, tls_args: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{client_port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self._folder = folder
        self._tls_args = tls_args
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self, peers: dict[str, str], *, extra_args: tuple[str, ...] = ()) -> None:
        scheme = "https" if self._tls_args else "http"
        url = f"{scheme}://{self.endpoint}"
        command = dying_with_parent(
            find_etcd().path,
            f"--name={self.name}",
            f"--data-dir={self._folder / self.name}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            "--initial-cluster=" + ",".join(f"{name}={peer}" for name, peer in peers.items()),
            f"--heartbeat-interval={HEARTBEAT_MS}",
            f"--election-timeout={ELECTION_MS}",
            "--logger=zap",
            "--log-level=warn",
            "--bcrypt-cost=4",
            *self._tls_args,
            *extra_args,
        )
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_bare_environment()
            )

    def wait_healthy(self, tls: ssl.SSLContext | None = None) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._healthy(tls):
            if self._process.poll() is not None:
                text = self.log_path.read_text(errors="replace")
                if "address already in use" in text:
                    raise PortClash(self.endpoint)
                raise RuntimeError(f"etcd {self.name} ended with {self._process.returncode}:\n{text[-4000:]}")
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"etcd {self.name} is not healthy:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(0.05)

    def _healthy(self, tls: ssl.SSLContext | None) -> bool:
        connection = (
            http.client.HTTPSConnection(self.endpoint, timeout=5, context=tls)
            if tls
            else http.client.HTTPConnection(self.endpoint, timeout=5)
        )
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return bool(json.loads(answer).get("health") == "true")

    def is_leader(self) -> bool:
        """By etcd's own word, over its JSON gateway."""
        connection = http.client.HTTPConnection(self.endpoint, timeout=5)
        try:
            connection.request("POST", "/v3/maintenance/status", body="{}")
            status = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return bool(status.get("leader") == status["header"]["member_id"])

    def kill(self) -> None:
        """As a crash: SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class EtcdCluster:
    """One or three members with their data in a temporary folder; a context that cleans up."""

    def __init__(self, size: int = 1, *, extra_args: tuple[str, ...] = (), tls: EtcdServerTls | None = None) -> None:
        self._extra_args = extra_args
        self._tls = tls
        for start in range(STARTS_MAX):
            self._folder = Path(tempfile.mkdtemp(prefix="neve-etcd-"))
            self.members = self._make_members(size)
            try:
                for member in self.members:
                    member.start(self._peers(), extra_args=extra_args)
                for member in self.members:
                    member.wait_healthy(tls.context if tls else None)
            except PortClash:
                self.close()
                if start == STARTS_MAX - 1:
                    raise
            except BaseException:
                self.close()
                raise
            else:
                return

    def _make_members(self, size: int) -> list[EtcdProcess]:
        ports = free_ports(2 * size)
        args = self._tls.args if self._tls else ()
        return [EtcdProcess(f"m{i}", self._folder, ports[2 * i], ports[2 * i + 1], tls_args=args) for i in range(size)]

    def _peers(self) -> dict[str, str]:
        return {member.name: member.peer_url for member in self.members}

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    @property
    def leader(self) -> EtcdProcess:
        return next(member for member in self.members if member.is_leader())

    def restart(self, member: EtcdProcess) -> None:
        """Start a killed member again on its data and its ports."""
        member.start(self._peers(), extra_args=self._extra_args)
        member.wait_healthy(self._tls.context if self._tls else None)

    def close(self) -> None:
        for member in self.members:
            member.kill()  # SIGKILL ends a paused process too
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EtcdServerTls:
    """The arguments that make etcd ask for client certificates, and a context to ask for its health with."""

    def __init__(self, *, ca: Path, cert: Path, key: Path) -> None:
        self.args = (
            f"--cert-file={cert}",
            f"--key-file={key}",
            f"--trusted-ca-file={ca}",
            "--client-cert-auth",
        )
        self.context = ssl.create_default_context(cafile=str(ca))
        self.context.load_cert_chain(cert, key)


@contextmanager
def child_process(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program of ours that talks in lines on its standard input and output, ended with the context."""
    process = subprocess.Popen(
        dying_with_parent(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _bare_environment() -> dict[str, str]:
    """etcd reads every flag from ETCD_… too: what happens to be set here must not change a test."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
