from neve.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogReference(_message.Message):
    __slots__ = ("extent_id", "bytes")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    bytes: int
    def __init__(self, extent_id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TableFooter(_message.Message):
    __slots__ = ("format", "entries", "deletes", "data_bytes", "raw_bytes", "value_bytes", "seq_min", "seq_max", "first_key", "last_key", "index", "bloom", "row_extents", "log_references", "expires_ms_min", "blocks")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQ_MIN_FIELD_NUMBER: _ClassVar[int]
    SEQ_MAX_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEY_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FIELD_NUMBER: _ClassVar[int]
    ROW_EXTENTS_FIELD_NUMBER: _ClassVar[int]
    LOG_REFERENCES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_MIN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    format: int
    entries: int
    deletes: int
    data_bytes: int
    raw_bytes: int
    value_bytes: int
    seq_min: int
    seq_max: int
    first_key: bytes
    last_key: bytes
    index: _containers.RepeatedCompositeFieldContainer[_common_pb2.Position]
    bloom: _containers.RepeatedCompositeFieldContainer[_common_pb2.Position]
    row_extents: _containers.RepeatedScalarFieldContainer[int]
    log_references: _containers.RepeatedCompositeFieldContainer[LogReference]
    expires_ms_min: int
    blocks: int
    def __init__(self, format: _Optional[int] = ..., entries: _Optional[int] = ..., deletes: _Optional[int] = ..., data_bytes: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., value_bytes: _Optional[int] = ..., seq_min: _Optional[int] = ..., seq_max: _Optional[int] = ..., first_key: _Optional[bytes] = ..., last_key: _Optional[bytes] = ..., index: _Optional[_Iterable[_Union[_common_pb2.Position, _Mapping]]] = ..., bloom: _Optional[_Iterable[_Union[_common_pb2.Position, _Mapping]]] = ..., row_extents: _Optional[_Iterable[int]] = ..., log_references: _Optional[_Iterable[_Union[LogReference, _Mapping]]] = ..., expires_ms_min: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class TableEntry(_message.Message):
    __slots__ = ("footer", "clip_start", "clip_end", "seq_min", "seq_max", "entries", "size_bytes")
    FOOTER_FIELD_NUMBER: _ClassVar[int]
    CLIP_START_FIELD_NUMBER: _ClassVar[int]
    CLIP_END_FIELD_NUMBER: _ClassVar[int]
    SEQ_MIN_FIELD_NUMBER: _ClassVar[int]
    SEQ_MAX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    footer: _common_pb2.Position
    clip_start: bytes
    clip_end: bytes
    seq_min: int
    seq_max: int
    entries: int
    size_bytes: int
    def __init__(self, footer: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., clip_start: _Optional[bytes] = ..., clip_end: _Optional[bytes] = ..., seq_min: _Optional[int] = ..., seq_max: _Optional[int] = ..., entries: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class SessionResult(_message.Message):
    __slots__ = ("call_id", "infos")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    infos: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, call_id: _Optional[int] = ..., infos: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionEntry(_message.Message):
    __slots__ = ("client_id", "floor", "used_ms", "results")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    USED_MS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    floor: int
    used_ms: int
    results: _containers.RepeatedCompositeFieldContainer[SessionResult]
    def __init__(self, client_id: _Optional[int] = ..., floor: _Optional[int] = ..., used_ms: _Optional[int] = ..., results: _Optional[_Iterable[_Union[SessionResult, _Mapping]]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("format", "partition_id", "map_version", "start", "end", "number", "seq", "log_replay_from", "tables", "sessions", "discards", "written_ms")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LOG_REPLAY_FROM_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DISCARDS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_MS_FIELD_NUMBER: _ClassVar[int]
    format: int
    partition_id: int
    map_version: int
    start: bytes
    end: bytes
    number: int
    seq: int
    log_replay_from: _common_pb2.Position
    tables: _containers.RepeatedCompositeFieldContainer[TableEntry]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionEntry]
    discards: _containers.RepeatedCompositeFieldContainer[LogReference]
    written_ms: int
    def __init__(self, format: _Optional[int] = ..., partition_id: _Optional[int] = ..., map_version: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., number: _Optional[int] = ..., seq: _Optional[int] = ..., log_replay_from: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableEntry, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionEntry, _Mapping]]] = ..., discards: _Optional[_Iterable[_Union[LogReference, _Mapping]]] = ..., written_ms: _Optional[int] = ...) -> None: ...
