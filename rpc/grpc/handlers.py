"""Runs servicers' handlers for gRPC: bytes in, bytes or an abort out.

Invariants: whatever a handler raises, the caller gets an error of the taxonomy and the server lives on;
            a handler never outlives its deadline, and one without a deadline gets DEFAULT_TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message

from neve.proto.errors import Cancelled, Internal, NeveError, Overloaded
from neve.rpc.grpc.message import check_sizes, decode, encode, has_payload
from neve.rpc.grpc.status import abort_at_deadline, abort_with
from neve.rpc.limits import Limits
from neve.rpc.service import Call, Route, attachment_bytes
from neve.rpc.wire.budget import ByteBudget

if TYPE_CHECKING:
    # Generic in the stubs only.
    MethodHandler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

# For a caller that sets no deadline: longer than any call of ours should take, short enough to free what it holds.
DEFAULT_TIMEOUT_S = 60.0


class _DeadlinePassed(Exception):
    """The deadline of this very call, not one that a handler met elsewhere."""


class _GrpcCall(Call):
    """A call whose large replies wait for room in the server's budget."""

    __slots__ = ("_budget", "reserved_bytes")

    def __init__(self, route: Route, budget: ByteBudget, **facts: Any) -> None:
        super().__init__(route.method, **facts)
        self._budget = budget
        self.reserved_bytes = 0

    async def reserve_reply(self, size_bytes: int) -> None:
        await self._budget.acquire(size_bytes)
        self.reserved_bytes += size_bytes

    def release(self) -> None:
        self._budget.release(self.reserved_bytes)
        self.reserved_bytes = 0


class Handlers:
    """Runs the servicers' handlers: bytes in, bytes out."""

    def __init__(self, routes: Iterable[Route], *, limits: Limits) -> None:
        self._limits = limits
        self._request_bytes = 0
        self._replies = ByteBudget(limits.server_bytes_max)
        self._routes = {route.method.path: route for route in routes}

    def find(self, path: str, principal: str) -> MethodHandler | None:
        """The handler for this path and this caller; None if no servicer answers it."""
        route = self._routes.get(path)
        if route is None:
            return None
        # Without (de)serialisers gRPC hands over bytes, and a bad message is ours to refuse.
        return grpc.unary_unary_rpc_method_handler(partial(self._serve, route, principal))

    async def _serve(self, route: Route, principal: str, data: bytes, context: Context) -> bytes:
        if self._request_bytes and self._request_bytes + len(data) > self._limits.server_bytes_max:
            await abort_with(context, Overloaded(what="bytes of requests in flight"))
        self._request_bytes += len(data)
        try:
            return await self._answer(route, principal, data, context)
        except _DeadlinePassed:
            await abort_at_deadline(context)
        except NeveError as error:
            await abort_with(context, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # caused by the handler itself: the call was not cancelled
                await abort_with(context, Cancelled(detail="a task of the handler was cancelled"))
            raise
        except Exception as error:  # a bug of one handler must not harm other calls
            log.exception("handler_failed method=%s peer=%s", route.method.path, context.peer())
            await abort_with(context, error)
        finally:
            self._request_bytes -= len(data)

    async def _answer(self, route: Route, principal: str, data: bytes, context: Context) -> bytes:
        method = route.method
        request, attachment = decode(method.request, data)
        check_sizes(
            self._limits,
            f"request of {method.path}",
            message_bytes=len(data) - len(attachment),
            attachment_bytes=len(attachment),
        )
        remaining_s: float | None = context.time_remaining()  # None without a deadline, whatever the stubs say
        timeout_s = DEFAULT_TIMEOUT_S if remaining_s is None else remaining_s
        call = _GrpcCall(
            route,
            self._replies,
            attachment=attachment,
            deadline_s=asyncio.get_running_loop().time() + timeout_s,
            principal=principal,
            peer=context.peer(),
        )
        try:
            async with asyncio.timeout_at(call.deadline_s) as scope:
                reply = await route.answer(request, call)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _DeadlinePassed from None
        finally:
            # Not before gRPC is done with the reply: until then its bytes are still ours to count.
            context.add_done_callback(lambda _: call.release())  # type: ignore[arg-type]
        return self._encode_reply(route, reply, call)

    def _encode_reply(self, route: Route, reply: Message, call: Call) -> bytes:
        if not isinstance(reply, route.method.reply):
            raise Internal(detail=f"{route.method.path} answered with a {type(reply).__name__}")
        size_bytes = attachment_bytes(call.reply_attachment)
        if size_bytes and not has_payload(route.method.reply):
            raise Internal(detail=f"{route.method.path} attached {size_bytes} bytes, but its reply has no payload")
        check_sizes(
            self._limits,
            f"reply of {route.method.path}",
            message_bytes=reply.ByteSize(),
            attachment_bytes=size_bytes,
        )
        return encode(reply, call.reply_attachment)
