"""The bounds of all transports. Every server and client has one `Limits`; nothing is unbounded.

A server's memory is at most `server_bytes_max` of requests and as much of reserved replies, for any number of
connections, plus a receive buffer (256 KiB) for each connection on which a frame is arriving. A held request counts
with its own size and may pin a receive buffer of up to four times that.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    # Bulk bytes are in the attachment, so 4 MiB for the message is far above any honest request.
    message_bytes_max: int = 4 * MIB
    attachment_bytes_max: int = 64 * MIB

    # In flight: sent or received and not yet answered. A sender at the bound waits; a receiver at the bound stops
    # reading its sockets, which is how the wait reaches a sender that has its own bound set higher.
    connection_bytes_max: int = 128 * MIB  # above the largest frame, so that one of that size need not be alone
    connection_calls_max: int = 16_384
    server_bytes_max: int = 512 * MIB
    connections_max: int = 10_000

    # The unsent bytes that a transport may hold in user space before it stops taking replies from the queue.
    write_buffer_bytes: int = 1 * MIB

    connect_timeout_s: float = 5.0
    handshake_timeout_s: float = 5.0  # from accept to a valid HELLO: bounds what a silent peer can hold
    frame_timeout_s: float = 60.0  # from a frame's first byte to its last: bounds a slow sender
    keepalive_s: float = 10.0  # a side that has sent nothing for half of this sends a beat
    dead_peer_s: float = 30.0  # after this silence the peer counts as dead
    drain_timeout_s: float = 10.0
    reconnect_delay_s_min: float = 0.05
    reconnect_delay_s_max: float = 5.0

    # How long a server polls for a sequential client's next request (wire/server_busy_poll.py); 0: it does not poll.
    # Longer times gained nothing more.
    awake_s: float = 0.0003

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name == "awake_s":
                if not 0 <= self.awake_s < 1:
                    raise ValueError(f"limits.awake_s must be 0 or more, and less than 1, got {self.awake_s}")
            elif getattr(self, name) <= 0:
                raise ValueError(f"limits.{name} must be above 0, got {getattr(self, name)}")
        if self.dead_peer_s <= self.keepalive_s:
            raise ValueError("limits.dead_peer_s must be above limits.keepalive_s, or a live peer is taken for dead")


DEFAULT_LIMITS = Limits()
