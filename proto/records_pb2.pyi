from neve.proto import common_pb2 as _common_pb2
from neve.proto import extent_node_pb2 as _extent_node_pb2
from neve.proto import stream_manager_pb2 as _stream_manager_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Label(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class StreamRecord(_message.Message):
    __slots__ = ("format", "stream_id", "name", "lock", "extent_ids", "sealed", "policy", "labels", "version", "created_ms", "truncated_before", "young", "made_by", "linked_by", "after_hole")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    YOUNG_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    LINKED_BY_FIELD_NUMBER: _ClassVar[int]
    AFTER_HOLE_FIELD_NUMBER: _ClassVar[int]
    format: int
    stream_id: int
    name: str
    lock: str
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    sealed: bool
    policy: _stream_manager_pb2.StreamPolicy
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    version: int
    created_ms: int
    truncated_before: int
    young: _containers.RepeatedCompositeFieldContainer[ExtentRecord]
    made_by: StreamCall
    linked_by: StreamCall
    after_hole: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, format: _Optional[int] = ..., stream_id: _Optional[int] = ..., name: _Optional[str] = ..., lock: _Optional[str] = ..., extent_ids: _Optional[_Iterable[int]] = ..., sealed: _Optional[bool] = ..., policy: _Optional[_Union[_stream_manager_pb2.StreamPolicy, _Mapping]] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., version: _Optional[int] = ..., created_ms: _Optional[int] = ..., truncated_before: _Optional[int] = ..., young: _Optional[_Iterable[_Union[ExtentRecord, _Mapping]]] = ..., made_by: _Optional[_Union[StreamCall, _Mapping]] = ..., linked_by: _Optional[_Union[StreamCall, _Mapping]] = ..., after_hole: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamCall(_message.Message):
    __slots__ = ("client_id", "call_id", "method_id", "request_crc32c", "created_ms", "sealed_extent_id", "linked_extent_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CRC32C_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    SEALED_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    LINKED_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    call_id: int
    method_id: int
    request_crc32c: int
    created_ms: int
    sealed_extent_id: int
    linked_extent_id: int
    def __init__(self, client_id: _Optional[int] = ..., call_id: _Optional[int] = ..., method_id: _Optional[int] = ..., request_crc32c: _Optional[int] = ..., created_ms: _Optional[int] = ..., sealed_extent_id: _Optional[int] = ..., linked_extent_id: _Optional[int] = ...) -> None: ...

class ExtentRecord(_message.Message):
    __slots__ = ("format", "extent_id", "eversion", "replicas", "seal", "confirmed_node_ids", "all_took_part", "extent_bytes_max", "created_ms", "stream_id", "conflict")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_TOOK_PART_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    format: int
    extent_id: int
    eversion: int
    replicas: _containers.RepeatedCompositeFieldContainer[_common_pb2.Replica]
    seal: _common_pb2.Seal
    confirmed_node_ids: _containers.RepeatedScalarFieldContainer[int]
    all_took_part: bool
    extent_bytes_max: int
    created_ms: int
    stream_id: int
    conflict: bool
    def __init__(self, format: _Optional[int] = ..., extent_id: _Optional[int] = ..., eversion: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[_common_pb2.Replica, _Mapping]]] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., confirmed_node_ids: _Optional[_Iterable[int]] = ..., all_took_part: _Optional[bool] = ..., extent_bytes_max: _Optional[int] = ..., created_ms: _Optional[int] = ..., stream_id: _Optional[int] = ..., conflict: _Optional[bool] = ...) -> None: ...

class DiskEntry(_message.Message):
    __slots__ = ("disk_uuid", "state", "capacity_bytes")
    DISK_UUID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    disk_uuid: str
    state: _extent_node_pb2.DiskInfo.State
    capacity_bytes: int
    def __init__(self, disk_uuid: _Optional[str] = ..., state: _Optional[_Union[_extent_node_pb2.DiskInfo.State, str]] = ..., capacity_bytes: _Optional[int] = ...) -> None: ...

class NodeEntryRecord(_message.Message):
    __slots__ = ("format", "node_id", "wire_address", "grpc_address", "region", "rack", "zone", "labels", "disks", "mode", "mode_until_ms", "health", "process_id", "version", "registered_ms", "mode_reason")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_MS_FIELD_NUMBER: _ClassVar[int]
    MODE_REASON_FIELD_NUMBER: _ClassVar[int]
    format: int
    node_id: int
    wire_address: str
    grpc_address: str
    region: str
    rack: str
    zone: str
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    disks: _containers.RepeatedCompositeFieldContainer[DiskEntry]
    mode: _stream_manager_pb2.NodeMode
    mode_until_ms: int
    health: _stream_manager_pb2.NodeHealth
    process_id: int
    version: _common_pb2.Version
    registered_ms: int
    mode_reason: str
    def __init__(self, format: _Optional[int] = ..., node_id: _Optional[int] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., region: _Optional[str] = ..., rack: _Optional[str] = ..., zone: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., disks: _Optional[_Iterable[_Union[DiskEntry, _Mapping]]] = ..., mode: _Optional[_Union[_stream_manager_pb2.NodeMode, str]] = ..., mode_until_ms: _Optional[int] = ..., health: _Optional[_Union[_stream_manager_pb2.NodeHealth, str]] = ..., process_id: _Optional[int] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., registered_ms: _Optional[int] = ..., mode_reason: _Optional[str] = ...) -> None: ...

class NameRecord(_message.Message):
    __slots__ = ("format", "stream_id")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    format: int
    stream_id: int
    def __init__(self, format: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class TaskRecord(_message.Message):
    __slots__ = ("format", "task_id", "extent_id", "kind", "lost", "target", "eversion", "created_ms", "attempts", "last_error")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    format: int
    task_id: int
    extent_id: int
    kind: _stream_manager_pb2.RecoveryTask.Kind
    lost: _common_pb2.Replica
    target: _common_pb2.Replica
    eversion: int
    created_ms: int
    attempts: int
    last_error: str
    def __init__(self, format: _Optional[int] = ..., task_id: _Optional[int] = ..., extent_id: _Optional[int] = ..., kind: _Optional[_Union[_stream_manager_pb2.RecoveryTask.Kind, str]] = ..., lost: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., created_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class ReplayRecord(_message.Message):
    __slots__ = ("format", "method_id", "request_crc32c", "created_ms", "stream_ids", "extent_ids", "node_id")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    METHOD_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CRC32C_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    format: int
    method_id: int
    request_crc32c: int
    created_ms: int
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    node_id: int
    def __init__(self, format: _Optional[int] = ..., method_id: _Optional[int] = ..., request_crc32c: _Optional[int] = ..., created_ms: _Optional[int] = ..., stream_ids: _Optional[_Iterable[int]] = ..., extent_ids: _Optional[_Iterable[int]] = ..., node_id: _Optional[int] = ...) -> None: ...

class SettingsRecord(_message.Message):
    __slots__ = ("format", "stopped_regions")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STOPPED_REGIONS_FIELD_NUMBER: _ClassVar[int]
    format: int
    stopped_regions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, format: _Optional[int] = ..., stopped_regions: _Optional[_Iterable[str]] = ...) -> None: ...

class QuotaRecord(_message.Message):
    __slots__ = ("format", "prefix", "streams_max", "extents_max", "bytes_max")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    STREAMS_MAX_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    format: int
    prefix: str
    streams_max: int
    extents_max: int
    bytes_max: int
    def __init__(self, format: _Optional[int] = ..., prefix: _Optional[str] = ..., streams_max: _Optional[int] = ..., extents_max: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class CommitRecord(_message.Message):
    __slots__ = ("term", "number", "voided")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VOIDED_FIELD_NUMBER: _ClassVar[int]
    term: int
    number: int
    voided: bool
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ..., voided: _Optional[bool] = ...) -> None: ...
