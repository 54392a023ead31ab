"""The keys of a cluster that more than one kind of process uses. In this module a region is a key range.

/<cluster>/leader/…               the election of the stream managers
/<cluster>/partition-manager/…    the election of the partition managers
/<cluster>/partition-servers/ID   PartitionServerEntry, on the server's lease
/<cluster>/region-map             RegionMapRecord: the version of the map, and the last calls that changed it
/<cluster>/regions/ID             RegionRecord
"""

from __future__ import annotations

from neve.meta.txn import KeyRange

PARTITION_SERVERS = b"partition-servers/"
REGION_MAP = b"region-map"
REGIONS = b"regions/"
PARTITION_MANAGERS = b"partition-manager"


def root_of(cluster: str) -> bytes:
    """The prefix of all keys of a cluster."""
    return f"/{cluster}/".encode()


def id_text(number: int) -> bytes:
    """Sixteen hex digits, so that the order of keys is the order of ids."""
    return b"%016x" % number


def region_key(root: bytes, partition_id: int) -> bytes:
    return root + REGIONS + id_text(partition_id)


def partition_server_key(root: bytes, server_id: int) -> bytes:
    return root + PARTITION_SERVERS + id_text(server_id)


def region_map_key(root: bytes) -> bytes:
    return root + REGION_MAP


def region_ranges(root: bytes) -> list[KeyRange]:
    return [
        KeyRange(region_map_key(root)),
        KeyRange.prefix(root + REGIONS),
        KeyRange.prefix(root + PARTITION_SERVERS),
    ]


def region_span(root: bytes) -> KeyRange:
    """One range that contains all of `region_ranges`, so that one watch delivers their changes in one order."""
    return KeyRange(root + PARTITION_SERVERS, KeyRange.prefix(root + REGIONS).end)


def partition_lock(partition_id: int) -> str:
    """The name of the lock that the streams of a partition share."""
    return f"partition/{partition_id:016x}"
