"""How a story's network treats bytes: plainly, or raggedly and with the wire's buffers scaled down.

The frames of stories have some hundred bytes. For half of the stories the sizes at which the wire behaves differently
(when it copies, joins, flushes, moves a frame to another buffer, or stops writing) shrink as well, so that stories
come to what real processes do with large frames.

Invariants: what a seed does depends neither on the stories before it in this process nor on those beside it;
            the wire's modules are as they were once the story is over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from neve.rpc.wire import buffers, client, connection, receiver
from neve.rpc.wire.buffers import ChunkPool

WINDOW_BYTES = 64_000

_SCALED: tuple[tuple[Any, str, int], ...] = (
    (buffers, "STREAM_CHUNK_BYTES", 4096),
    (buffers, "CHUNK_STEP_BYTES", 1024),
    (receiver, "STREAM_CHUNK_BYTES", 4096),
    (receiver, "READ_BYTES_MIN", 256),
    (receiver, "ATTACHMENT_COPY_BYTES_MAX", 64),
    (connection, "JOIN_BYTES_MAX", 64),
    (connection, "FLUSH_BYTES", 1024),
)


def network_options(seed: int, *, ragged: bool, far: bool) -> dict[str, Any]:
    """Of the `SimNetwork` of a story. `far`: some hosts are; with a small window no large value would come through."""
    if not ragged:
        return {}
    rng = random.Random(f"network {seed}")
    return {
        "ragged": True,
        "window_bytes": WINDOW_BYTES if far else rng.choice((600, 1500, 6000)),
        "write_buffer_bytes_max": rng.choice((100, 500, 4000)),
    }


@contextmanager
def wire(*, scaled: bool) -> Iterator[None]:
    """The wire's modules as a story has them."""
    with ExitStack() as undo:

        def change(target: Any, name: str, value: Any) -> None:
            undo.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)

        change(client, "_POOL", ChunkPool())
        if scaled:
            for module, name, value in _SCALED:
                change(module, name, value)
        yield
