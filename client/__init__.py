"""The public Python API: both clients, their synchronous twins, their value types and every error.

    from neve.client import Client, Position          # streams
    from neve.client import KeyValueClient            # objects

The `stream-client` command is in the sub-package `command`.
"""

from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.sync import SyncKeyValueClient
from neve.client.objects.transfer import ObjectStream
from neve.client.objects.types import Delete, Object, ObjectInfo, Put
from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.client.streams.sync import SyncClient, SyncWriter
from neve.client.streams.types import Extent, Position, Record, Replica, Stream
from neve.client.streams.writer import Writer, WriterStats
from neve.client.streams.writer_group import WriterGroup
from neve.proto.errors import (
    AcknowledgedLost,
    AlreadyExists,
    AppendOutcomeUnknown,
    ConditionFailed,
    Conflict,
    ConnectFailed,
    DeadlineExceeded,
    InvalidArgument,
    LeaseLost,
    LockedByOther,
    LockHeld,
    NeveError,
    NotEnoughNodes,
    NotFound,
    NotOwner,
    OutOfRange,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    ReplicaDamaged,
    SealUnavailable,
    ShuttingDown,
    StreamSealed,
    TooLarge,
    Unauthenticated,
    WrongCluster,
    WrongServer,
)

__all__ = [
    "AcknowledgedLost",
    "AlreadyExists",
    "AppendOutcomeUnknown",
    "Client",
    "ClientOptions",
    "ConditionFailed",
    "Conflict",
    "ConnectFailed",
    "DeadlineExceeded",
    "Delete",
    "Extent",
    "InvalidArgument",
    "KeyValueClient",
    "KeyValueOptions",
    "LeaseLost",
    "LockHeld",
    "LockedByOther",
    "NeveError",
    "NotEnoughNodes",
    "NotFound",
    "NotOwner",
    "Object",
    "ObjectInfo",
    "ObjectStream",
    "OutOfRange",
    "Overloaded",
    "PermissionDenied",
    "Position",
    "Put",
    "QuotaExceeded",
    "Record",
    "Replica",
    "ReplicaDamaged",
    "SealUnavailable",
    "ShuttingDown",
    "Stream",
    "StreamSealed",
    "SyncClient",
    "SyncKeyValueClient",
    "SyncWriter",
    "TooLarge",
    "Unauthenticated",
    "Writer",
    "WriterGroup",
    "WriterStats",
    "WrongCluster",
    "WrongServer",
]
