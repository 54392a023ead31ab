"""fdatasync by the kernel's own workers, so that no thread of this process wakes or waits for it.

On a fast disk a thread costs more than the sync: handing the call over, passing the interpreter's lock back and forth
and waking the loop took 110 µs of processor time, on two cores, while an fdatasync took 130 µs. A request to the
kernel's asynchronous I/O (io_submit with IOCB_CMD_FDSYNC, Linux 4.18 and later), whose end an eventfd reports, took
10 µs.

Invariants: the outcome is that of fdatasync on the same open file: an error that the kernel reports once goes to the
            caller of that request, and to no other (scenario T23);
            the kernel holds the file during the sync, so its descriptor may be closed meanwhile;
            at most `orders_max` requests are under way. Further ones, and all where the kernel, the machine or the file
            system lacks support, need a thread (`begin` returns False): only speed depends on this module.
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
    """Numbers of the system calls, for which the C library has no functions."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_NUMBERS = {
    "x86_64": _Numbers(setup=206, destroy=207, getevents=208, submit=209),
    "aarch64": _Numbers(setup=0, destroy=1, getevents=4, submit=2),
}

# From linux/aio_abi.h, for little-endian machines.
_FDSYNC = 3
_TELL_EVENTFD = 1
# data, key, rw_flags, opcode, priority, fd, buffer, bytes, offset, reserved, flags, eventfd
_ORDER = struct.Struct("<QIiHhIQQqQII")
_EVENT = struct.Struct("<QQqq")  # data, order, result, second result


class KernelSync:
    """The kernel's asynchronous syncs, for the loop that is running when this is made.

    OSError: the kernel lacks them, or a sandbox forbids them.
    """

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
        """Start an fdatasync of this descriptor's file; the loop calls `on_done` at its end. False: use a thread."""
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
        """Wait until nothing is under way."""
        if self._waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            self._drained.append(future)
            await future

    def close(self) -> None:
        """Wait for the syncs under way and drop their outcomes; blocks."""
        self._loop.remove_reader(self._eventfd)
        self._call(self._numbers.destroy, self._context)
        os.close(self._eventfd)

    def _on_done(self) -> None:
        os.eventfd_read(self._eventfd)
        # Reads all events at once: there is room for one from every request.
        count = self._call(
            *(self._numbers.getevents, self._context, ctypes.c_long(0), ctypes.c_long(self._orders_max)),
            *(self._events, None),
        )
        for index in range(count):
            order_id, _, result, _ = _EVENT.unpack_from(self._events, _EVENT.size * index)
            on_done = self._waiting.pop(order_id)
            try:
                on_done(None if result >= 0 else OSError(-result, os.strerror(-result)))
            except Exception as failure:  # noqa: BLE001 - a bug in a callback: it is logged, and the others still run
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
    """The kernel's syncs; None if `orders_max` is 0, or if the kernel refuses."""
    if not orders_max:
        return None
    try:
        return KernelSync(orders_max)
    except OSError as error:
        log.info("kernel_sync_unavailable error=%s: threads do it", error)
        return None
