"""The command line and the environment of a local cluster's etcd. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from neve.tools.local.layout import HOST

NAME = "local"
# A laptop's disk may stall for a moment; a single member has no other to be elected, so a long timeout costs nothing.
HEARTBEAT_MS, ELECTION_MS = 100, 1000
QUOTA_BYTES = 2 << 30


def arguments(*, data: str, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{HOST}:{client_port}", f"http://{HOST}:{peer_port}"
    return [
        f"--name={NAME}",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={NAME}={peer}",
        f"--heartbeat-interval={HEARTBEAT_MS}",
        f"--election-timeout={ELECTION_MS}",
        f"--quota-backend-bytes={QUOTA_BYTES}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
    ]


def environment(inherited: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in inherited if not name.startswith("ETCD_")}
