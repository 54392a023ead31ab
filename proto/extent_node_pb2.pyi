from neve.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateExtentRequest(_message.Message):
    __slots__ = ("call", "leader", "extent_id", "replica", "eversion", "extent_bytes_max", "stream_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    extent_bytes_max: int
    stream_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., extent_bytes_max: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class CreateExtentReply(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: _common_pb2.Replica
    def __init__(self, replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("extent_id", "replica", "eversion", "token", "offset", "committed", "no_sync", "block_sizes")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NO_SYNC_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZES_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    token: int
    offset: int
    committed: int
    no_sync: bool
    block_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., token: _Optional[int] = ..., offset: _Optional[int] = ..., committed: _Optional[int] = ..., no_sync: _Optional[bool] = ..., block_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class AppendBlockRequest(_message.Message):
    __slots__ = ("call", "segments", "payload_crc32c", "brief", "payload")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    payload_crc32c: int
    brief: bool
    payload: bytes
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., payload_crc32c: _Optional[int] = ..., brief: _Optional[bool] = ..., payload: _Optional[bytes] = ...) -> None: ...

class SegmentResult(_message.Message):
    __slots__ = ("end", "length", "error")
    END_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    end: int
    length: int
    error: _common_pb2.Error
    def __init__(self, end: _Optional[int] = ..., length: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class AppendBlockReply(_message.Message):
    __slots__ = ("results", "all_taken")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ALL_TAKEN_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SegmentResult]
    all_taken: bool
    def __init__(self, results: _Optional[_Iterable[_Union[SegmentResult, _Mapping]]] = ..., all_taken: _Optional[bool] = ...) -> None: ...

class ReadBlockRequest(_message.Message):
    __slots__ = ("call", "extent_id", "replica", "eversion", "offset", "max_blocks", "max_bytes", "follow", "wait_ms", "next_max_bytes")
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    offset: int
    max_blocks: int
    max_bytes: int
    follow: bool
    wait_ms: int
    next_max_bytes: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., offset: _Optional[int] = ..., max_blocks: _Optional[int] = ..., max_bytes: _Optional[int] = ..., follow: _Optional[bool] = ..., wait_ms: _Optional[int] = ..., next_max_bytes: _Optional[int] = ...) -> None: ...

class ReadBlockReply(_message.Message):
    __slots__ = ("end", "readable", "sealed", "blocks", "next_end", "payload")
    END_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_END_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    end: int
    readable: int
    sealed: bool
    blocks: int
    next_end: int
    payload: bytes
    def __init__(self, end: _Optional[int] = ..., readable: _Optional[int] = ..., sealed: _Optional[bool] = ..., blocks: _Optional[int] = ..., next_end: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RaiseTokenRequest(_message.Message):
    __slots__ = ("call", "leader", "extent_id", "replica", "eversion", "token")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    token: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("call", "leader", "extent_id", "replica", "eversion", "token")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    token: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class LengthAnswer(_message.Message):
    __slots__ = ("kind", "length", "valid_length", "committed", "token", "fenced", "seal", "replica", "conflict")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[LengthAnswer.Kind]
        LENGTH: _ClassVar[LengthAnswer.Kind]
        NEVER_EXISTED: _ClassVar[LengthAnswer.Kind]
        DAMAGED: _ClassVar[LengthAnswer.Kind]
        DOUBTFUL: _ClassVar[LengthAnswer.Kind]
        DELETED: _ClassVar[LengthAnswer.Kind]
    UNSPECIFIED: LengthAnswer.Kind
    LENGTH: LengthAnswer.Kind
    NEVER_EXISTED: LengthAnswer.Kind
    DAMAGED: LengthAnswer.Kind
    DOUBTFUL: LengthAnswer.Kind
    DELETED: LengthAnswer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    VALID_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    kind: LengthAnswer.Kind
    length: int
    valid_length: int
    committed: int
    token: int
    fenced: bool
    seal: _common_pb2.Seal
    replica: _common_pb2.Replica
    conflict: bool
    def __init__(self, kind: _Optional[_Union[LengthAnswer.Kind, str]] = ..., length: _Optional[int] = ..., valid_length: _Optional[int] = ..., committed: _Optional[int] = ..., token: _Optional[int] = ..., fenced: _Optional[bool] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., conflict: _Optional[bool] = ...) -> None: ...

class SealExtentRequest(_message.Message):
    __slots__ = ("call", "leader", "extent_id", "replica", "seal")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    extent_id: int
    replica: _common_pb2.Replica
    seal: _common_pb2.Seal
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ...) -> None: ...

class SealExtentReply(_message.Message):
    __slots__ = ("confirmed", "seal", "length")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    confirmed: bool
    seal: _common_pb2.Seal
    length: int
    def __init__(self, confirmed: _Optional[bool] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class CopySource(_message.Message):
    __slots__ = ("replica", "address")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    replica: _common_pb2.Replica
    address: str
    def __init__(self, replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class StartCopyRequest(_message.Message):
    __slots__ = ("call", "leader", "task_id", "extent_id", "replica", "seal", "sources", "bytes_per_s_max", "stream_id", "eversion")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_MAX_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    task_id: int
    extent_id: int
    replica: _common_pb2.Replica
    seal: _common_pb2.Seal
    sources: _containers.RepeatedCompositeFieldContainer[CopySource]
    bytes_per_s_max: int
    stream_id: int
    eversion: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., task_id: _Optional[int] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[CopySource, _Mapping]]] = ..., bytes_per_s_max: _Optional[int] = ..., stream_id: _Optional[int] = ..., eversion: _Optional[int] = ...) -> None: ...

class StartCopyReply(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    def __init__(self, task_id: _Optional[int] = ...) -> None: ...

class CopyStatusRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    def __init__(self, task_id: _Optional[int] = ...) -> None: ...

class CopyStatusReply(_message.Message):
    __slots__ = ("state", "task_id", "extent_id", "copied_bytes", "replica", "seal", "error")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[CopyStatusReply.State]
        UNKNOWN: _ClassVar[CopyStatusReply.State]
        RUNNING: _ClassVar[CopyStatusReply.State]
        DONE: _ClassVar[CopyStatusReply.State]
        FAILED: _ClassVar[CopyStatusReply.State]
    UNSPECIFIED: CopyStatusReply.State
    UNKNOWN: CopyStatusReply.State
    RUNNING: CopyStatusReply.State
    DONE: CopyStatusReply.State
    FAILED: CopyStatusReply.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: CopyStatusReply.State
    task_id: int
    extent_id: int
    copied_bytes: int
    replica: _common_pb2.Replica
    seal: _common_pb2.Seal
    error: _common_pb2.Error
    def __init__(self, state: _Optional[_Union[CopyStatusReply.State, str]] = ..., task_id: _Optional[int] = ..., extent_id: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ReadRangeRequest(_message.Message):
    __slots__ = ("call", "extent_id", "replica", "offset", "length")
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    extent_id: int
    replica: _common_pb2.Replica
    offset: int
    length: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadRangeReply(_message.Message):
    __slots__ = ("seal", "payload_crc32c", "payload")
    SEAL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    seal: _common_pb2.Seal
    payload_crc32c: int
    payload: bytes
    def __init__(self, seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., payload_crc32c: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ReadIndexRequest(_message.Message):
    __slots__ = ("extent_id", "replica", "start", "end", "max_blocks")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    start: int
    end: int
    max_blocks: int
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., max_blocks: _Optional[int] = ...) -> None: ...

class ReadIndexReply(_message.Message):
    __slots__ = ("seal", "first_offset", "blocks", "more", "total_blocks", "payload")
    SEAL_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    seal: _common_pb2.Seal
    first_offset: int
    blocks: int
    more: bool
    total_blocks: int
    payload: bytes
    def __init__(self, seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., first_offset: _Optional[int] = ..., blocks: _Optional[int] = ..., more: _Optional[bool] = ..., total_blocks: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AuditReplicaRequest(_message.Message):
    __slots__ = ("extent_id", "replica", "bytes_per_s_max")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_MAX_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    bytes_per_s_max: int
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., bytes_per_s_max: _Optional[int] = ...) -> None: ...

class AuditReplicaReply(_message.Message):
    __slots__ = ("info", "bad", "offset", "reason", "bytes_read", "blocks", "skipped", "index_rebuilt")
    INFO_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    INDEX_REBUILT_FIELD_NUMBER: _ClassVar[int]
    info: ReplicaInfo
    bad: bool
    offset: int
    reason: str
    bytes_read: int
    blocks: int
    skipped: str
    index_rebuilt: bool
    def __init__(self, info: _Optional[_Union[ReplicaInfo, _Mapping]] = ..., bad: _Optional[bool] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., bytes_read: _Optional[int] = ..., blocks: _Optional[int] = ..., skipped: _Optional[str] = ..., index_rebuilt: _Optional[bool] = ...) -> None: ...

class DeleteExtentRequest(_message.Message):
    __slots__ = ("call", "leader", "extent_id", "replica", "eversion")
    CALL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    leader: _common_pb2.Leader
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ...) -> None: ...

class DeleteExtentReply(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class ListReplicasRequest(_message.Message):
    __slots__ = ("after_extent_id", "limit", "unsealed_only")
    AFTER_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNSEALED_ONLY_FIELD_NUMBER: _ClassVar[int]
    after_extent_id: int
    limit: int
    unsealed_only: bool
    def __init__(self, after_extent_id: _Optional[int] = ..., limit: _Optional[int] = ..., unsealed_only: _Optional[bool] = ...) -> None: ...

class ListReplicasReply(_message.Message):
    __slots__ = ("replicas", "more")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    more: bool
    def __init__(self, replicas: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class DescribeReplicaRequest(_message.Message):
    __slots__ = ("extent_id", "replica")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("extent_id", "replica", "eversion", "kind", "length", "committed", "token", "fenced", "seal", "read_only", "created_ms", "stream_id")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    eversion: int
    kind: LengthAnswer.Kind
    length: int
    committed: int
    token: int
    fenced: bool
    seal: _common_pb2.Seal
    read_only: bool
    created_ms: int
    stream_id: int
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., eversion: _Optional[int] = ..., kind: _Optional[_Union[LengthAnswer.Kind, str]] = ..., length: _Optional[int] = ..., committed: _Optional[int] = ..., token: _Optional[int] = ..., fenced: _Optional[bool] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., read_only: _Optional[bool] = ..., created_ms: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class NodeInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiskInfo(_message.Message):
    __slots__ = ("disk_uuid", "state", "capacity_bytes", "free_bytes", "extents", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[DiskInfo.State]
        WRITABLE: _ClassVar[DiskInfo.State]
        READ_ONLY: _ClassVar[DiskInfo.State]
        OFFLINE: _ClassVar[DiskInfo.State]
    UNSPECIFIED: DiskInfo.State
    WRITABLE: DiskInfo.State
    READ_ONLY: DiskInfo.State
    OFFLINE: DiskInfo.State
    DISK_UUID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    disk_uuid: str
    state: DiskInfo.State
    capacity_bytes: int
    free_bytes: int
    extents: int
    reason: str
    def __init__(self, disk_uuid: _Optional[str] = ..., state: _Optional[_Union[DiskInfo.State, str]] = ..., capacity_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., extents: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeInfoReply(_message.Message):
    __slots__ = ("node_id", "cluster", "disks", "version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    cluster: str
    disks: _containers.RepeatedCompositeFieldContainer[DiskInfo]
    version: _common_pb2.Version
    def __init__(self, node_id: _Optional[int] = ..., cluster: _Optional[str] = ..., disks: _Optional[_Iterable[_Union[DiskInfo, _Mapping]]] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...
