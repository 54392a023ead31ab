from neve.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Condition(_message.Message):
    __slots__ = ("absent", "version")
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    absent: bool
    version: int
    def __init__(self, absent: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...

class ObjectInfo(_message.Message):
    __slots__ = ("key", "version", "size_bytes", "modified_ms", "expires_ms", "value_crc32c")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_CRC32C_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    version: int
    size_bytes: int
    modified_ms: int
    expires_ms: int
    value_crc32c: int
    def __init__(self, key: _Optional[bytes] = ..., version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., modified_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., value_crc32c: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "key", "offset", "length", "version")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    key: bytes
    offset: int
    length: int
    version: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., key: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("info", "payload")
    INFO_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    payload: bytes
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "key", "condition", "ttl_ms", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    key: bytes
    condition: Condition
    ttl_ms: int
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "key", "condition")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    key: bytes
    condition: Condition
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...

class HeadRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "key")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    key: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class HeadReply(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ...) -> None: ...

class BatchOperation(_message.Message):
    __slots__ = ("key", "delete", "condition", "ttl_ms", "value_bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    delete: bool
    condition: Condition
    ttl_ms: int
    value_bytes: int
    def __init__(self, key: _Optional[bytes] = ..., delete: _Optional[bool] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "operations", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    operations: _containers.RepeatedCompositeFieldContainer[BatchOperation]
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[BatchOperation, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class BatchReply(_message.Message):
    __slots__ = ("infos",)
    INFOS_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    def __init__(self, infos: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "prefix", "start", "end", "limit", "continuation", "with_values", "max_bytes")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    WITH_VALUES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    prefix: bytes
    start: bytes
    end: bytes
    limit: int
    continuation: bytes
    with_values: bool
    max_bytes: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., prefix: _Optional[bytes] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., limit: _Optional[int] = ..., continuation: _Optional[bytes] = ..., with_values: _Optional[bool] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ScanReply(_message.Message):
    __slots__ = ("infos", "continuation", "left_out", "payload")
    INFOS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedCompositeFieldContainer[ObjectInfo]
    continuation: bytes
    left_out: _containers.RepeatedScalarFieldContainer[int]
    payload: bytes
    def __init__(self, infos: _Optional[_Iterable[_Union[ObjectInfo, _Mapping]]] = ..., continuation: _Optional[bytes] = ..., left_out: _Optional[_Iterable[int]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class BeginUploadRequest(_message.Message):
    __slots__ = ("call", "partition_id", "regions_version", "key", "condition", "ttl_ms")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    regions_version: int
    key: bytes
    condition: Condition
    ttl_ms: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., regions_version: _Optional[int] = ..., key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class BeginUploadReply(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: int
    def __init__(self, upload_id: _Optional[int] = ...) -> None: ...

class UploadPartRequest(_message.Message):
    __slots__ = ("call", "upload_id", "key", "offset", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    upload_id: int
    key: bytes
    offset: int
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., upload_id: _Optional[int] = ..., key: _Optional[bytes] = ..., offset: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class UploadPartReply(_message.Message):
    __slots__ = ("end",)
    END_FIELD_NUMBER: _ClassVar[int]
    end: int
    def __init__(self, end: _Optional[int] = ...) -> None: ...

class CompleteUploadRequest(_message.Message):
    __slots__ = ("call", "upload_id", "key", "size_bytes", "value_crc32c")
    CALL_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_CRC32C_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    upload_id: int
    key: bytes
    size_bytes: int
    value_crc32c: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., upload_id: _Optional[int] = ..., key: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., value_crc32c: _Optional[int] = ...) -> None: ...

class AbortUploadRequest(_message.Message):
    __slots__ = ("call", "upload_id", "key")
    CALL_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    upload_id: int
    key: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., upload_id: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class AbortUploadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PreparePartitionSplitRequest(_message.Message):
    __slots__ = ("call", "partition_id", "middle_key")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_KEY_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    middle_key: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., middle_key: _Optional[bytes] = ...) -> None: ...

class PreparePartitionSplitReply(_message.Message):
    __slots__ = ("middle_key", "owner", "log", "row", "meta", "frozen_ms")
    MIDDLE_KEY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    FROZEN_MS_FIELD_NUMBER: _ClassVar[int]
    middle_key: bytes
    owner: _common_pb2.Owner
    log: _common_pb2.StreamEnd
    row: _common_pb2.StreamEnd
    meta: _common_pb2.StreamEnd
    frozen_ms: int
    def __init__(self, middle_key: _Optional[bytes] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., log: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., row: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., meta: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., frozen_ms: _Optional[int] = ...) -> None: ...

class PreparePartitionMergeRequest(_message.Message):
    __slots__ = ("call", "partition_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ...) -> None: ...

class PreparePartitionMergeReply(_message.Message):
    __slots__ = ("owner", "log", "row", "meta", "manifest", "frozen_ms")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FROZEN_MS_FIELD_NUMBER: _ClassVar[int]
    owner: _common_pb2.Owner
    log: _common_pb2.StreamEnd
    row: _common_pb2.StreamEnd
    meta: _common_pb2.StreamEnd
    manifest: _common_pb2.Position
    frozen_ms: int
    def __init__(self, owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., log: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., row: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., meta: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., manifest: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., frozen_ms: _Optional[int] = ...) -> None: ...

class ThawPartitionRequest(_message.Message):
    __slots__ = ("call", "partition_id", "owner")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    owner: _common_pb2.Owner
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ...) -> None: ...

class ThawPartitionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MultiOperation(_message.Message):
    __slots__ = ("kind", "key", "condition", "ttl_ms", "value_bytes", "call_id")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[MultiOperation.Kind]
        GET: _ClassVar[MultiOperation.Kind]
        PUT: _ClassVar[MultiOperation.Kind]
        DELETE: _ClassVar[MultiOperation.Kind]
        HEAD: _ClassVar[MultiOperation.Kind]
    UNSPECIFIED: MultiOperation.Kind
    GET: MultiOperation.Kind
    PUT: MultiOperation.Kind
    DELETE: MultiOperation.Kind
    HEAD: MultiOperation.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    kind: MultiOperation.Kind
    key: bytes
    condition: Condition
    ttl_ms: int
    value_bytes: int
    call_id: int
    def __init__(self, kind: _Optional[_Union[MultiOperation.Kind, str]] = ..., key: _Optional[bytes] = ..., condition: _Optional[_Union[Condition, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., value_bytes: _Optional[int] = ..., call_id: _Optional[int] = ...) -> None: ...

class MultiRequest(_message.Message):
    __slots__ = ("call", "regions_version", "operations", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    regions_version: int
    operations: _containers.RepeatedCompositeFieldContainer[MultiOperation]
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., regions_version: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[MultiOperation, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class MultiResult(_message.Message):
    __slots__ = ("info", "existed", "value_bytes", "error")
    INFO_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    existed: bool
    value_bytes: int
    error: _common_pb2.Error
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., existed: _Optional[bool] = ..., value_bytes: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class MultiReply(_message.Message):
    __slots__ = ("results", "payload")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MultiResult]
    payload: bytes
    def __init__(self, results: _Optional[_Iterable[_Union[MultiResult, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutManyRequest(_message.Message):
    __slots__ = ("call", "regions_version", "keys", "call_ids", "value_bytes", "ttl_ms", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REGIONS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    regions_version: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    call_ids: _containers.RepeatedScalarFieldContainer[int]
    value_bytes: _containers.RepeatedScalarFieldContainer[int]
    ttl_ms: _containers.RepeatedScalarFieldContainer[int]
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., regions_version: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., call_ids: _Optional[_Iterable[int]] = ..., value_bytes: _Optional[_Iterable[int]] = ..., ttl_ms: _Optional[_Iterable[int]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class PutManyReply(_message.Message):
    __slots__ = ("versions", "modified_ms", "value_crc32c", "failures")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_CRC32C_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    modified_ms: _containers.RepeatedScalarFieldContainer[int]
    value_crc32c: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedCompositeFieldContainer[PutFailure]
    def __init__(self, versions: _Optional[_Iterable[int]] = ..., modified_ms: _Optional[_Iterable[int]] = ..., value_crc32c: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[_Union[PutFailure, _Mapping]]] = ...) -> None: ...

class PutFailure(_message.Message):
    __slots__ = ("index", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: _common_pb2.Error
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("partition_id", "start", "end", "keys", "size_bytes", "memtable_bytes", "tables", "log_replay_from", "discardable_bytes")
    class DiscardableBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LOG_REPLAY_FROM_FIELD_NUMBER: _ClassVar[int]
    DISCARDABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    start: bytes
    end: bytes
    keys: int
    size_bytes: int
    memtable_bytes: int
    tables: int
    log_replay_from: _common_pb2.Position
    discardable_bytes: _containers.ScalarMap[int, int]
    def __init__(self, partition_id: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., keys: _Optional[int] = ..., size_bytes: _Optional[int] = ..., memtable_bytes: _Optional[int] = ..., tables: _Optional[int] = ..., log_replay_from: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., discardable_bytes: _Optional[_Mapping[int, int]] = ...) -> None: ...

class DescribePartitionsRequest(_message.Message):
    __slots__ = ("partition_ids",)
    PARTITION_IDS_FIELD_NUMBER: _ClassVar[int]
    partition_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribePartitionsReply(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionState]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionState, _Mapping]]] = ...) -> None: ...

class FlushPartitionRequest(_message.Message):
    __slots__ = ("call", "partition_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ...) -> None: ...

class FlushPartitionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactPartitionRequest(_message.Message):
    __slots__ = ("call", "partition_id", "full")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    full: bool
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., full: _Optional[bool] = ...) -> None: ...

class CompactPartitionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReclaimLogExtentsRequest(_message.Message):
    __slots__ = ("call", "partition_id", "extent_ids")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    partition_id: int
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., partition_id: _Optional[int] = ..., extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReclaimLogExtentsReply(_message.Message):
    __slots__ = ("punched", "kept", "moved_bytes")
    PUNCHED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    punched: _containers.RepeatedScalarFieldContainer[int]
    kept: _containers.RepeatedScalarFieldContainer[int]
    moved_bytes: int
    def __init__(self, punched: _Optional[_Iterable[int]] = ..., kept: _Optional[_Iterable[int]] = ..., moved_bytes: _Optional[int] = ...) -> None: ...
