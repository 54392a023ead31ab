from neve.proto import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EchoRequest(_message.Message):
    __slots__ = ("text", "payload")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    text: str
    payload: bytes
    def __init__(self, text: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class EchoReply(_message.Message):
    __slots__ = ("text", "payload")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    text: str
    payload: bytes
    def __init__(self, text: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfoReply(_message.Message):
    __slots__ = ("kind", "cluster", "version", "uptime_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    cluster: str
    version: _common_pb2.Version
    uptime_ms: int
    def __init__(self, kind: _Optional[str] = ..., cluster: _Optional[str] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., uptime_ms: _Optional[int] = ...) -> None: ...
