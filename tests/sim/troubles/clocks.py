"""Clocks that run fast or slow: a lease's time is not everybody's time.

Invariants: no clock's rate differs from the metadata store's by more than what leases allow for (rule 2);
            a machine's clock never jumps: what it gained or lost in its time it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.troubles.troubles import Kind, Scene

RATES = (0.99, 0.99, 0.999, 1.01)  # within a hundredth, as rule 2 says; slow is the danger
LENGTHS_S = (5.0, 12.0, 25.0)  # leases and what keeps them from being renewed


class ClockTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        return (Kind("clock runs fast or slow", self._change_rate, sharp=True),)

    def _change_rate(self) -> bool:
        scene = self._scene
        clients = scene.cluster.clients
        gone = {name for name, client in clients.items() if not client.running}
        clocks = {n: clock for n, clock in scene.cluster.clocks.items() if clock.rate == 1.0 and n not in gone}
        if not clocks:
            return False
        holders = [name for name in clocks if not name.startswith("node")]  # of leases: these go by their clocks most
        name = scene.pick(holders if holders and scene.rng.random() < 0.8 else list(clocks), str)
        clock, rate = clocks[name], scene.rng.choice(RATES)
        clock.set_rate(rate)
        length_s = scene.for_a_while(lambda: clock.set_rate(1.0), lengths_s=LENGTHS_S)
        scene.say(f"the clock of {name} runs at {rate:g} for {length_s:.2f} s")
        return True
