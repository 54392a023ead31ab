"""What may befall a cluster in a story: network, metadata store, managers and clients. Nodes: troubles/nodes.py.

Invariants: a kind of trouble has a name, by which stories choose it and coverage counts it; `cause` says whether it
            came to anything: nothing is counted that did not happen; one that lies in wait is counted when it hits;
            whatever is caused ends by itself, or when the story heals everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from neve.meta.memory.link import Fault
from neve.proto.errors import NeveError
from tests.sim.cluster import SimCluster
from tests.sim.network.link import exponential_delay
from tests.sim.network.network import DEFAULT_DELAY
from tests.sim.partitions import SimKeyValue
from tests.sim.processes.client import Killed, SimClient
from tests.sim.processes.manager import SimManager
from tests.sim.processes.node import SimNode
from tests.sim.troubles.swarm import Shape

T = TypeVar("T")

LOST, LOST_BY_CHANCE = "lost frames", "losses by chance"
CUT, CUT_ONE_WAY = "links cut", "links cut one way"
MAYBE, UNAVAILABLE = "metadata maybe applied", "metadata unavailable"

SKEWS_MS = (-600_000, -5_000, 5_000, 60_000)  # what was made in the future is collected when it is past


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    cause: Callable[[], bool]
    sharp: bool = False  # it matters at which moment: what ambushes draw from
    armed: bool = False  # `cause` only makes it ready: it tells the scene when it hits


class Scene(Protocol):
    """What a trouble knows of its story."""

    cluster: SimCluster
    rng: random.Random
    shape: Shape
    victim: int  # the node whose disks cannot be relied on
    drained: set[int]  # nodes that somebody has asked to drain
    moments: Sequence[tuple[str, str]]  # messages that matter: method, "request" or "reply"

    def say(self, line: str) -> None: ...

    def told(self, user: str, error: BaseException) -> None:
        """This is what became of something that a user asked for: it may be what nobody must ever be told."""
        ...

    def hit(self, kind: str) -> None:
        """Trouble of this kind, which is armed, has come about."""
        ...

    def pick(self, candidates: Sequence[T], host: Callable[[T], str]) -> T:
        """One of them, rather one that the story is concerned with at this moment."""
        ...

    def for_a_while(
        self, undo: Callable[[], Coroutine[Any, Any, None] | None], *, lengths_s: Sequence[float] = ()
    ) -> float:
        """Ends a trouble after a while, about as long as one of `lengths_s` if they are given."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def on_started(self, node: SimNode) -> None: ...

    def reopen(self, stream_id: int, *, patient: bool = False) -> None:
        """Somebody takes this stream over; `patient`: waits for whoever has it, and opens it then."""
        ...

    async def new_client(self, role: str) -> SimClient | None: ...

    def set_far(self, host: str) -> None:
        """A new host is as far from the others as the story has it."""
        ...

    def other_hosts(self) -> list[str]:
        """That are neither nodes nor managers nor clients of streams."""
        ...

    def other_meta_users(self) -> list[Any]:
        """The same, with their connections to the metadata store."""
        ...


def running_clients(scene: Scene) -> list[SimClient]:
    return [client for client in scene.cluster.clients.values() if client.running and not client.process.paused]


def stop_client(scene: Scene, client: SimClient | SimKeyValue) -> None:
    """For a while, with what is sent to it in its own buffers or on the way."""
    client.pause(buffered=scene.rng.random() < 0.5)

    def resume() -> None:
        if client.running and client.process.paused:
            client.resume()

    scene.say(f"{client.name} stopped for {scene.for_a_while(resume):.2f} s")


class NetworkTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._network = scene.cluster.network

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind(CUT, self._partition, sharp=True, armed=True),
            Kind(CUT_ONE_WAY, self._partition_one_way, sharp=True, armed=True),
            Kind("late frames", self._cut_connections, sharp=True),
            Kind(LOST, self._lose_frames, sharp=True, armed=True),
            Kind(LOST_BY_CHANCE, self._lose_by_chance, armed=True),
            Kind("slow links", self._slow_link, sharp=True),
            Kind("reordering", self._reorder),
            Kind("slow host", self._slow_host),
        )

    def _hosts(self) -> list[str]:
        cluster = self._scene.cluster
        hosts = [node.host for node in cluster.nodes.values()]
        hosts += [manager.host for manager in cluster.managers.values()]
        return hosts + [client.name for client in running_clients(self._scene)] + self._scene.other_hosts()

    def _two(self) -> tuple[str, str]:
        hosts = self._hosts()
        one = self._scene.pick(hosts, str)
        other = self._scene.pick([host for host in hosts if host != one], str)
        return one, other

    def _connected(self) -> tuple[str, str] | None:
        """Two that talk to each other, in either order; None if nobody does."""
        hosts = set(self._hosts())
        pairs = [pair for pair in self._network.connected() if hosts.issuperset(pair)]
        if not pairs:
            return None
        one = self._scene.pick(sorted({host for pair in pairs for host in pair}), str)
        other = self._scene.pick([a if b == one else b for a, b in pairs if one in (a, b)], str)
        return (one, other) if self._scene.rng.random() < 0.5 else (other, one)

    def _partition(self) -> bool:
        one, other = self._two()
        self._network.partition(one, other, on_blocked=lambda: self._scene.hit(CUT))
        length_s = self._scene.for_a_while(lambda: self._network.heal(one, other))
        self._scene.say(f"links cut {one} = {other} for {length_s:.2f} s")
        return True

    def _partition_one_way(self) -> bool:
        one, other = self._two()
        self._network.partition_one_way(one, other, on_blocked=lambda: self._scene.hit(CUT_ONE_WAY))
        length_s = self._scene.for_a_while(lambda: self._network.heal(one, other))
        self._scene.say(f"link cut {one} > {other} for {length_s:.2f} s")
        return True

    def _cut_connections(self) -> bool:
        """What was on the way may arrive later, behind what is sent on the next connection."""
        if (pair := self._connected()) is None:
            return False
        one, other = pair
        self._network.cut(one, other)
        self._scene.say(f"connections between {one} and {other} cut")
        return True

    def _lose_frames(self) -> bool:
        if (pair := self._connected()) is None:
            return False
        one, other = pair
        count = self._scene.rng.randint(1, 3)
        self._network.drop_next(one, other, count=count, on_lost=lambda: self._scene.hit(LOST))
        self._scene.say(f"frames lost {one} > {other}")
        return True

    def _lose_by_chance(self) -> bool:
        if (pair := self._connected()) is None:
            return False
        one, other = pair
        share = self._scene.rng.choice((0.02, 0.1, 0.3))
        self._network.set_link(one, other, drop_probability=share, on_lost=lambda: self._scene.hit(LOST_BY_CHANCE))
        length_s = self._scene.for_a_while(lambda: self._network.set_link(one, other, drop_probability=0.0))
        self._scene.say(f"{share:.0%} of frames lost {one} > {other} for {length_s:.2f} s")
        return True

    def _slow_link(self) -> bool:
        one, other = self._two()
        self._network.slow(one, other, factor=self._scene.rng.choice((30, 1000, 10_000)))
        length_s = self._scene.for_a_while(lambda: self._network.slow(one, other, factor=1.0))
        self._scene.say(f"slow {one} > {other} for {length_s:.2f} s")
        return True

    def _reorder(self) -> bool:
        """Delays that differ by far more than the time between messages: hosts and connections overtake each other."""
        host = self._scene.pick(self._hosts(), str)
        others = [other for other in self._hosts() if other != host]
        wild = exponential_delay(min_s=0.0, mean_s=self._scene.rng.choice((0.02, 0.2)))
        for other in others:
            self._network.set_link(other, host, delay=wild)

        def end() -> None:
            for other in others:
                self._network.set_link(other, host, delay=DEFAULT_DELAY)
            for each in (host, *others):
                self._scene.set_far(each)  # if it was

        self._scene.say(f"messages to {host} overtake each other for {self._scene.for_a_while(end):.2f} s")
        return True

    def _slow_host(self) -> bool:
        host = self._scene.pick(self._hosts(), str)
        factor = self._scene.rng.choice((20, 300, 3_000))
        others = [other for other in self._hosts() if other != host]

        def set_all(factor: float) -> None:
            for other in others:
                self._network.slow(host, other, factor=factor)
                self._network.slow(other, host, factor=factor)

        set_all(factor)
        self._scene.say(f"{host} is slow for {self._scene.for_a_while(lambda: set_all(1.0)):.2f} s")
        return True


class MetaTroubles:
    """Of the metadata store, as one process sees it."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind("metadata stalls", self._stall, sharp=True),
            Kind("metadata refuses", self._refuse, sharp=True),
            Kind(MAYBE, self._unknown_outcomes, sharp=True, armed=True),
            Kind(UNAVAILABLE, self._unavailable, armed=True),
            Kind("metadata slow", self._slow, sharp=True),
            Kind("metadata compacted", self._compact),
            Kind("watches interrupted", self._interrupt, sharp=True),
        )

    def _users(self) -> list[Any]:
        users: list[Any] = [(m.host, m.store) for m in self._scene.cluster.managers.values() if m.running]
        users += [(client.name, client.meta) for client in running_clients(self._scene)]
        return users + self._scene.other_meta_users()

    def _user(self) -> Any:
        users = self._users()
        return self._scene.pick(users, lambda user: str(user[0])) if users else None

    def _stall(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        store.stall()
        self._scene.say(f"metadata stalls for {name} for {self._scene.for_a_while(store.resume):.2f} s")
        return True

    def _refuse(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        store.disconnect()

        def reconnect() -> None:
            if any(store is other for _, other in self._users()):  # a killed process must not come back
                store.reconnect()

        self._scene.say(f"metadata refuses {name} for {self._scene.for_a_while(reconnect):.2f} s")
        return True

    def _unknown_outcomes(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        plan = store.plan
        plan.on_fault = self._on_fault
        plan.lost_after_apply_share = self._scene.rng.choice((0.1, 0.5, 0.9))
        plan.lost_before_apply_share = self._scene.rng.choice((0.0, 0.1))

        def end() -> None:
            plan.lost_after_apply_share = plan.lost_before_apply_share = 0.0

        self._scene.say(f"unknown outcomes for {name} for {self._scene.for_a_while(end):.2f} s")
        return True

    def _on_fault(self, fault: Fault, write: bool) -> None:
        if fault is Fault.UNAVAILABLE:
            self._scene.hit(UNAVAILABLE)
        elif write:  # of what only reads, nobody asks whether it was done
            self._scene.hit(MAYBE)

    def _unavailable(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        store.plan.on_fault = self._on_fault
        store.plan.unavailable_share = self._scene.rng.choice((0.1, 0.7))

        def end() -> None:
            store.plan.unavailable_share = 0.0

        self._scene.say(f"metadata often unavailable for {name} for {self._scene.for_a_while(end):.2f} s")
        return True

    def _slow(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        delay_s = store.plan.delay_s_max
        store.plan.delay_s_max = self._scene.rng.choice((0.1, 0.6))

        def end() -> None:
            store.plan.delay_s_max = delay_s

        self._scene.say(f"metadata slow for {name} for {self._scene.for_a_while(end):.2f} s")
        return True

    def _compact(self) -> bool:
        key_space = self._scene.cluster.etcd.key_space
        if key_space.revision <= key_space.compact_revision + 1:
            return False
        self._scene.cluster.etcd.compact(key_space.revision)
        self._scene.say(f"metadata compacted at {key_space.revision}")
        return True

    def _interrupt(self) -> bool:
        if (user := self._user()) is None:
            return False
        name, store = user
        length_s = self._scene.rng.choice((0.5, 5.0, 20.0))
        store.interrupt_watches(length_s)
        self._scene.say(f"watches of {name} are down for {length_s:.2f} s")
        return True


class ManagerTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind("manager killed", self._kill, sharp=True),
            Kind("manager stopped", self._pause, sharp=True),
            Kind("manager resigns", self._resign),
            Kind("manager's clock skewed", self._skew),
        )

    def _one(self) -> SimManager:
        return self._scene.pick(list(self._scene.cluster.managers.values()), lambda manager: manager.host)

    def _kill(self) -> bool:
        manager = self._one()
        if not manager.running:
            return False
        leads = manager.term is not None
        manager.kill()

        def restart() -> None:
            if not manager.running:
                manager.start()

        length_s = self._scene.for_a_while(restart)
        self._scene.say(f"{manager.host} (leads: {leads}) killed for {length_s:.2f} s")
        return True

    def _pause(self) -> bool:
        manager = self._one()
        process = manager.process
        if process is None or process.paused:
            return False
        leads = manager.term is not None
        manager.pause()

        def resume() -> None:
            if manager.process is process and process.paused:
                self._scene.say(f"{manager.host} goes on")
                manager.resume()

        length_s = self._scene.for_a_while(resume)
        self._scene.say(f"{manager.host} (leads: {leads}) stopped for {length_s:.2f} s")
        return True

    def _resign(self) -> bool:
        """SIGTERM to whoever leads, and a new process after a moment."""
        manager = next((each for each in self._scene.cluster.managers.values() if each.term is not None), None)
        if manager is None or len(self._scene.cluster.managers) < 2:
            return False
        process = manager.process

        async def stop_and_start() -> None:
            if manager.process is not process:
                return  # killed in the same moment: whoever did that starts it again
            try:
                await manager.stop()
            except (NeveError, asyncio.CancelledError) as error:  # killed meanwhile, or the store is away
                self._scene.say(f"{manager.host} does not stop by itself: {type(error).__name__}")
                if manager.process is process:
                    manager.kill()
            if not manager.running:
                manager.start()

        self._scene.spawn(stop_and_start())
        self._scene.say(f"{manager.host} is told to stop")
        return True

    def _skew(self) -> bool:
        manager = self._one()
        manager.skew_ms = self._scene.rng.choice(SKEWS_MS)

        def end() -> None:
            manager.skew_ms = 0

        length_s = self._scene.for_a_while(end)
        self._scene.say(f"{manager.host}'s clock is wrong by {manager.skew_ms / 1000:g} s for {length_s:.2f} s")
        return True


class ClientTroubles:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def kinds(self) -> Sequence[Kind]:
        return (Kind("client stopped", self._pause, sharp=True), Kind("client killed", self._kill, sharp=True))

    def _pause(self) -> bool:
        if not (clients := running_clients(self._scene)):
            return False
        client = self._scene.pick(clients, lambda client: client.name)
        stop_client(self._scene, client)
        return True

    def _kill(self) -> bool:
        if not (clients := running_clients(self._scene)):
            return False
        client = self._scene.pick(clients, lambda client: client.name)
        client.kill()
        self._scene.say(f"{client.name} killed")
        return True


__all__ = ["ClientTroubles", "Killed", "Kind", "ManagerTroubles", "MetaTroubles", "NetworkTroubles", "Scene"]
