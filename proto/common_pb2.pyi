from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
METHOD_ID_FIELD_NUMBER: _ClassVar[int]
method_id: _descriptor.FieldDescriptor

class Error(_message.Message):
    __slots__ = ("code", "facts")
    class Fact(_message.Message):
        __slots__ = ("name", "number", "text", "data", "flag")
        NAME_FIELD_NUMBER: _ClassVar[int]
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        TEXT_FIELD_NUMBER: _ClassVar[int]
        DATA_FIELD_NUMBER: _ClassVar[int]
        FLAG_FIELD_NUMBER: _ClassVar[int]
        name: str
        number: int
        text: str
        data: bytes
        flag: bool
        def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., text: _Optional[str] = ..., data: _Optional[bytes] = ..., flag: _Optional[bool] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    code: int
    facts: _containers.RepeatedCompositeFieldContainer[Error.Fact]
    def __init__(self, code: _Optional[int] = ..., facts: _Optional[_Iterable[_Union[Error.Fact, _Mapping]]] = ...) -> None: ...

class CallId(_message.Message):
    __slots__ = ("client_id", "call_id", "completed_below")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_BELOW_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    call_id: int
    completed_below: int
    def __init__(self, client_id: _Optional[int] = ..., call_id: _Optional[int] = ..., completed_below: _Optional[int] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("stream_id", "extent_id", "acknowledged_end")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_END_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    extent_id: int
    acknowledged_end: int
    def __init__(self, stream_id: _Optional[int] = ..., extent_id: _Optional[int] = ..., acknowledged_end: _Optional[int] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("lock", "token")
    LOCK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    lock: str
    token: int
    def __init__(self, lock: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class Leader(_message.Message):
    __slots__ = ("create_revision", "address")
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    create_revision: int
    address: str
    def __init__(self, create_revision: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("node_id", "disk_uuid", "incarnation")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_UUID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    disk_uuid: str
    incarnation: int
    def __init__(self, node_id: _Optional[int] = ..., disk_uuid: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("extent_id", "offset")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    offset: int
    def __init__(self, extent_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("length", "eversion", "digest")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    EVERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    length: int
    eversion: int
    digest: bytes
    def __init__(self, length: _Optional[int] = ..., eversion: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("protocol", "build")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    build: str
    def __init__(self, protocol: _Optional[int] = ..., build: _Optional[str] = ...) -> None: ...
