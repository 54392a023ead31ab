from neve.proto import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DoRequest(_message.Message):
    __slots__ = ("text", "delay_ms", "fail_with", "reply_bytes", "echo_attachment", "crash", "payload")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    FAIL_WITH_FIELD_NUMBER: _ClassVar[int]
    REPLY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ECHO_ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    CRASH_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    text: str
    delay_ms: int
    fail_with: _common_pb2.Error
    reply_bytes: int
    echo_attachment: bool
    crash: bool
    payload: bytes
    def __init__(self, text: _Optional[str] = ..., delay_ms: _Optional[int] = ..., fail_with: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., reply_bytes: _Optional[int] = ..., echo_attachment: _Optional[bool] = ..., crash: _Optional[bool] = ..., payload: _Optional[bytes] = ...) -> None: ...

class DoReply(_message.Message):
    __slots__ = ("text", "sequence", "attachment_crc32c", "remaining_ms", "principal", "payload")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_CRC32C_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    text: str
    sequence: int
    attachment_crc32c: int
    remaining_ms: int
    principal: str
    payload: bytes
    def __init__(self, text: _Optional[str] = ..., sequence: _Optional[int] = ..., attachment_crc32c: _Optional[int] = ..., remaining_ms: _Optional[int] = ..., principal: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class HangRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HangReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
