"""The frames in a simulated byte stream, for whoever watches it: decoded as they are written, by the wire's own code.

Invariants: a frame's fingerprint is the same in every process that sends the same message, although protobuf encodes
            the entries of a map in an order that differs between processes;
            an attachment that gRPC could not carry is found here too.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from neve.proto.crc import crc32c
from neve.proto.method import Method
from neve.rpc.grpc.message import PAYLOAD, PAYLOAD_NUMBER, has_payload
from neve.rpc.service import Buffer
from neve.rpc.wire.frame import PRELUDE_BYTES, Kind, Prelude, decode_prelude

Methods = dict[int, Method[Any, Any]]

# How long a handler may go on after its server has read that the call is cancelled: it is told so at once.
CANCEL_S = 0.25
ANSWER_S = 2.0  # within this a cancelled call is answered, if its server can

_BYTES_MAX = 1 << 30
_PAYLOAD_TAG = bytes([PAYLOAD_NUMBER << 3 | 2])
_NAMES = {kind.value: kind.name.lower() for kind in Kind}


@dataclass(slots=True)
class Frame:
    kind: int
    call_id: int
    method_id: int  # of an answer too
    message: bytes
    size_bytes: int  # without the prelude
    checksum: int

    def fingerprint(self) -> str:
        kind, checksum = _NAMES[self.kind], self.checksum
        return f"{kind} call={self.call_id} method={self.method_id:#06x} {self.size_bytes} B {checksum:08x}"


class Calls:
    """The calls of one connection that were sent and are not answered. What is wrong with an answer is told `wrong`."""

    def __init__(self, name: str, *, wrong: Callable[[str], None], runs_since_s: Callable[[], float]) -> None:
        self.open: dict[int, int] = {}  # the method of each
        self._name = name
        self._wrong = wrong
        self._runs_since_s = runs_since_s  # since when the server has been able to answer
        self._ended = False
        self._cancelled_s: dict[int, float] = {}  # when the server read that nobody waits for it

    def on_cancel(self, call_id: int) -> None:
        if call_id in self.open and not self._ended:
            loop = asyncio.get_running_loop()
            self._cancelled_s[call_id] = loop.time()
            loop.call_later(ANSWER_S, self._check_answered, call_id, context=contextvars.Context())

    def end(self) -> None:
        """The connection is over, for one side at least: no answer is judged any more."""
        self._ended = True
        self.open.clear()
        self._cancelled_s.clear()

    def _check_answered(self, call_id: int) -> None:
        cancelled_s = self._cancelled_s.get(call_id)
        if cancelled_s is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - max(cancelled_s, self._runs_since_s()) < ANSWER_S / 2:  # it was not able to answer
            loop.call_later(ANSWER_S, self._check_answered, call_id, context=contextvars.Context())
        else:
            self._wrong(f"{self._name}: call {call_id} of {self.open[call_id]:#06x} was cancelled, and is not answered")

    def on_answer(self, call_id: int) -> int:
        """Its method."""
        method_id = self.open.pop(call_id, None)
        if self._ended:
            return method_id or 0
        if method_id is None:
            self._wrong(f"{self._name}: an answer to call {call_id}, which has one, or was never made")
            return 0
        cancelled_s = self._cancelled_s.pop(call_id, None)
        if cancelled_s is not None:
            took_s = asyncio.get_running_loop().time() - max(cancelled_s, self._runs_since_s())
            if took_s > CANCEL_S:
                self._wrong(f"{self._name}: call {call_id} of {method_id:#06x} went on for {took_s:.3f} s, cancelled")
        return method_id


class FrameDecoder:
    """Finds the frames of one direction. Both directions of a connection share `calls`."""

    on_reply: ClassVar[Callable[[Method[Any, Any]], None] | None] = None  # called for each that is written anywhere

    def __init__(self, methods: Methods, calls: Calls) -> None:
        self._methods = methods
        self._calls = calls
        self._partial = b""
        self._offset = 0  # where that begins in the stream

    def feed(self, data: Buffer) -> list[tuple[int, Frame]]:
        """The frames that are complete now, each with the offset of its end in the stream."""
        self._partial = whole = self._partial + bytes(data) if self._partial else bytes(data)
        found, start = [], 0
        while len(whole) - start >= PRELUDE_BYTES:
            prelude = decode_prelude(whole[start : start + PRELUDE_BYTES], _BYTES_MAX, _BYTES_MAX)
            end = start + PRELUDE_BYTES + prelude.body_bytes
            if len(whole) < end:
                break
            message_start = start + PRELUDE_BYTES
            message = whole[message_start : message_start + prelude.message_bytes]
            found.append((self._offset + end, self._frame(prelude, message)))
            start = end
        self._partial = whole[start:]
        self._offset += start
        return found

    def delivered(self, frame: Frame) -> None:
        """The process at the other end is about to read it."""
        if frame.kind == Kind.CANCEL:
            self._calls.on_cancel(frame.call_id)

    def _frame(self, prelude: Prelude, message: bytes) -> Frame:
        body_bytes, message_bytes, call_id, method_id, kind, _, _, checksum, attachment_crc = prelude
        cls: type[Any] | None = None
        if kind == Kind.REQUEST:
            self._calls.open[call_id] = method_id
            method = self._methods.get(method_id)
            cls = method.request if method is not None else None
        elif call_id and kind != Kind.CANCEL:
            method_id = self._calls.on_answer(call_id)
            method = self._methods.get(method_id) if kind == Kind.REPLY else None
            if method is not None:
                cls = method.reply
                if FrameDecoder.on_reply is not None:
                    FrameDecoder.on_reply(method)
        if cls is not None:
            if has_map(cls.DESCRIPTOR):
                checksum = crc32c(cls.FromString(message).SerializeToString(deterministic=True))
            _check_payload(cls, message, attached=body_bytes > message_bytes)
        return Frame(kind, call_id, method_id, message, body_bytes, checksum ^ attachment_crc)


def _check_payload(cls: type[Any], message: bytes, *, attached: bool) -> None:
    problem = ""
    if not _has_payload(cast(Hashable, cls)):
        problem = f"it has no field `{PAYLOAD}` to carry the attachment in" if attached else ""
    elif _PAYLOAD_TAG in message and getattr(cls.FromString(message), PAYLOAD):  # few messages are parsed for this
        problem = "bulk bytes go into the attachment"
    if problem:
        error = AssertionError(f"{cls.__name__}: {problem}")
        asyncio.get_running_loop().call_exception_handler({"message": str(error), "exception": error})


@functools.cache
def _has_payload(cls: Hashable) -> bool:
    return has_payload(cast("type[Any]", cls))


@functools.cache
def has_map(descriptor: Descriptor) -> bool:
    """Whether a message of this type may contain a map."""
    return _finds_map(descriptor, set())


def _finds_map(descriptor: Descriptor | None, seen: set[str]) -> bool:
    assert descriptor is not None
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    inner = [field.message_type for field in descriptor.fields if field.type == FieldDescriptor.TYPE_MESSAGE]
    return any(_is_map_entry(each) or _finds_map(each, seen) for each in inner)


def _is_map_entry(descriptor: Descriptor | None) -> bool:
    return descriptor is not None and bool(descriptor.GetOptions().map_entry)
