from neve.proto import common_pb2 as _common_pb2
from neve.proto import extent_node_pb2 as _extent_node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_MODE_UNSPECIFIED: _ClassVar[NodeMode]
    NODE_MODE_NORMAL: _ClassVar[NodeMode]
    NODE_MODE_READ_ONLY: _ClassVar[NodeMode]
    NODE_MODE_MAINTENANCE: _ClassVar[NodeMode]
    NODE_MODE_DRAINING: _ClassVar[NodeMode]
    NODE_MODE_DECOMMISSIONED: _ClassVar[NodeMode]

class NodeHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_HEALTH_UNSPECIFIED: _ClassVar[NodeHealth]
    NODE_HEALTH_ALIVE: _ClassVar[NodeHealth]
    NODE_HEALTH_SUSPECT: _ClassVar[NodeHealth]
    NODE_HEALTH_DEAD: _ClassVar[NodeHealth]
NODE_MODE_UNSPECIFIED: NodeMode
NODE_MODE_NORMAL: NodeMode
NODE_MODE_READ_ONLY: NodeMode
NODE_MODE_MAINTENANCE: NodeMode
NODE_MODE_DRAINING: NodeMode
NODE_MODE_DECOMMISSIONED: NodeMode
NODE_HEALTH_UNSPECIFIED: NodeHealth
NODE_HEALTH_ALIVE: NodeHealth
NODE_HEALTH_SUSPECT: NodeHealth
NODE_HEALTH_DEAD: NodeHealth

class ExtentReplica(_message.Message):
    __slots__ = ("replica", "address", "confirmed", "grpc_address")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    replica: _common_pb2.Replica
    address: str
    confirmed: bool
    grpc_address: str
    def __init__(self, replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., address: _Optional[str] = ..., confirmed: _Optional[bool] = ..., grpc_address: _Optional[str] = ...) -> None: ...

class ExtentInfo(_message.Message):
    __slots__ = ("extent_id", "eversion", "replicas", "seal", "extent_bytes_max", "created_ms", "mod_revision", "stream_ids")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    eversion: int
    replicas: _containers.RepeatedCompositeFieldContainer[ExtentReplica]
    seal: _common_pb2.Seal
    extent_bytes_max: int
    created_ms: int
    mod_revision: int
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_id: _Optional[int] = ..., eversion: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ExtentReplica, _Mapping]]] = ..., seal: _Optional[_Union[_common_pb2.Seal, _Mapping]] = ..., extent_bytes_max: _Optional[int] = ..., created_ms: _Optional[int] = ..., mod_revision: _Optional[int] = ..., stream_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamPolicy(_message.Message):
    __slots__ = ("replicas", "no_sync", "extent_bytes_max", "placement", "strict")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NO_SYNC_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    no_sync: bool
    extent_bytes_max: int
    placement: str
    strict: bool
    def __init__(self, replicas: _Optional[int] = ..., no_sync: _Optional[bool] = ..., extent_bytes_max: _Optional[int] = ..., placement: _Optional[str] = ..., strict: _Optional[bool] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("stream_id", "name", "lock", "extent_ids", "sealed", "policy", "labels", "version", "mod_revision", "created_ms", "truncated_before", "after_hole")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_HOLE_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    name: str
    lock: str
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    sealed: bool
    policy: StreamPolicy
    labels: _containers.ScalarMap[str, str]
    version: int
    mod_revision: int
    created_ms: int
    truncated_before: int
    after_hole: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream_id: _Optional[int] = ..., name: _Optional[str] = ..., lock: _Optional[str] = ..., extent_ids: _Optional[_Iterable[int]] = ..., sealed: _Optional[bool] = ..., policy: _Optional[_Union[StreamPolicy, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., version: _Optional[int] = ..., mod_revision: _Optional[int] = ..., created_ms: _Optional[int] = ..., truncated_before: _Optional[int] = ..., after_hole: _Optional[_Iterable[int]] = ...) -> None: ...

class AllocIdRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class AllocIdReply(_message.Message):
    __slots__ = ("first_id", "count")
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first_id: int
    count: int
    def __init__(self, first_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class DescribeStreamsRequest(_message.Message):
    __slots__ = ("stream_ids", "names", "with_extents", "revision_min")
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    WITH_EXTENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_MIN_FIELD_NUMBER: _ClassVar[int]
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    with_extents: bool
    revision_min: int
    def __init__(self, stream_ids: _Optional[_Iterable[int]] = ..., names: _Optional[_Iterable[str]] = ..., with_extents: _Optional[bool] = ..., revision_min: _Optional[int] = ...) -> None: ...

class DescribeStreamsReply(_message.Message):
    __slots__ = ("streams", "extents", "revision")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    extents: _containers.RepeatedCompositeFieldContainer[ExtentInfo]
    revision: int
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ..., extents: _Optional[_Iterable[_Union[ExtentInfo, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("after_stream_id", "limit", "labels", "revision")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AFTER_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    after_stream_id: int
    limit: int
    labels: _containers.ScalarMap[str, str]
    revision: int
    def __init__(self, after_stream_id: _Optional[int] = ..., limit: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListStreamsReply(_message.Message):
    __slots__ = ("streams", "more", "revision", "scanned_stream_id")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SCANNED_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    more: bool
    revision: int
    scanned_stream_id: int
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ..., more: _Optional[bool] = ..., revision: _Optional[int] = ..., scanned_stream_id: _Optional[int] = ...) -> None: ...

class DescribeExtentsRequest(_message.Message):
    __slots__ = ("extent_ids", "revision_min", "with_streams")
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    REVISION_MIN_FIELD_NUMBER: _ClassVar[int]
    WITH_STREAMS_FIELD_NUMBER: _ClassVar[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    revision_min: int
    with_streams: bool
    def __init__(self, extent_ids: _Optional[_Iterable[int]] = ..., revision_min: _Optional[int] = ..., with_streams: _Optional[bool] = ...) -> None: ...

class DescribeExtentsReply(_message.Message):
    __slots__ = ("extents", "revision")
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedCompositeFieldContainer[ExtentInfo]
    revision: int
    def __init__(self, extents: _Optional[_Iterable[_Union[ExtentInfo, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListExtentsRequest(_message.Message):
    __slots__ = ("after_extent_id", "limit", "node_id", "under_replicated", "open_only", "with_streams", "revision")
    AFTER_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITH_STREAMS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    after_extent_id: int
    limit: int
    node_id: int
    under_replicated: bool
    open_only: bool
    with_streams: bool
    revision: int
    def __init__(self, after_extent_id: _Optional[int] = ..., limit: _Optional[int] = ..., node_id: _Optional[int] = ..., under_replicated: _Optional[bool] = ..., open_only: _Optional[bool] = ..., with_streams: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class ListExtentsReply(_message.Message):
    __slots__ = ("extents", "more", "revision", "scanned_extent_id")
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SCANNED_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedCompositeFieldContainer[ExtentInfo]
    more: bool
    revision: int
    scanned_extent_id: int
    def __init__(self, extents: _Optional[_Iterable[_Union[ExtentInfo, _Mapping]]] = ..., more: _Optional[bool] = ..., revision: _Optional[int] = ..., scanned_extent_id: _Optional[int] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("call", "name", "policy", "labels", "lock")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CALL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    name: str
    policy: StreamPolicy
    labels: _containers.ScalarMap[str, str]
    lock: str
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., name: _Optional[str] = ..., policy: _Optional[_Union[StreamPolicy, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., lock: _Optional[str] = ...) -> None: ...

class CreateStreamReply(_message.Message):
    __slots__ = ("stream", "tail")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    tail: ExtentInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., tail: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class CheckCommitLengthRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ...) -> None: ...

class CheckCommitLengthReply(_message.Message):
    __slots__ = ("stream", "tail", "length", "sealed")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    tail: ExtentInfo
    length: int
    sealed: ExtentInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., tail: _Optional[_Union[ExtentInfo, _Mapping]] = ..., length: _Optional[int] = ..., sealed: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class StreamAllocExtentRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner", "extent_id", "acknowledged_end", "prepared_extent_id", "avoid_node_ids")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_END_FIELD_NUMBER: _ClassVar[int]
    PREPARED_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    AVOID_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    extent_id: int
    acknowledged_end: int
    prepared_extent_id: int
    avoid_node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., extent_id: _Optional[int] = ..., acknowledged_end: _Optional[int] = ..., prepared_extent_id: _Optional[int] = ..., avoid_node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamAllocExtentReply(_message.Message):
    __slots__ = ("stream", "sealed", "tail", "all_took_part")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    ALL_TOOK_PART_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    sealed: ExtentInfo
    tail: ExtentInfo
    all_took_part: bool
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., sealed: _Optional[_Union[ExtentInfo, _Mapping]] = ..., tail: _Optional[_Union[ExtentInfo, _Mapping]] = ..., all_took_part: _Optional[bool] = ...) -> None: ...

class PrepareExtentRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ...) -> None: ...

class PrepareExtentReply(_message.Message):
    __slots__ = ("extent",)
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    extent: ExtentInfo
    def __init__(self, extent: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class WaitConfirmedRequest(_message.Message):
    __slots__ = ("extent_id", "owner", "stream_id")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    owner: _common_pb2.Owner
    stream_id: int
    def __init__(self, extent_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., stream_id: _Optional[int] = ...) -> None: ...

class WaitConfirmedReply(_message.Message):
    __slots__ = ("extent",)
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    extent: ExtentInfo
    def __init__(self, extent: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class SealStreamRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner", "acknowledged_end", "extent_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_END_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    acknowledged_end: int
    extent_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., acknowledged_end: _Optional[int] = ..., extent_id: _Optional[int] = ...) -> None: ...

class SealStreamReply(_message.Message):
    __slots__ = ("stream", "sealed")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    sealed: ExtentInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., sealed: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class TruncateStreamRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner", "before_extent_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    before_extent_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., before_extent_id: _Optional[int] = ...) -> None: ...

class TruncateStreamReply(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class PunchHolesRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner", "extent_ids")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PunchHolesReply(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("call", "stream_id", "owner")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    stream_id: int
    owner: _common_pb2.Owner
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ...) -> None: ...

class DeleteStreamReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamCopy(_message.Message):
    __slots__ = ("stream_id", "owner", "acknowledged_end", "new_stream_id", "new_lock", "new_name", "extent_id")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_END_FIELD_NUMBER: _ClassVar[int]
    NEW_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_LOCK_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    owner: _common_pb2.Owner
    acknowledged_end: int
    new_stream_id: int
    new_lock: str
    new_name: str
    extent_id: int
    def __init__(self, stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., acknowledged_end: _Optional[int] = ..., new_stream_id: _Optional[int] = ..., new_lock: _Optional[str] = ..., new_name: _Optional[str] = ..., extent_id: _Optional[int] = ...) -> None: ...

class SplitStreamsRequest(_message.Message):
    __slots__ = ("call", "streams", "writes")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    streams: _containers.RepeatedCompositeFieldContainer[StreamCopy]
    writes: _containers.RepeatedCompositeFieldContainer[MetaWrite]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[StreamCopy, _Mapping]]] = ..., writes: _Optional[_Iterable[_Union[MetaWrite, _Mapping]]] = ...) -> None: ...

class SplitStreamsReply(_message.Message):
    __slots__ = ("streams", "twins")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TWINS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    twins: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ..., twins: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class StreamJoin(_message.Message):
    __slots__ = ("stream_id", "owner", "absorbed_stream_id", "absorbed_owner", "end", "absorbed_end")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ABSORBED_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ABSORBED_OWNER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ABSORBED_END_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    owner: _common_pb2.Owner
    absorbed_stream_id: int
    absorbed_owner: _common_pb2.Owner
    end: _common_pb2.StreamEnd
    absorbed_end: _common_pb2.StreamEnd
    def __init__(self, stream_id: _Optional[int] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., absorbed_stream_id: _Optional[int] = ..., absorbed_owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., end: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ..., absorbed_end: _Optional[_Union[_common_pb2.StreamEnd, _Mapping]] = ...) -> None: ...

class MergeStreamsRequest(_message.Message):
    __slots__ = ("call", "streams", "writes")
    CALL_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    streams: _containers.RepeatedCompositeFieldContainer[StreamJoin]
    writes: _containers.RepeatedCompositeFieldContainer[MetaWrite]
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[StreamJoin, _Mapping]]] = ..., writes: _Optional[_Iterable[_Union[MetaWrite, _Mapping]]] = ...) -> None: ...

class MergeStreamsReply(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class MetaWrite(_message.Message):
    __slots__ = ("key", "value", "mod_revision", "delete")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    mod_revision: int
    delete: bool
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., mod_revision: _Optional[int] = ..., delete: _Optional[bool] = ...) -> None: ...

class NodeLocation(_message.Message):
    __slots__ = ("region", "rack", "zone", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REGION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    region: str
    rack: str
    zone: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, region: _Optional[str] = ..., rack: _Optional[str] = ..., zone: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class NodeRecord(_message.Message):
    __slots__ = ("node_id", "wire_address", "grpc_address", "location", "disks", "mode", "health", "version", "heartbeat_age_ms", "load", "hold_ups")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    HOLD_UPS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    wire_address: str
    grpc_address: str
    location: NodeLocation
    disks: _containers.RepeatedCompositeFieldContainer[_extent_node_pb2.DiskInfo]
    mode: NodeMode
    health: NodeHealth
    version: _common_pb2.Version
    heartbeat_age_ms: int
    load: NodeLoad
    hold_ups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[int] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., location: _Optional[_Union[NodeLocation, _Mapping]] = ..., disks: _Optional[_Iterable[_Union[_extent_node_pb2.DiskInfo, _Mapping]]] = ..., mode: _Optional[_Union[NodeMode, str]] = ..., health: _Optional[_Union[NodeHealth, str]] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., heartbeat_age_ms: _Optional[int] = ..., load: _Optional[_Union[NodeLoad, _Mapping]] = ..., hold_ups: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeLoad(_message.Message):
    __slots__ = ("appends_per_s", "append_bytes_per_s", "read_bytes_per_s", "append_ms_p99", "connections", "copies")
    APPENDS_PER_S_FIELD_NUMBER: _ClassVar[int]
    APPEND_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_P99_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    appends_per_s: float
    append_bytes_per_s: float
    read_bytes_per_s: float
    append_ms_p99: int
    connections: int
    copies: int
    def __init__(self, appends_per_s: _Optional[float] = ..., append_bytes_per_s: _Optional[float] = ..., read_bytes_per_s: _Optional[float] = ..., append_ms_p99: _Optional[int] = ..., connections: _Optional[int] = ..., copies: _Optional[int] = ...) -> None: ...

class RegisterNodeRequest(_message.Message):
    __slots__ = ("call", "cluster", "node_id", "disks", "wire_address", "grpc_address", "location", "version", "process_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    WIRE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    cluster: str
    node_id: int
    disks: _containers.RepeatedCompositeFieldContainer[_extent_node_pb2.DiskInfo]
    wire_address: str
    grpc_address: str
    location: NodeLocation
    version: _common_pb2.Version
    process_id: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., cluster: _Optional[str] = ..., node_id: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[_extent_node_pb2.DiskInfo, _Mapping]]] = ..., wire_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., location: _Optional[_Union[NodeLocation, _Mapping]] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., process_id: _Optional[int] = ...) -> None: ...

class RegisterNodeReply(_message.Message):
    __slots__ = ("node_id", "cluster", "heartbeat_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    cluster: str
    heartbeat_ms: int
    def __init__(self, node_id: _Optional[int] = ..., cluster: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("node_id", "process_id", "disks", "load", "copies", "bad_replicas")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    BAD_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    process_id: int
    disks: _containers.RepeatedCompositeFieldContainer[_extent_node_pb2.DiskInfo]
    load: NodeLoad
    copies: _containers.RepeatedCompositeFieldContainer[_extent_node_pb2.CopyStatusReply]
    bad_replicas: _containers.RepeatedCompositeFieldContainer[BadReplica]
    def __init__(self, node_id: _Optional[int] = ..., process_id: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[_extent_node_pb2.DiskInfo, _Mapping]]] = ..., load: _Optional[_Union[NodeLoad, _Mapping]] = ..., copies: _Optional[_Iterable[_Union[_extent_node_pb2.CopyStatusReply, _Mapping]]] = ..., bad_replicas: _Optional[_Iterable[_Union[BadReplica, _Mapping]]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("leader", "mode", "register_again", "report_replicas")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REGISTER_AGAIN_FIELD_NUMBER: _ClassVar[int]
    REPORT_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    leader: _common_pb2.Leader
    mode: NodeMode
    register_again: bool
    report_replicas: bool
    def __init__(self, leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., mode: _Optional[_Union[NodeMode, str]] = ..., register_again: _Optional[bool] = ..., report_replicas: _Optional[bool] = ...) -> None: ...

class BadReplica(_message.Message):
    __slots__ = ("extent_id", "replica", "offset", "reason", "reporter", "conflict")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPORTER_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    replica: _common_pb2.Replica
    offset: int
    reason: str
    reporter: str
    conflict: bool
    def __init__(self, extent_id: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., reporter: _Optional[str] = ..., conflict: _Optional[bool] = ...) -> None: ...

class ReportReplicasRequest(_message.Message):
    __slots__ = ("node_id", "process_id", "round", "replicas", "last", "after_extent_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    AFTER_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    process_id: int
    round: int
    replicas: _containers.RepeatedCompositeFieldContainer[_extent_node_pb2.ReplicaInfo]
    last: bool
    after_extent_id: int
    def __init__(self, node_id: _Optional[int] = ..., process_id: _Optional[int] = ..., round: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[_extent_node_pb2.ReplicaInfo, _Mapping]]] = ..., last: _Optional[bool] = ..., after_extent_id: _Optional[int] = ...) -> None: ...

class ReportReplicasReply(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: _common_pb2.Leader
    def __init__(self, leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ...) -> None: ...

class ReportBadReplicaRequest(_message.Message):
    __slots__ = ("bad_replicas",)
    BAD_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    bad_replicas: _containers.RepeatedCompositeFieldContainer[BadReplica]
    def __init__(self, bad_replicas: _Optional[_Iterable[_Union[BadReplica, _Mapping]]] = ...) -> None: ...

class ReportBadReplicaReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("node_ids",)
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes", "revision")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRecord]
    revision: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeRecord, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SetNodeModeRequest(_message.Message):
    __slots__ = ("call", "node_id", "mode", "maintenance_s")
    CALL_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_S_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    node_id: int
    mode: NodeMode
    maintenance_s: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., node_id: _Optional[int] = ..., mode: _Optional[_Union[NodeMode, str]] = ..., maintenance_s: _Optional[int] = ...) -> None: ...

class SetNodeModeReply(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: NodeRecord
    def __init__(self, node: _Optional[_Union[NodeRecord, _Mapping]] = ...) -> None: ...

class SetPlacementRequest(_message.Message):
    __slots__ = ("call", "region", "stopped")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    region: str
    stopped: bool
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., region: _Optional[str] = ..., stopped: _Optional[bool] = ...) -> None: ...

class SetPlacementReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecoveryTask(_message.Message):
    __slots__ = ("task_id", "extent_id", "kind", "lost", "target", "created_ms", "attempts", "copied_bytes", "total_bytes", "last_error", "replicas_left")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[RecoveryTask.Kind]
        COPY: _ClassVar[RecoveryTask.Kind]
        FILL: _ClassVar[RecoveryTask.Kind]
        SEAL: _ClassVar[RecoveryTask.Kind]
    UNSPECIFIED: RecoveryTask.Kind
    COPY: RecoveryTask.Kind
    FILL: RecoveryTask.Kind
    SEAL: RecoveryTask.Kind
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    extent_id: int
    kind: RecoveryTask.Kind
    lost: _common_pb2.Replica
    target: _common_pb2.Replica
    created_ms: int
    attempts: int
    copied_bytes: int
    total_bytes: int
    last_error: str
    replicas_left: int
    def __init__(self, task_id: _Optional[int] = ..., extent_id: _Optional[int] = ..., kind: _Optional[_Union[RecoveryTask.Kind, str]] = ..., lost: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.Replica, _Mapping]] = ..., created_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., last_error: _Optional[str] = ..., replicas_left: _Optional[int] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("after_extent_id", "limit")
    AFTER_EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_extent_id: int
    limit: int
    def __init__(self, after_extent_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTasksReply(_message.Message):
    __slots__ = ("tasks", "more")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[RecoveryTask]
    more: bool
    def __init__(self, tasks: _Optional[_Iterable[_Union[RecoveryTask, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class AcceptLengthRequest(_message.Message):
    __slots__ = ("call", "extent_id", "length", "reason")
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    extent_id: int
    length: int
    reason: str
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., extent_id: _Optional[int] = ..., length: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AcceptLengthReply(_message.Message):
    __slots__ = ("extent",)
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    extent: ExtentInfo
    def __init__(self, extent: _Optional[_Union[ExtentInfo, _Mapping]] = ...) -> None: ...

class ExtentVersion(_message.Message):
    __slots__ = ("extent_id", "eversion")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    eversion: int
    def __init__(self, extent_id: _Optional[int] = ..., eversion: _Optional[int] = ...) -> None: ...

class DeleteExtentsRequest(_message.Message):
    __slots__ = ("call", "extents", "revision")
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    extents: _containers.RepeatedCompositeFieldContainer[ExtentVersion]
    revision: int
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., extents: _Optional[_Iterable[_Union[ExtentVersion, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class DeleteExtentsReply(_message.Message):
    __slots__ = ("deleted", "kept")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    deleted: _containers.RepeatedScalarFieldContainer[int]
    kept: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, deleted: _Optional[_Iterable[int]] = ..., kept: _Optional[_Iterable[int]] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("cluster", "leader", "revision", "streams", "extents", "open_extents", "bytes", "under_replicated", "unconfirmed", "one_loss_from_danger", "tasks", "nodes", "managers")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_EXTENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    ONE_LOSS_FROM_DANGER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MANAGERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    leader: _common_pb2.Leader
    revision: int
    streams: int
    extents: int
    open_extents: int
    bytes: int
    under_replicated: int
    unconfirmed: int
    one_loss_from_danger: int
    tasks: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRecord]
    managers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster: _Optional[str] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., revision: _Optional[int] = ..., streams: _Optional[int] = ..., extents: _Optional[int] = ..., open_extents: _Optional[int] = ..., bytes: _Optional[int] = ..., under_replicated: _Optional[int] = ..., unconfirmed: _Optional[int] = ..., one_loss_from_danger: _Optional[int] = ..., tasks: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeRecord, _Mapping]]] = ..., managers: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterReply(_message.Message):
    __slots__ = ("cluster", "leader", "managers", "meta_endpoints", "meta_root", "defaults", "block_payload_bytes_max")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MANAGERS_FIELD_NUMBER: _ClassVar[int]
    META_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    META_ROOT_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_PAYLOAD_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    leader: _common_pb2.Leader
    managers: _containers.RepeatedScalarFieldContainer[str]
    meta_endpoints: _containers.RepeatedScalarFieldContainer[str]
    meta_root: str
    defaults: StreamPolicy
    block_payload_bytes_max: int
    def __init__(self, cluster: _Optional[str] = ..., leader: _Optional[_Union[_common_pb2.Leader, _Mapping]] = ..., managers: _Optional[_Iterable[str]] = ..., meta_endpoints: _Optional[_Iterable[str]] = ..., meta_root: _Optional[str] = ..., defaults: _Optional[_Union[StreamPolicy, _Mapping]] = ..., block_payload_bytes_max: _Optional[int] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("prefix", "streams_max", "extents_max", "bytes_max")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    STREAMS_MAX_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    streams_max: int
    extents_max: int
    bytes_max: int
    def __init__(self, prefix: _Optional[str] = ..., streams_max: _Optional[int] = ..., extents_max: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class QuotaUsage(_message.Message):
    __slots__ = ("quota", "streams", "extents", "bytes")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    streams: int
    extents: int
    bytes: int
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ..., streams: _Optional[int] = ..., extents: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("call", "quota")
    CALL_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    call: _common_pb2.CallId
    quota: Quota
    def __init__(self, call: _Optional[_Union[_common_pb2.CallId, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class SetQuotaReply(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: QuotaUsage
    def __init__(self, usage: _Optional[_Union[QuotaUsage, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaUsage]
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaUsage, _Mapping]]] = ...) -> None: ...
