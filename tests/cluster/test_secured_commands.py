"""A cluster that speaks TLS everywhere, on an etcd with TLS and passwords: the commands reach it by their options, and
say in one sentence what is missing otherwise."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from neve.meta.etcd.config import EtcdTls
from tests.cluster.etcd import EtcdCluster, EtcdServerTls, dying_with_parent, free_ports
from tests.cluster.local_cluster import NEVE, STREAM_CLIENT, TIMEOUT_S
from tests.cluster.stream_cluster import ServerProcess
from tests.cluster.test_etcd_security import enable_users
from tests.unit.rpc.certs import Authority

pytestmark = pytest.mark.slow

CLUSTER = "main"
PASSWORD = "secret"


class Secured:
    """One manager and one node; mutual TLS on every connection."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.authority = Authority(folder, "ours")
        self.cert, self.key = self.authority.issue("anybody")
        ca, cert, key = self.authority.ca, self.cert, self.key
        etcd = stack.enter_context(EtcdCluster(tls=EtcdServerTls(ca=ca, cert=cert, key=key)))
        tls = EtcdTls(ca_file=ca, cert_file=cert, key_file=key)
        asyncio.run(enable_users(etcd.endpoints[0], prefix=f"/{CLUSTER}/".encode(), password=PASSWORD, tls=tls))
        manager_port, node_port = free_ports(2)
        self.manager = f"127.0.0.1:{manager_port}"
        listen_tls = {"listen.tls.ca": ca, "listen.tls.cert": cert, "listen.tls.key": key}
        manager = {
            "cluster": CLUSTER,
            "listen.wire": self.manager,
            "etcd.endpoints": f'["https://{etcd.endpoints[0]}"]',
            "etcd.tls.ca_file": ca,
            "etcd.tls.cert_file": cert,
            "etcd.tls.key_file": key,
            "etcd.user": "neve",
            "etcd.password": PASSWORD,
            **listen_tls,
        }
        node = {
            "cluster": CLUSTER,
            "node_id": 1,
            "format_empty_disks": "true",
            "disks": f'["{folder / "disk"}"]',
            "journal": folder / "journal",
            "listen.wire": f"127.0.0.1:{node_port}",
            "managers": f'["{self.manager}"]',
            **listen_tls,
        }
        for module, settings in (("neve.stream_manager", manager), ("neve.extent_node", node)):
            words = [word for key_, value in settings.items() for word in ("--set", f"{key_}={value}")]
            server = ServerProcess(module, [sys.executable, "-m", module, *words], folder / f"{module}.log")
            server.start()
            stack.callback(server.kill)
        self._await_node()

    def wire(self) -> tuple[str, ...]:
        return ("--ca", str(self.authority.ca), "--cert", str(self.cert), "--key", str(self.key))

    def etcd(self) -> tuple[str, ...]:
        files = ("--etcd-ca", str(self.authority.ca), "--etcd-cert", str(self.cert), "--etcd-key", str(self.key))
        return (*files, "--etcd-user", "neve")

    def run(
        self, program: tuple[str, ...], *words: str, code: int = 0, stdin: str = "", password: str = PASSWORD
    ) -> tuple[str, str]:
        ran = subprocess.run(
            dying_with_parent(*program, *words, "--managers", self.manager, "--timeout", "5"),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "NEVE_ETCD_PASSWORD": password},
        )
        assert ran.returncode == code, (words, ran.returncode, ran.stdout, ran.stderr)
        return ran.stdout, ran.stderr

    def refused(self, *words: str, code: int = 1, password: str = PASSWORD) -> str:
        out, err = self.run(STREAM_CLIENT, *words, code=code, stdin="late", password=password)
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("stream-client: ")
        return err

    def _await_node(self) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            ran = subprocess.run(
                [*NEVE, "nodes", "--json", "--managers", self.manager, *self.wire()], capture_output=True, text=True
            )
            if ran.returncode == 0 and len(json.loads(ran.stdout)) == 1:
                return
            time.sleep(0.2)
        raise AssertionError("no node has registered")


@pytest.fixture(scope="module")
def secured(module_tmp_path: Path) -> Iterator[Secured]:
    with ExitStack() as stack:
        yield Secured(module_tmp_path, stack)


def test_with_its_options_every_command_works(secured: Secured) -> None:
    both = (*secured.wire(), *secured.etcd())
    secured.run(STREAM_CLIENT, "create", "events", "--replicas", "1", *both)
    secured.run(STREAM_CLIENT, "append", "events", *both, stdin="one\ntwo\n")
    assert secured.run(STREAM_CLIENT, "read", "events", *secured.wire(), password="")[0] == "one\ntwo\n"
    streams = json.loads(secured.run(NEVE, "streams", "--json", *secured.wire())[0])
    assert [stream["name"] for stream in streams] == ["events"]


def test_what_is_missing_is_said_in_one_sentence(secured: Secured) -> None:
    both = (*secured.wire(), *secured.etcd())
    secured.run(STREAM_CLIENT, "create", "other", "--replicas", "1", *both)
    assert "it speaks TLS, --ca is needed" in secured.refused("list", *secured.etcd())
    assert "perhaps --cert and --key too" in secured.refused("list", "--ca", str(secured.authority.ca), password="")
    assert "require TLS" in secured.refused("append", "other", *secured.wire(), password="")
    wrong = secured.refused("append", "other", *both, password="wrong")
    assert "etcd refuses the user 'neve'" in wrong
    assert "wrong" not in wrong.replace("wrong password", "")
    nameless = secured.etcd()[:-2]
    assert "etcd refuses a client without a user" in secured.refused(
        "append", "other", *secured.wire(), *nameless, password=""
    )


def test_files_that_cannot_be_used_are_wrong_usage(secured: Secured, tmp_path: Path) -> None:
    ca, cert, key = map(str, (secured.authority.ca, secured.cert, secured.key))
    assert "--cert and --key go together" in secured.refused("list", "--ca", ca, "--cert", cert, code=2, password="")
    assert "need --ca" in secured.refused("list", "--cert", cert, "--key", key, code=2, password="")
    assert "absent.pem: No such file" in secured.refused(
        "list", "--ca", str(tmp_path / "absent.pem"), code=2, password=""
    )
    (tmp_path / "empty.pem").write_text("nothing")
    assert "empty.pem: not a certificate and key that belong together" in secured.refused(
        "list", "--ca", str(tmp_path / "empty.pem"), code=2, password=""
    )
    stranger = Authority(tmp_path, "stranger")
    assert "certificate" in secured.refused("list", "--ca", str(stranger.ca), password="")
