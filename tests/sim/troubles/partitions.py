"""What may befall partition servers, partition managers and key-value clients in a story.

Invariants: those of troubles.py. A process that was told to stop, and does not come to its end, is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from neve.proto.errors import NeveError
from tests.sim.partitions import PartitionCluster, SimKeyValue
from tests.sim.processes.client import Killed
from tests.sim.processes.partitions import SimPartitionServer, SimProcess
from tests.sim.troubles.troubles import Kind, Scene, stop_client
from tests.sim.uses.objects import KeyValueUsers

RETRY_S = 1.0
STOP_S_MAX = 20.0
PAST_LEASE_S = (9.0, 11.0)  # half of it is longer than a lease
LONG_PAST_LEASE_S = (12.0, 20.0)
SLOW_FACTOR = 1500.0  # some tenths of a second for each answer
SLOW_S = (4.0, 8.0)
UNHEARD_S = (2.0, 6.0, 12.0)  # less and more than a freeze
SKEWS_MS = (-60_000, -5_000, 5_000, 60_000)  # far below what calls are remembered for: SESSION_IDLE_S of the store


class PartitionTroubles:
    def __init__(self, scene: Scene, partitions: PartitionCluster, users: KeyValueUsers) -> None:
        self._scene = scene
        self._partitions = partitions
        self._users = users

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind("partition server killed", lambda: self._kill(self._servers()), sharp=True),
            Kind("partition server stopped", lambda: self._pause(self._servers()), sharp=True),
            Kind("partition server replaced unknowingly", self._cut_off, sharp=True),
            Kind("partition reshaped unheard", self._reshape_unheard, sharp=True),
            Kind("partition server told to stop", lambda: self._stop(self._servers()), sharp=True),
            Kind("partition server's clock skewed", self._skew),
            Kind("partition manager killed", lambda: self._kill(self._managers()), sharp=True),
            Kind("partition manager stopped", lambda: self._pause(self._managers()), sharp=True),
            Kind("partition manager resigns", lambda: self._stop(self._leaders()), sharp=True),
            Kind("key-value client killed", self._kill_client, sharp=True),
            Kind("key-value client stopped", self._pause_client, sharp=True),
            Kind("partition split", self._users.operators.split, sharp=True),
            Kind("partitions merged", self._merge, sharp=True),
            Kind("partition moved", self._users.operators.move, sharp=True),
            Kind("partition compacted", self._users.operators.compact),
            Kind("partition compacted slowly", self._compact_slowly),
        )

    # --- processes -------------------------------------------------------------------------------------------

    def _servers(self) -> list[SimPartitionServer]:
        return [server for server in self._partitions.servers.values() if server.active]

    def _managers(self) -> list[SimProcess]:
        return [manager for manager in self._partitions.managers.values() if manager.active]

    def _leaders(self) -> list[SimProcess]:
        return [manager for manager in self._partitions.managers.values() if manager.term is not None]

    def _kill(self, candidates: Sequence[SimProcess]) -> bool:
        if not candidates:
            return False
        process = self._scene.pick(candidates, lambda each: each.host)
        process.kill()
        length_s = self._scene.for_a_while(lambda: self._start(process))
        self._scene.say(f"{process.host} killed for {length_s:.2f} s")
        return True

    async def _start(self, process: SimProcess) -> None:
        """Whoever watches over it starts it again and again, until it can."""
        while not process.running:
            try:
                await process.start()
            except (NeveError, Killed) as error:
                self._scene.say(f"{process.host} does not start: {type(error).__name__} {error}")
                await asyncio.sleep(RETRY_S)
            else:
                self._scene.say(f"{process.host} has started")

    def _pause(self, candidates: Sequence[SimProcess]) -> bool:
        if not candidates:
            return False
        machine = self._scene.pick(candidates, lambda each: each.host)
        process = machine.process
        assert process is not None
        buffered = self._scene.rng.random() < 0.5
        machine.pause(buffered=buffered)

        def resume() -> None:
            if machine.process is process and process.paused:
                self._scene.say(f"{machine.host} goes on")
                machine.resume()

        # While somebody else takes over, and some still wait for this one; or as long as anything.
        lengths_s = PAST_LEASE_S if self._scene.rng.random() < 0.5 else ()
        length_s = self._scene.for_a_while(resume, lengths_s=lengths_s)
        self._scene.say(f"{machine.host} stopped for {length_s:.2f} s" + ", with full buffers" * buffered)
        return True

    def _cut_off(self) -> bool:
        """From the metadata store alone, past its lease: others get its partitions, and clients still reach it."""
        if not (servers := self._servers()):
            return False
        server = self._scene.pick(servers, lambda each: each.host)
        process, store = server.process, server.store
        store.disconnect()

        def reconnect() -> None:
            if server.process is process:  # a killed process must not come back
                store.reconnect()

        length_s = self._scene.for_a_while(reconnect, lengths_s=LONG_PAST_LEASE_S)
        self._scene.say(f"{server.host} does not reach the metadata store for {length_s:.2f} s")
        if regions := [each for each in self._partitions.map.regions if each.server_id == server.server_id]:
            self._scene.spawn(self._users.see_replaced(self._scene.rng.choice(regions)))
        return True

    def _reshape_unheard(self) -> bool:
        """A partition is split, or becomes a part of another server's, and its own server hears of it late."""
        if not (servers := self._servers()):
            return False
        server = self._scene.pick(servers, lambda each: each.host)
        length_s = self._scene.rng.choice(UNHEARD_S)
        server.store.interrupt_watches(length_s)
        self._scene.say(f"{server.host} hears nothing of the map for {length_s:g} s")
        pairs = self._users.operators.mergeable(server.server_id)
        if pairs and self._scene.rng.random() < 0.7:
            self._scene.spawn(self._users.see_merged(*self._scene.rng.choice(pairs)))
            return True
        return self._users.operators.split(server.server_id)

    def _merge(self) -> bool:
        """Where there is but one partition, it has to be split first: the next time, then."""
        return self._users.operators.merge() or (self._users.operators.split() and False)

    def _stop(self, candidates: Sequence[SimProcess]) -> bool:
        """SIGTERM, and a new process after a moment."""
        if not candidates:
            return False
        machine = self._scene.pick(candidates, lambda each: each.host)
        process = machine.process
        down_s = self._scene.rng.choice((0.0, 1.0, 6.0))

        async def stop_and_start() -> None:
            if machine.process is not process:
                return  # killed in the same moment: whoever did that starts it again
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    await machine.stop()
            except (NeveError, Killed, TimeoutError) as error:
                self._scene.say(f"{machine.host} does not stop by itself: {type(error).__name__} {error}")
                if machine.process is process:
                    machine.kill()
            await asyncio.sleep(down_s)
            await self._start(machine)

        self._scene.spawn(stop_and_start())
        self._scene.say(f"{machine.host} is told to stop, for {down_s:g} s")
        return True

    def _skew(self) -> bool:
        server = self._scene.rng.choice(list(self._partitions.servers.values()))
        server.skew_ms = self._scene.rng.choice(SKEWS_MS)
        self._users.clocks_are_right = False

        def end() -> None:
            server.skew_ms = 0

        length_s = self._scene.for_a_while(end)
        self._scene.say(f"{server.host}'s clock is wrong by {server.skew_ms / 1000:g} s for {length_s:.2f} s")
        return True

    def _compact_slowly(self) -> bool:
        """Nodes take their time for its server: while a value is read that is to be moved, others write its key."""
        if not (servers := self._servers()):
            return False
        server = self._scene.pick(servers, lambda each: each.host)
        network, nodes = self._scene.cluster.network, list(self._scene.cluster.nodes.values())

        def set_all(factor: float) -> None:
            for node in nodes:
                network.slow(node.host, server.host, factor=factor)

        set_all(SLOW_FACTOR)
        length_s = self._scene.for_a_while(lambda: set_all(1.0), lengths_s=SLOW_S)
        self._scene.say(f"nodes answer {server.host} slowly for {length_s:.2f} s")
        return self._users.operators.compact(server.server_id)

    # --- clients ---------------------------------------------------------------------------------------------

    def _client(self) -> SimKeyValue | None:
        clients = [each for each in self._partitions.clients if each.running and not each.process.paused]
        return self._scene.pick(clients, lambda each: each.name) if clients else None

    def _kill_client(self) -> bool:
        if (client := self._client()) is None:
            return False
        client.kill()
        self._scene.say(f"{client.name} killed")
        return True

    def _pause_client(self) -> bool:
        if (client := self._client()) is None:
            return False
        stop_client(self._scene, client)
        return True
