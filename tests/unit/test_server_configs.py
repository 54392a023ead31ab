"""Every server's configuration: a value that cannot be stops the start, and is named (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from neve.extent_node import config as node_config
from neve.gateway import config as gateway_config
from neve.partition_manager import config as partition_manager_config
from neve.partition_server import config as partition_server_config
from neve.proto.errors import InvalidArgument
from neve.stream_manager import config as manager_config

Load = Callable[[Path | None, Sequence[str]], object]

MANAGER = (manager_config.load, ["cluster=c", 'etcd.endpoints=["a:3"]'])
NODE = (node_config.load, ["cluster=c", 'disks=["/d"]', "journal=/j", "node_id=1"])
PARTITION_MANAGER = (partition_manager_config.load, ["cluster=c", 'stream_managers=["a:1"]'])
PARTITION_SERVER = (
    partition_server_config.load,
    ["cluster=c", 'stream_managers=["a:1"]', 'partition_managers=["a:2"]', "server_id=1"],
)
GATEWAY = (gateway_config.load, ["cluster=c", 'managers=["a:1"]'])

IMPOSSIBLE = [
    (MANAGER, "limits.requests_in_flight_max=0"),
    *((MANAGER, f"timeouts.node_call_s={value}") for value in ("-1", "0", "nan", "inf")),
    (MANAGER, "limits.requests_in_flight_max=-5"),
    (MANAGER, "topology=bogus"),
    (MANAGER, "recovery.delay_s=nan"),
    (MANAGER, "recovery.tasks_max=0"),
    (MANAGER, "collecting.grace_s=nan"),
    (MANAGER, "placing.free_bytes_min=-1"),
    (MANAGER, "health.stabilise_s=nan"),
    (MANAGER, "drain_timeout_s=-1"),
    (MANAGER, "etcd.call_timeout_s=0"),
    (MANAGER, "etcd.attempt_timeout_s=0"),
    (MANAGER, "listen.limits.keepalive_s=nan"),
    (NODE, "store.marks.high=5"),
    (NODE, "store.marks.high=nan"),
    (NODE, "store.marks.low=0.99"),
    (NODE, "store.usage_interval_s=0"),
    (NODE, "store.open_replicas_max=0"),
    (NODE, "scrub_bytes_per_s=-1"),
    (NODE, "heartbeat_s=nan"),
    (NODE, "node_id=-1"),
    (PARTITION_MANAGER, "timeouts.reshape_s=0"),
    (PARTITION_MANAGER, "limits.requests_in_flight_max=0"),
    (PARTITION_MANAGER, "start_grace_s=nan"),
    (PARTITION_MANAGER, "balance.imbalance_min=nan"),
    (PARTITION_SERVER, "heartbeat_s=0"),
    (PARTITION_SERVER, "memory_bytes_max=0"),
    (PARTITION_SERVER, "serving.hold_s=nan"),
    (GATEWAY, "limits.idle_timeout_s=inf"),
    (GATEWAY, "drain_timeout_s=-1"),
]


@pytest.mark.parametrize(("server", "assignment"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_name(server: tuple[Load, list[str]], assignment: str) -> None:
    load, needed = server
    load(None, needed)  # all else is right
    with pytest.raises(InvalidArgument) as refused:
        load(None, [*needed, assignment])
    assert assignment.partition("=")[0].rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("server", "assignment"),
    [
        (MANAGER, "recovery.delay_s=0"),
        (MANAGER, "topology=file:/etc/neve/topology.toml"),
        (MANAGER, "placing.free_bytes_min=0"),
        (NODE, "scrub_bytes_per_s=0"),
        (NODE, "store.preallocate_bytes=0"),
        (NODE, "store.trash_delay_s=0"),
    ],
)
def test_where_zero_means_something_it_is_taken(server: tuple[Load, list[str]], assignment: str) -> None:
    load, needed = server
    assert load(None, [*needed, assignment])
