"""The two interfaces that everything above `rpc` uses: a servicer's `Call`, and a caller's `Channel`.

A servicer is any object with a method for each rpc of its service:

    class Echo:
        async def echo(self, request: pb.EchoRequest, call: Call) -> pb.EchoReply:
            call.attach(call.attachment)         # bulk bytes go beside the message, never through protobuf
            return pb.EchoReply(text=request.text)

and it is served unchanged by `rpc.wire.server` and `rpc.grpc_server`. It raises errors of `proto.errors`; the caller
gets an exception of the same class with the same fields.

Invariants: handlers of one connection start in the order in which their requests arrived (on the wire: gRPC
            promises no order between calls in flight, so a caller that needs it there awaits each call);
            a handler may be cancelled at any await (the caller gave up, its deadline passed, the server stops):
            what must be finished once begun, it shields;
            an attachment stays valid as long as a view of it is held, but pins the whole receive buffer that it is
            a part of: copy what is kept longer than the call.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from google.protobuf.message import Message

from neve.proto.coroutine_driver import OnDone
from neve.proto.errors import DeadlineExceeded
from neve.proto.method import Method, Rep, Req

Buffer = bytes | bytearray | memoryview

EMPTY = memoryview(b"")

# What a reply may take of the caller's budget when the caller does not say: a message and a little more.
REPLY_BYTES_DEFAULT = 4096

TIMEOUT_S_MAX = 24 * 3600.0  # a longer wait is a mistake, or means "for ever", which nothing here does


class FileBytes(Protocol):
    """Bytes of a file that does not change any more: a transport may have the kernel send them from there."""

    @property
    def view(self) -> memoryview:
        """The bytes themselves, for whoever does not."""

    @property
    def offset(self) -> int:
        """Where in the file they begin."""

    def descriptor(self) -> int | None:
        """Of the file, good until the loop's next turn; None if it has none any more."""

    def unreadable(self, detail: str) -> None:
        """The file did not have them."""


class Call:
    """What a handler knows of its call beside the request message, and where it puts its reply's attachment."""

    __slots__ = ("attachment", "deadline_s", "method", "own_checksums", "peer", "principal", "reply_attachment")

    # Whether the transport has checked the attachment against a checksum that its sender made.
    checksummed = False

    def __init__(
        self,
        method: Method[Any, Any],
        *,
        attachment: memoryview = EMPTY,
        deadline_s: float,
        principal: str,
        peer: str,
    ) -> None:
        self.method = method
        self.attachment = attachment
        self.deadline_s = deadline_s  # in the loop's time
        self.principal = principal  # who is asking, as the authenticator named it
        self.peer = peer  # address, for logs
        self.reply_attachment: list[Buffer] = []
        self.own_checksums = False

    def attach(self, *buffers: Buffer, own_checksums: bool = False) -> None:
        """Send these bytes, in this order, behind the reply. They must not change any more.

        `own_checksums`: they carry checksums that the caller checks by the method's contract, and a transport need not
        add one of its own. It is said of a reply's whole attachment: bytes that have none must not be among it.
        """
        self.reply_attachment.extend(map(byte_view, buffers))
        self.own_checksums = own_checksums

    def attach_file(self, file: FileBytes, *, own_checksums: bool = False) -> None:
        """As `attach`, for bytes that are in a file, too."""
        self.attach(file.view, own_checksums=own_checksums)

    async def reserve_reply(self, size_bytes: int) -> None:
        """Wait until the transport has room for a reply of this size; call it before making a large one.

        Bounds the memory that slow readers can hold: without it, every request in flight may have its reply
        waiting. The base class has no bound, for transports that need none.
        """


class Reply(NamedTuple, Generic[Rep]):
    """An answer. Whether a transport has checked the attachment is the method's matter: see `Call.attach`."""

    message: Rep
    attachment: memoryview = EMPTY


class Encoded(NamedTuple, Generic[Rep]):
    """A reply whose bytes are known already: a transport that sends bytes need not build the message."""

    cls: type[Rep]
    data: bytes

    def message(self) -> Rep:
        return self.cls.FromString(self.data)


class Answer(ABC, Generic[Rep]):
    """A reply that comes later, for which no task needs to wait. Any transport may await it; see `answers`."""

    __slots__ = ()

    @abstractmethod
    def then(self, on_done: Callable[[Rep | Encoded[Rep] | None, BaseException | None], None]) -> None:
        """Have it called once, with the reply or with what was raised: at once, if that is there already."""

    def abandon(self) -> None:
        """Whoever was to be called has gone: nobody need be. What goes on without a caller goes on."""

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, Rep]: ...


Handler = Callable[[Any, Call], Message | Answer[Any] | Coroutine[Any, Any, Message]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and the servicer's function for it."""

    method: Method[Any, Any]
    handler: Handler
    eager: bool  # see the decorators of these names
    answers: bool

    async def answer(self, request: Any, call: Call) -> Message:
        """Call the handler and wait for its reply: for a transport that runs handlers in tasks of their own."""
        reply = self.handler(request, call)
        return reply if isinstance(reply, Message) else cast(Message, await reply)


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Message]])
A = TypeVar("A", bound=Callable[..., Message | Answer[Any] | Coroutine[Any, Any, Message]])


def eager(handler: F) -> F:
    """Marks a handler that a transport may run without a task, its first step at once.

    For hot methods: a task costs more than the rest of a small call. Such a handler must not use asyncio.timeout, a
    TaskGroup or current_task: see `proto.coroutine_driver`.
    """
    handler.__neve_eager__ = True  # type: ignore[attr-defined]
    return handler


def answers(handler: A) -> A:
    """Marks a handler that is a plain function. It takes the request at once, and raises or returns one of these:

    - the reply;
    - an `Answer`, for which no task waits: when the caller gives up nothing is cancelled, and what goes on is the
      servicer's own;
    - the coroutine of an `async def` that does the rest, for requests that have to wait before they are taken: a
      transport may run it without a task, as it runs an `eager` handler.
    """
    handler.__neve_answers__ = True  # type: ignore[attr-defined]
    return handler


class Service:
    """A servicer bound to the methods that it answers. Methods may be of several services."""

    def __init__(self, methods: Iterable[Method[Any, Any]], servicer: object) -> None:
        self.routes: dict[int, Route] = {}
        for method in methods:
            handler = getattr(servicer, method.handler, None)
            answering = bool(getattr(handler, "__neve_answers__", False))
            if handler is None or not (answering or inspect.iscoroutinefunction(handler)):
                name = f"{type(servicer).__name__}.{method.handler}"
                raise TypeError(f"{name} must be an `async def`, to answer {method.path}")
            eagerly = bool(getattr(handler, "__neve_eager__", False))
            self.routes[method.method_id] = Route(method, handler, eagerly, answering)


def merge_routes(services: Sequence[Service]) -> dict[int, Route]:
    """All routes by method id; two servicers for one method are a mistake."""
    routes: dict[int, Route] = {}
    for service in services:
        for method_id, route in service.routes.items():
            if method_id in routes:
                raise ValueError(f"two servicers answer {route.method.path}")
            routes[method_id] = route
    return routes


class Begun(Protocol):
    """A call that is under way."""

    def cancel(self) -> None:
        """End it, with CancelledError, and tell the server; nothing if it has ended."""


class Channel(ABC):
    """Calls to one address. Safe for any number of concurrent calls; requests leave in their order (not on gRPC)."""

    address: str

    @abstractmethod
    async def call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
    ) -> Reply[Rep]:
        """Send the request and await its reply; raises an error of `proto.errors`.

        `attachment` must not change until the call returns; if the call fails (a deadline, a cancellation), not even
        then: its bytes may still be on their way. `reply_bytes_max` is what the caller expects at most:
        it counts against the bytes in flight, so that replies, too, are bounded. Cancelling the call tells the
        server, which cancels the handler.
        """

    def begin(
        self,
        method: Method[Req, Rep],
        request: Req | bytes,
        on_done: OnDone[Reply[Rep]],
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        attachment_crc32c: int | None = None,
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
        on_head: Callable[[Rep], None] | None = None,
    ) -> Begun:
        """As `call`, without a coroutine: `on_done(reply, None)` or `on_done(None, error)` is called exactly once, as
        soon as the answer is there, or from inside of this function. For calls that are made at every append and read.

        `request`: the message, or its bytes, if the caller has encoded it.
        `attachment_crc32c`: of all of the attachment, if the caller knows it; a transport need not compute it again.
        `on_head`: a transport may give it the reply's message while the attachment is still on its way, once at most
        and before `on_done`: to ask for what follows it. The call may fail all the same.
        """
        message = method.request.FromString(request) if isinstance(request, bytes) else request
        answer = self.call(method, message, timeout_s=timeout_s, attachment=attachment, reply_bytes_max=reply_bytes_max)
        return _InTask(answer, on_done)

    @abstractmethod
    async def close(self) -> None:
        """End the connection; calls in flight fail with ConnectionLost."""


class _InTask(Generic[Rep]):
    def __init__(self, answer: Coroutine[Any, Any, Reply[Rep]], on_done: OnDone[Reply[Rep]]) -> None:
        self._task = asyncio.get_running_loop().create_task(answer)
        self._task.add_done_callback(self._on_task_done)
        self._on_done = on_done

    def cancel(self) -> None:
        self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[Reply[Rep]]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._on_done(None if error is not None else task.result(), error)


def byte_view(buffer: Buffer) -> Buffer:
    """The buffer as a row of bytes; TypeError for what is none, such as text or every second byte of something."""
    if type(buffer) is bytes:
        return buffer
    if isinstance(buffer, memoryview):
        if buffer.format != "B" or buffer.ndim != 1:
            return buffer.cast("B")
        if not buffer.contiguous:
            raise TypeError("an attachment must be contiguous")
    elif not isinstance(buffer, (bytes, bytearray)):
        raise TypeError(f"an attachment must be bytes, a bytearray or a memoryview, not {type(buffer).__name__}")
    return buffer


def byte_views(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """All of them as rows of bytes: the sequence itself, if they are."""
    for buffer in buffers:
        if type(buffer) is not bytes:
            return [byte_view(each) for each in buffers]
    return buffers


def bounded_timeout_s(method: Method[Any, Any], timeout_s: float) -> float:
    """The timeout within what every transport can carry; DeadlineExceeded at once if there is no time at all."""
    if not timeout_s > 0:  # also for nan
        raise DeadlineExceeded(method=method.path, timeout_ms=0, detail=f"timeout_s is {timeout_s}")
    return min(timeout_s, TIMEOUT_S_MAX)


def attachment_bytes(buffers: Sequence[Buffer]) -> int:
    """Total size; `len` of a memoryview counts items, so only byte views are allowed as attachments."""
    if len(buffers) == 1:
        return len(buffers[0])
    return sum(map(len, buffers))
