"""fdatasync by the kernel's own workers: no thread of ours is woken for it, and none waits.

On a quick disk a thread costs more than the sync: to hand the call over, to pass the interpreter's lock to and fro and
to wake the loop took 110 µs of processor time, on two cores beside an fdatasync of 130 µs. An order to the kernel's
asynchronous I/O (io_submit with IOCB_CMD_FDSYNC, Linux 4.18 and later), of which an eventfd tells the end, took 10 µs.

Invariants: the outcome is that of fdatasync on the same open file: an error that the kernel tells once is told to
            whoever waits for that order, and to nobody else (T23);
            the kernel holds the file while it syncs it: a descriptor that is closed meanwhile harms nobody;
            at most `orders_max` are under way. What is more than that, or what this kernel, this machine or this file
            system does not do, is the threads' (`begin` returns None): nothing but speed rests on this module.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

OnDone = Callable[[OSError | None], None]


class _Numbers(NamedTuple):
    """Of the system calls: the C library has no functions for them."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_NUMBERS = {
    "x86_64": _Numbers(setup=206, destroy=207, getevents=208, submit=209),
    "aarch64": _Numbers(setup=0, destroy=1, getevents=4, submit=2),
}

# From linux/aio_abi.h, as little-endian machines have them.
_FDSYNC = 3
_TELL_EVENTFD = 1
# data, key, rw_flags, opcode, priority, fd, buffer, bytes, offset, reserved, flags, eventfd
_ORDER = struct.Struct("<QIiHhIQQqQII")
_EVENT = struct.Struct("<QQqq")  # data, order, result, second result


class KernelSync:
    """Made in a running loop, for that loop alone. OSError: this kernel, or what confines us, does not have it."""

    def __init__(self, orders_max: int) -> None:
        numbers = _NUMBERS.get(os.uname().machine)
        if numbers is None or sys.byteorder != "little" or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, f"its system calls are not known here, on {os.uname().machine}")
        self._numbers = numbers
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._orders_max = orders_max
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, OnDone] = {}
        self._drained: list[asyncio.Future[None]] = []
        self._order_id = 0
        self._order = ctypes.create_string_buffer(_ORDER.size)
        self._orders = (ctypes.c_void_p * 1)(ctypes.addressof(self._order))
        self._events = ctypes.create_string_buffer(_EVENT.size * orders_max)
        context = ctypes.c_ulong(0)
        self._call(numbers.setup, orders_max, ctypes.byref(context))
        self._context = context
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._eventfd, self._on_done)

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def begin(self, fd: int, on_done: OnDone) -> bool:
        """An fdatasync of this descriptor's file, of whose end the loop tells `on_done`. False: a thread must do it."""
        if len(self._waiting) >= self._orders_max:
            return False
        self._order_id += 1
        order = (self._order_id, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _TELL_EVENTFD, self._eventfd)
        _ORDER.pack_into(self._order, 0, *order)
        try:
            self._call(self._numbers.submit, self._context, ctypes.c_long(1), self._orders)
        except OSError as error:
            log.warning("kernel_sync_refused fd=%d error=%s", fd, error)
            return False
        self._waiting[self._order_id] = on_done
        return True

    async def drained(self) -> None:
        """Until nothing is under way."""
        if self._waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(future)
            await future

    def close(self) -> None:
        """Waits for what is under way, whose outcome nobody hears any more; blocks."""
        self._loop.remove_reader(self._eventfd)
        self._call(self._numbers.destroy, self._context)
        os.close(self._eventfd)

    def _on_done(self) -> None:
        os.eventfd_read(self._eventfd)
        # As many as there are: no order is left without its event, since there is room for all of them.
        count = self._call(
            *(self._numbers.getevents, self._context, ctypes.c_long(0), ctypes.c_long(self._orders_max)),
            *(self._events, None),
        )
        for number in range(count):
            order_id, _, result, _ = _EVENT.unpack_from(self._events, _EVENT.size * number)
            on_done = self._waiting.pop(order_id)
            try:
                on_done(None if result >= 0 else OSError(-result, os.strerror(-result)))
            except Exception as failure:  # noqa: BLE001 - a bug of who was told: it is logged, and the others are told
                context = {"message": "the outcome of a sync was not noted", "exception": failure}
                self._loop.call_exception_handler(context)
        if self._drained and not self._waiting:
            drained, self._drained = self._drained, []
            for future in drained:
                if not future.done():
                    future.set_result(None)

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def kernel_sync_or_none(orders_max: int) -> KernelSync | None:
    """None if `orders_max` is 0, or if the kernel refuses."""
    if not orders_max:
        return None
    try:
        return KernelSync(orders_max)
    except OSError as error:
        log.info("kernel_sync_unavailable error=%s: threads do it", error)
        return None
