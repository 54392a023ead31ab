"""What may befall the replicas of one tail at once, so that their writer hears of them at different times.

Invariants: what the guarantees allow: nobody loses anything, some are late and some are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from neve.stream_manager.metadata.records import Extent
from tests.sim.processes.client import SimClient
from tests.sim.processes.node import SimNode
from tests.sim.troubles.ambush import NOBODY
from tests.sim.troubles.nodes import POWER_CUT_MODES, SOON_S, drain_node, start_node
from tests.sim.troubles.troubles import Kind, Scene

DRAINED, OUTLIVED = "tail drained, nodes missing", "owner stopped past its lease"

SLOW_SHARES = (0.2, 0.3, 0.4)  # of a writer's patience, on the way: longer than it takes to give up a dead node
DELAY_S_MEAN = 150e-6  # of a message, as it is when nothing is slow
SLOW_S = (1.0, 4.0)
MISSING_S = (3.0, 8.0)
STOP_S = (0.0, 0.0005, 0.002)  # after a request: before or after it has left, and been answered
OUTLIVED_S = (9.0, 12.0)  # at least half of it, which is longer than a lease
DEATH_S = (0.0005, 0.002, 0.02)  # after an answer: before or after it has come


class TailTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind("slow replica and a dead one", self._slow_and_dead, sharp=True),
            Kind("owner dies, replica loses power", self._forget, sharp=True),
            Kind(DRAINED, self._drain_the_rest, sharp=True, armed=True),
            Kind(OUTLIVED, self._outlive, sharp=True, armed=True),
        )

    def _tails(self) -> list[tuple[int, SimClient, list[SimNode]]]:
        """Streams, their writers if these run, and the nodes of their tails that do."""
        cluster = self._scene.cluster
        state = next((each.term.state for each in cluster.managers.values() if each.term is not None), None)
        if state is None:
            return []
        found = []
        for stream_id in cluster.ledger.streams:
            stream = state.streams.get(stream_id)
            tail: Extent | None = state.extents.get(stream.tail_id or 0) if stream is not None else None
            opened = [session for session in cluster.ledger.sessions_of(stream_id) if session.token]
            if tail is None or not opened:
                continue
            owner = cluster.clients[max(opened, key=lambda session: session.token).owner]
            nodes = [cluster.nodes[node_id] for node_id in tail.node_ids if cluster.nodes[node_id].serving]
            if owner.running and not owner.process.paused and len(nodes) > 1:
                found.append((stream_id, owner, nodes))
        return found

    def _slow_and_dead(self) -> bool:
        """Answers of one are on their way while another one dies: when its writer asks for the next extent, some of
        what it has sent is taken by all, and it does not know yet (rule 16)."""
        scene = self._scene
        if not (tails := self._tails()):
            return False
        _, owner, nodes = scene.pick(tails, lambda tail: tail[1].name)
        slow, dead = scene.rng.sample(nodes, 2)
        network = scene.cluster.network
        others = [owner.name, *(manager.host for manager in scene.cluster.managers.values())]
        slow_s = scene.rng.choice(SLOW_SHARES) * scene.shape.append_timeout_s
        factor = 1.0 if scene.shape.far else slow_s / DELAY_S_MEAN  # some are slow enough as it is

        def set_all(factor: float) -> None:
            for other in others:
                network.slow(slow.host, other, factor=factor)
                network.slow(other, slow.host, factor=factor)

        set_all(factor)
        process = dead.process

        async def restart() -> None:
            await start_node(scene, dead)

        def die() -> None:
            if dead.process is process and process is not None:
                dead.kill()
                scene.say(f"{dead.host}: killed for {scene.for_a_while(restart):.2f} s")

        asked = False

        def look(method: str, kind: str, source: str, target: str) -> None:
            """It dies when it has answered for something that the slow one was sent when it was slow."""
            nonlocal asked
            if (method, kind, source, target) == ("AppendBlock", "request", owner.name, dead.host):
                asked = True
            elif asked and (method, kind, source, target) == ("AppendBlock", "reply", dead.host, owner.name):
                listeners.pop(look, None)
                loop.call_later(scene.rng.choice(DEATH_S), die, context=NOBODY)

        def end() -> None:
            listeners.pop(look, None)
            set_all(1.0)

        listeners, loop = scene.cluster.wire.listeners, asyncio.get_running_loop()
        listeners[look] = None
        length_s = scene.for_a_while(end, lengths_s=SLOW_S)
        scene.say(f"{slow.host} is slow for {owner.name} and the managers for {length_s:.2f} s, {dead.host} is to die")
        return True

    def _forget(self) -> bool:
        """Nobody is left who knows how much was acknowledged; one replica has lost some of it, and a new owner asks."""
        scene = self._scene
        tails = [
            (stream_id, owner, node)
            for stream_id, owner, nodes in self._tails()
            for node in nodes
            if scene.shape.sync or node.node_id == scene.victim
        ]
        if not tails:
            return False
        stream_id, owner, node = scene.pick(tails, lambda tail: tail[1].name)
        mode, again = scene.rng.choice(POWER_CUT_MODES), scene.rng.random() < 0.5
        owner.kill()
        node.power_cut(mode)

        async def reopen() -> None:
            await start_node(scene, node)
            process = node.process
            if again and process is not None:
                await asyncio.sleep(scene.rng.choice(SOON_S))
                if node.process is process:
                    node.kill()
                    scene.say(f"{node.host} killed again")
                    await start_node(scene, node)
            scene.reopen(stream_id)

        length_s = scene.for_a_while(reopen, lengths_s=SOON_S)
        scene.say(f"{owner.name} killed; {node.host}: no power, {mode} for {length_s:.2f} s")
        return True

    def _drain_the_rest(self) -> bool:
        """A replica dies, and there is no node for the next extent: its writer waits, with appends under way. Another
        replica is to be emptied, and the manager seals by itself, knowing no end: some of what its writer waits for is
        within the seal, and not on every replica (rule 16)."""
        scene = self._scene
        if not (tails := [tail for tail in self._tails() if len(tail[2]) > 2]):
            return False
        _, owner, nodes = scene.pick(tails, lambda tail: tail[1].name)
        dead, drained = scene.rng.sample(nodes, 2)
        missing = [node for node in scene.cluster.nodes.values() if node.serving and node not in nodes]

        def bring_back(node: SimNode) -> Callable[[], Coroutine[Any, Any, None]]:
            return lambda: start_node(scene, node)

        def die() -> None:
            """The others may have what it has not answered for: within the seal, and above what its writer knows."""
            for node in (dead, *missing):
                if node.serving:
                    node.kill()
                    length_s = scene.for_a_while(bring_back(node), lengths_s=MISSING_S)
                    scene.say(f"{node.host}: killed for {length_s:.2f} s")
            drain_node(scene, drained.node_id)
            scene.hit(DRAINED)
            scene.say(f"{owner.name} has no node to go on with")

        length_s = self._at_append(owner, die)
        scene.say(f"{owner.name} is to have no node to go on with when it appends, within {length_s:.2f} s")
        return True

    def _at_append(self, owner: SimClient, act: Callable[[], None]) -> float:
        """Do this when the owner's next append is on its way, or just answered; for so long it is waited for."""
        scene = self._scene

        def look(method: str, kind: str, source: str, target: str) -> None:
            if (method, kind, source) == ("AppendBlock", "request", owner.name):
                listeners.pop(look, None)
                loop.call_later(scene.rng.choice(STOP_S), act, context=NOBODY)

        listeners, loop = scene.cluster.wire.listeners, asyncio.get_running_loop()
        listeners[look] = None
        return scene.for_a_while(lambda: listeners.pop(look, None), lengths_s=SLOW_S)

    def _outlive(self) -> bool:
        """A writer is stopped with appends under way, somebody waits for its lease to end and opens the stream; then it
        goes on, and finds the answers of all replicas in its buffers (rule 2, G5)."""
        scene = self._scene
        if not (tails := self._tails()):
            return False
        stream_id, owner, _ = scene.pick(tails, lambda tail: tail[1].name)
        buffered = scene.rng.random() < 0.7

        def resume() -> None:
            if owner.running and owner.process.paused:
                owner.resume()

        def stop() -> None:
            if owner.running and not owner.process.paused:
                owner.pause(buffered=buffered)
                scene.hit(OUTLIVED)
                scene.say(f"{owner.name} stopped for {scene.for_a_while(resume, lengths_s=OUTLIVED_S):.2f} s")
                scene.reopen(stream_id, patient=True)

        length_s = self._at_append(owner, stop)
        scene.say(f"{owner.name} is to be stopped while it appends, within {length_s:.2f} s")
        return True


__all__ = ["TailTroubles"]
