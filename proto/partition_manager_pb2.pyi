from neve.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Region(_message.Message):
    __slots__ = ("partition_id", "start", "end", "server_id", "address", "version", "log_stream_id", "row_stream_id", "meta_stream_id")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    META_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    start: bytes
    end: bytes
    server_id: int
    address: str
    version: int
    log_stream_id: int
    row_stream_id: int
    meta_stream_id: int
    def __init__(self, partition_id: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., server_id: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[int] = ..., log_stream_id: _Optional[int] = ..., row_stream_id: _Optional[int] = ..., meta_stream_id: _Optional[int] = ...) -> None: ...

class RegionRecord(_message.Message):
    __slots__ = ("format", "partition_id", "start", "end", "server_id", "version", "log_stream_id", "row_stream_id", "meta_stream_id", "lock", "merged_manifests", "merged_at", "epoch")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    META_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    MERGED_MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    MERGED_AT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    format: int
    partition_id: int
    start: bytes
    end: bytes
    server_id: int
    version: int
    log_stream_id: int
    row_stream_id: int
    meta_stream_id: int
    lock: str
    merged_manifests: _containers.RepeatedCompositeFieldContainer[_common_pb2.Position]
    merged_at: int
    epoch: int
    def __init__(self, format: _Optional[int] = ..., partition_id: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., server_id: _Optional[int] = ..., version: _Optional[int] = ..., log_stream_id: _Optional[int] = ..., row_stream_id: _Optional[int] = ..., meta_stream_id: _Optional[int] = ..., lock: _Optional[str] = ..., merged_manifests: _Optional[_Iterable[_Union[_common_pb2.Position, _Mapping]]] = ..., merged_at: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReplayedCall(_message.Message):
    __slots__ = ("call", "method_id", "partition_ids", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    METHOD_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    method_id: int
    partition_ids: _containers.RepeatedScalarFieldContainer[int]
    version: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., method_id: _Optional[int] = ..., partition_ids: _Optional[_Iterable[int]] = ..., version: _Optional[int] = ...) -> None: ...

class RegionMapRecord(_message.Message):
    __slots__ = ("format", "version", "replayed", "balancing_paused")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    BALANCING_PAUSED_FIELD_NUMBER: _ClassVar[int]
    format: int
    version: int
    replayed: _containers.RepeatedCompositeFieldContainer[ReplayedCall]
    balancing_paused: bool
    def __init__(self, format: _Optional[int] = ..., version: _Optional[int] = ..., replayed: _Optional[_Iterable[_Union[ReplayedCall, _Mapping]]] = ..., balancing_paused: _Optional[bool] = ...) -> None: ...

class PartitionServerEntry(_message.Message):
    __slots__ = ("format", "server_id", "wire_address", "grpc_address", "version", "process_id")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    format: int
    server_id: int
    wire_address: str
    grpc_address: str
    version: _common_pb2.Version
    process_id: int
    def __init__(self, format: _Optional[int] = ..., server_id: _Optional[int] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., process_id: _Optional[int] = ...) -> None: ...

class ListRegionsRequest(_message.Message):
    __slots__ = ("version_min", "after_key", "limit")
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    AFTER_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    version_min: int
    after_key: bytes
    limit: int
    def __init__(self, version_min: _Optional[int] = ..., after_key: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRegionsReply(_message.Message):
    __slots__ = ("regions", "version", "more")
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    version: int
    more: bool
    def __init__(self, regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ..., version: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class PartitionLoad(_message.Message):
    __slots__ = ("partition_id", "reads_per_s", "writes_per_s", "bytes_per_s", "size_bytes", "keys")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    READS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WRITES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    reads_per_s: float
    writes_per_s: float
    bytes_per_s: float
    size_bytes: int
    keys: int
    def __init__(self, partition_id: _Optional[int] = ..., reads_per_s: _Optional[float] = ..., writes_per_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., size_bytes: _Optional[int] = ..., keys: _Optional[int] = ...) -> None: ...

class PartitionServerRecord(_message.Message):
    __slots__ = ("server_id", "wire_address", "grpc_address", "lease_id", "load", "version")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    wire_address: str
    grpc_address: str
    lease_id: int
    load: _containers.RepeatedCompositeFieldContainer[PartitionLoad]
    version: _common_pb2.Version
    def __init__(self, server_id: _Optional[int] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., lease_id: _Optional[int] = ..., load: _Optional[_Iterable[_Union[PartitionLoad, _Mapping]]] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...

class ListPartitionServersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPartitionServersReply(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[PartitionServerRecord]
    def __init__(self, servers: _Optional[_Iterable[_Union[PartitionServerRecord, _Mapping]]] = ...) -> None: ...

class BootstrapRequest(_message.Message):
    __slots__ = ("call", "split_keys")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    split_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., split_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BootstrapReply(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class RegisterPartitionServerRequest(_message.Message):
    __slots__ = ("call", "cluster", "server_id", "wire_address", "grpc_address", "lease_id", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    cluster: str
    server_id: int
    wire_address: str
    grpc_address: str
    lease_id: int
    version: _common_pb2.Version
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., cluster: _Optional[str] = ..., server_id: _Optional[int] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., lease_id: _Optional[int] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...

class RegisterPartitionServerReply(_message.Message):
    __slots__ = ("server_id",)
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    def __init__(self, server_id: _Optional[int] = ...) -> None: ...

class PartitionHeartbeatRequest(_message.Message):
    __slots__ = ("server_id", "load")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    load: _containers.RepeatedCompositeFieldContainer[PartitionLoad]
    def __init__(self, server_id: _Optional[int] = ..., load: _Optional[_Iterable[_Union[PartitionLoad, _Mapping]]] = ...) -> None: ...

class PartitionHeartbeatReply(_message.Message):
    __slots__ = ("regions_version",)
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    regions_version: int
    def __init__(self, regions_version: _Optional[int] = ...) -> None: ...

class SplitRegionRequest(_message.Message):
    __slots__ = ("call", "partition_id", "middle_key", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    middle_key: bytes
    version: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., middle_key: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SplitRegionReply(_message.Message):
    __slots__ = ("left", "right", "version")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    left: Region
    right: Region
    version: int
    def __init__(self, left: _Optional[_Union[Region, _Mapping]] = ..., right: _Optional[_Union[Region, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class MergeRegionsRequest(_message.Message):
    __slots__ = ("call", "left_partition_id", "right_partition_id", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEFT_PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    RIGHT_PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    left_partition_id: int
    right_partition_id: int
    version: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., left_partition_id: _Optional[int] = ..., right_partition_id: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MergeRegionsReply(_message.Message):
    __slots__ = ("region", "version")
    REGION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    region: Region
    version: int
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class MoveRegionRequest(_message.Message):
    __slots__ = ("call", "partition_id", "server_id", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    server_id: int
    version: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., server_id: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MoveRegionReply(_message.Message):
    __slots__ = ("region", "version")
    REGION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    region: Region
    version: int
    def __init__(self, region: _Optional[_Union[Region, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class SetBalancingRequest(_message.Message):
    __slots__ = ("call", "paused")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    paused: bool
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., paused: _Optional[bool] = ...) -> None: ...

class SetBalancingReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
