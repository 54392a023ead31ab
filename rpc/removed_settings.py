"""The settings that were removed in this release, and their replacements.

If a configuration file, a `--set` or a keyword of the client's options still names one, its value is ignored with a
warning. The next release empties this table and refuses such a name like any other unknown one.

Invariants: no name in this table is a field of its dataclass.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# By package and dataclass, then by field.
REMOVED: dict[str, dict[str, str]] = {
    "client.ClientOptions": {
        "committed_again_s": "fixed at 10 s",
        "extents_cached_max": "fixed at 10,000",
        "frame_segments_max": "fixed at 128",
        "prepare_at": "fixed at 0.8",
        "rolls_max": "fixed at 8",
        "speculative_delay_s_min": "fixed at 5 ms",
    },
    "client.KeyValueOptions": {
        "operation_cost_bytes": "fixed at 512",
        "writes_open_max": "fixed at 16,000",
    },
    "meta.EtcdConfig": {
        "keepalive_period_s": "fixed at 10 s",
        "keepalive_timeout_s": "fixed at 5 s",
        "message_bytes_max": "fixed at 64 MiB",
    },
    "partition_manager.BalanceConfig": {"moves_max": "fixed at 2"},
    "partition_manager.Limits": {
        "page_max": "fixed at 1,000",
        "bootstrap_regions_max": "fixed at 100",
        "moves_max": "fixed at 60",
        "streams_at_once": "fixed at 12",
        "waiting_max": "fixed at 10,000",
    },
    "partition_manager.Timeouts": {"known_s": "fixed at 10 s"},
    "partition_server.EngineConfig": {
        "batch_operations_max": "fixed at 10,000",
        "bloom_bits_per_key": "fixed at 10",
        "get_bytes_max": "fixed at 32 MiB",
        "scan_bytes_max": "fixed at 4 MiB",
        "scan_keys_max": "fixed at 10,000",
        "session_idle_s": "fixed at 600 s",
        "session_results_max": "fixed at 16,384",
        "session_results_total_max": "fixed at 50,000",
        "snapshot_age_s": "fixed at 300 s",
        "snapshot_idle_s": "fixed at 30 s",
    },
    "partition_server.Serving": {"drain_s": "fixed at 2 s", "load_retry_s_min": "fixed at 50 ms"},
    "stream_manager.Collecting": {"deletes_max": "fixed at 1,000"},
    "stream_manager.Limits": {
        "replicas_max": "fixed at 7",
        "stream_extents_max": "fixed at 50,000",
        "labels_max": "fixed at 32",
        "label_chars_max": "fixed at 256",
        "name_chars_max": "fixed at 256",
        "page_max": "fixed at 1,000",
        "ids_max": "fixed at 10,000",
        "batches_in_flight_max": "fixed at 4",
        "replay_kept_s": "fixed at 900 s",
        "replay_records_max": "fixed at 500,000",
    },
    "stream_manager.Timeouts": {"suspect_call_s": "fixed at 1 s"},
}


def removed_from(cls: type) -> Mapping[str, str]:
    """The fields that were removed from a dataclass of Neve: field → its replacement."""
    package = cls.__module__.removeprefix("neve.").partition(".")[0]
    return REMOVED.get(f"{package}.{cls.__name__}", {})


def without_removed(cls: type, table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The table of a configuration without the removed keys, each of which is logged. `where` is the table's path."""
    removed = removed_from(cls)
    for key in table:
        if key in removed:
            path = f"{where}.{key}" if where else key
            log.warning("setting_removed key=%s: it is %s; delete it, the next release refuses it", path, removed[key])
    return {key: value for key, value in table.items() if key not in removed}


def ignores_removed(cls: type[T]) -> type[T]:
    """Decorates a dataclass that programs construct: removed keywords are ignored with a FutureWarning."""
    removed = removed_from(cls)
    construct = cls.__init__

    @functools.wraps(construct)
    def __init__(self: T, *args: Any, **fields: Any) -> None:  # noqa: N807
        for name in removed.keys() & fields.keys():
            text = f"{cls.__name__}.{name} is {removed[name]}; leave it out, the next release refuses it"
            warnings.warn(text, FutureWarning, stacklevel=2)
            del fields[name]
        construct(self, *args, **fields)

    cls.__init__ = __init__  # type: ignore[method-assign,assignment]
    return cls
