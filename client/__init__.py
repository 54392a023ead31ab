"""What users import: the stream client and its synchronous twin, the values they deal in, and every error.

    from neve.client import Client, Position

The command `stream-client` is in the package `command`.
"""

from neve.client.client import Client
from neve.client.options import ClientOptions
from neve.client.sync_client import SyncClient, SyncWriter
from neve.client.types import Extent, Position, Record, Replica, Stream
from neve.client.writer import Writer, WriterStats
from neve.client.writer_group import WriterGroup
from neve.proto.errors import (
    AlreadyExists,
    AppendOutcomeUnknown,
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
)

__all__ = [
    "AlreadyExists",
    "AppendOutcomeUnknown",
    "Client",
    "ClientOptions",
    "Conflict",
    "ConnectFailed",
    "DeadlineExceeded",
    "Extent",
    "InvalidArgument",
    "LeaseLost",
    "LockHeld",
    "LockedByOther",
    "NeveError",
    "NotEnoughNodes",
    "NotFound",
    "NotOwner",
    "OutOfRange",
    "Overloaded",
    "PermissionDenied",
    "Position",
    "QuotaExceeded",
    "Record",
    "Replica",
    "ReplicaDamaged",
    "SealUnavailable",
    "ShuttingDown",
    "Stream",
    "StreamSealed",
    "SyncClient",
    "SyncWriter",
    "TooLarge",
    "Unauthenticated",
    "Writer",
    "WriterGroup",
    "WriterStats",
    "WrongCluster",
]
