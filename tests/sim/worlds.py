"""What a story's world has beside the stream layer. The smallest world has nothing else.

Invariants: a world that adds nothing draws nothing: stories of the stream layer alone do not depend on the others;
            whatever a world adds takes part in everything: its hosts in trouble of the network, its connections in
            trouble of the metadata store, its messages in ambushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.sim.troubles.swarm import Shape
from tests.sim.troubles.troubles import Kind, Scene


class World:
    """Streams alone."""

    moments: Sequence[tuple[str, str]] = ()  # messages that trouble waits for: method, "request" or "reply"

    emphasis: float = 1.0  # how much rather trouble is of the world's own kinds
    rest_s: float = 5.0  # at most so long the last trouble has its way

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene

    @staticmethod
    def shape(seed: int, *, short: bool = False) -> Shape:
        return Shape.of(seed, short=short)

    @staticmethod
    def dealt(seed: int) -> Sequence[str]:
        """Kinds of trouble that the seed's story comes to, whatever its weights are."""
        return ()

    @staticmethod
    def cluster_options(seed: int) -> dict[str, Any]:
        """Of the stream layer under it."""
        return {}

    def kinds(self) -> Sequence[Kind]:
        return ()

    def hosts(self) -> list[str]:
        return []

    def meta_users(self) -> list[Any]:
        """Names and connections to the metadata store."""
        return []

    def cast(self) -> frozenset[str]:
        """Hosts that are concerned with one thing at this moment; none if that is none of this world's business."""
        return frozenset()

    def provoke(self, method: str) -> None:
        """Somebody waits for this message: let it be sent."""

    async def begin(self) -> None:
        """Everything is started, and used from now on."""

    async def heal(self) -> None:
        """All trouble ends."""

    def end(self) -> None:
        """Whoever uses it comes to his end."""

    async def finish(self) -> None:
        """Nobody uses it any more: check what must hold, and leave the stream layer alone."""

    def stop(self) -> None:
        """Nothing of it runs any more, however the story ended."""
