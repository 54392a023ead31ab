"""One end of a simulated connection: an asyncio transport whose bytes travel through pipes instead of a socket.

Between the two processes there is what a kernel has: a bounded number of bytes that were sent and are not read yet.
What is written beyond it stays in the transport, which tells its protocol to pause, as asyncio's transports do.

Invariants: an end that is over reads nothing more, and its protocol learns so once, by `connection_lost`, from a turn
            of the loop of its own;
            its protocol is called in the context of the process that made the connection or accepted it;
            a paused process reads nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from neve.rpc.service import Buffer
from tests.sim.network.channel import lose_connection
from tests.sim.network.pipe import Mark, Pipe, Segment

RAGGED_SHARE = 0.3  # of reads that get less than there is
LATE_SHARE = 0.3  # of those: how many find the rest later, and not on the next turn


class Host(Protocol):
    """What a transport asks of its network."""

    rng: random.Random
    ragged: bool  # whether reads end anywhere
    window_bytes: int  # how much a kernel takes that was not read at the other end
    write_buffer_bytes_max: int  # how high a protocol may set the bound of what its transport holds

    def is_paused(self, host: str) -> bool: ...

    def wrong(self, what: str) -> None: ...


class SimTransport(asyncio.Transport):
    """The end at `host`; it sends by `out` and receives by `into`. It has no socket: `get_extra_info` knows nothing."""

    def __init__(self, network: Host, host: str, *, on_over: Callable[[], None]) -> None:
        super().__init__()
        self.host = host
        self.reached = False  # its host knows of the connection
        self.over = False  # `connection_lost` was called, or will be on the next turn
        self.out: Pipe
        self.into: Pipe
        self.on_mark: Callable[[Mark], None] = lambda _: None  # what arrives while the connection is being made
        self._network = network
        self._on_over = on_over
        self._protocol: asyncio.BufferedProtocol | None = None
        self._context = contextvars.Context()
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._inbox_end: Mark | None = None  # END or RESET, behind all of it
        self._reading = True
        self._read_due = False
        self._buffer: deque[Buffer] = deque()  # written, and not taken by the kernel
        self._buffer_bytes = 0
        self._high_bytes = 0
        self._low_bytes = 0
        self.write_paused = False
        self.writable_since_s = 0.0  # when its protocol was last told to go on
        self._flush_due = False
        self._closing = False

    def attach(self, protocol: asyncio.BufferedProtocol) -> None:
        """Give this end to a protocol, in the current context."""
        self._protocol = protocol
        self._context = contextvars.copy_context()
        self.into.deliver_in(self._context)
        self.set_write_buffer_limits()
        protocol.connection_made(self)
        self._read_soon()

    # --- asyncio.Transport -----------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.BufferedProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        bound = 64 << 10 if high is None else high
        self._high_bytes = min(bound, self._network.write_buffer_bytes_max)
        self._low_bytes = min(self._high_bytes, bound // 4 if low is None else low)

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        self.out.write(data)
        if not self._buffer:
            data = self._send(data)
        if data:
            self._buffer.append(data)
            self._buffer_bytes += len(data)
            if not self.write_paused and self._buffer_bytes > self._high_bytes and self._protocol is not None:
                self.write_paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """What was written is still sent."""
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self.finish(None)

    def abort(self) -> None:
        self.finish(None)

    # --- the network's side ----------------------------------------------------------------------------------

    def arrived(self, segments: list[Segment]) -> None:
        """At this host. The pipe calls it in this end's context."""
        for segment in segments:
            if not isinstance(segment, Mark):
                self._inbox.append(memoryview(segment))
                self._inbox_bytes += len(segment)
            elif segment in (Mark.END, Mark.RESET):
                self._inbox_end = segment
                if self._closing or not self.reached:  # nobody will read it
                    self.finish(None)
                    return
            else:
                self.on_mark(segment)
        if not self._read_due:
            self._read()

    def on_room(self) -> None:
        """The other end has read something."""
        if self._buffer and not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)

    def resume_host(self) -> None:
        """The process was paused, and runs again."""
        self._read_soon()
        self.on_room()

    def finish(self, error: Exception | None, *, extra_s: float = 0.0) -> None:
        """This end is over. The other one learns of it by the mark behind what was sent."""
        if self.over:
            return
        self.over = self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._inbox.clear()
        self._inbox_bytes = 0
        self.into.shut()
        self.out.send(Mark.END if error is None else Mark.RESET, extra_s=extra_s)
        if self._protocol is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(lose_connection, self._protocol, error, self._network.wrong, context=self._context)
        self._on_over()

    # --- inside ----------------------------------------------------------------------------------------------

    def _send(self, data: Buffer) -> Buffer:
        """Give the kernel what it takes; returns the rest."""
        room_bytes = self._network.window_bytes - self.out.unread_bytes
        if len(data) <= room_bytes:
            self.out.send(data)
            return b""
        if room_bytes <= 0:
            return data
        view = memoryview(data)
        self.out.send(view[:room_bytes])
        return view[room_bytes:]

    def _flush(self) -> None:
        self._flush_due = False
        if self.over or self._network.is_paused(self.host):
            return
        while self._buffer:
            data = self._buffer.popleft()
            rest = self._send(data)
            self._buffer_bytes -= len(data) - len(rest)
            if rest:
                self._buffer.appendleft(rest)
                break
        if self.write_paused and self._buffer_bytes <= self._low_bytes:
            self.write_paused = False
            self.writable_since_s = asyncio.get_running_loop().time()
            assert self._protocol is not None
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self.finish(None)

    def _read_soon(self) -> None:
        if not self._read_due:
            self._read_due = True
            asyncio.get_running_loop().call_soon(self._read, context=self._context)

    def _read_later(self, delay_s: float) -> None:
        self._read_due = True
        asyncio.get_running_loop().call_later(delay_s, self._read, context=self._context)

    def _read(self) -> None:
        """Let the protocol read once, as a loop does on each turn on which there is something to read."""
        self._read_due = False
        protocol = self._protocol
        if protocol is None or self._closing or not self._reading or self._network.is_paused(self.host):
            return
        if self._inbox_bytes:
            buffer = cast(memoryview, protocol.get_buffer(-1))
            count = min(self._inbox_bytes, len(buffer))
            rng = self._network.rng
            ragged = self._network.ragged and count > 1 and rng.random() < RAGGED_SHARE
            if ragged:
                count = rng.randrange(1, count)
            self._take(buffer, count)
            self.into.read(count)
            protocol.buffer_updated(count)
            if self.over or not (self._inbox_bytes or self._inbox_end):
                return
            if ragged and not self._read_due and rng.random() < LATE_SHARE:
                self._read_later(rng.uniform(0.0, 0.001))
            else:
                self._read_soon()
        elif self._inbox_end is Mark.RESET:
            self.finish(ConnectionResetError("the connection was reset by the peer"))
        elif self._inbox_end is Mark.END:
            self._inbox_end = None
            protocol.eof_received()
            self.close()

    def _take(self, buffer: memoryview, count: int) -> None:
        self._inbox_bytes -= count
        filled, inbox = 0, self._inbox
        while filled < count:
            data = inbox.popleft()
            wanted = count - filled
            if len(data) > wanted:
                inbox.appendleft(data[wanted:])
                data = data[:wanted]
            buffer[filled : filled + len(data)] = data
            filled += len(data)
