from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "cluster", "token", "agent")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    cluster: str
    token: str
    agent: str
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., cluster: _Optional[str] = ..., token: _Optional[str] = ..., agent: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "cluster", "message_bytes_max", "attachment_bytes_max", "connection_bytes_max", "connection_calls_max")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_CALLS_MAX_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster: str
    message_bytes_max: int
    attachment_bytes_max: int
    connection_bytes_max: int
    connection_calls_max: int
    def __init__(self, protocol: _Optional[int] = ..., cluster: _Optional[str] = ..., message_bytes_max: _Optional[int] = ..., attachment_bytes_max: _Optional[int] = ..., connection_bytes_max: _Optional[int] = ..., connection_calls_max: _Optional[int] = ...) -> None: ...
