"""Stories by chance: writers, readers and operators, while nodes, managers, networks and the metadata store misbehave.

    outcome = play(17)                       # the story of a seed
    outcome = play(17, events_max=3)         # its first three troubles alone
    shortest = shortest_failing(17)          # the fewest of its troubles with which it fails
    outcome = play(17, world="partitions")   # another one: key-value clients on partitions on the same stream layer

Invariants: a seed is a story: replaying it takes the same steps (`trace_hash`), in whatever process;
            the trouble is such that the guarantees must hold (troubles/nodes.py);
            at the end all trouble is over, the cluster has repaired itself, and all checkers agree.

A story is made of parts: `Story.parts` have kinds of trouble. What is not the stream layer's comes from the world.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.stream_manager.config import Collecting
from tests.sim.checks.allowed_errors import role_of, wrong_to_tell
from tests.sim.checks.coverage import Coverage
from tests.sim.checks.explained_errors import is_explained
from tests.sim.checks.leaks import stop_and_look
from tests.sim.cluster import SimCluster, run_story
from tests.sim.loop import current
from tests.sim.network.link import exponential_delay
from tests.sim.network.scale import network_options, wire
from tests.sim.partition_world import PartitionWorld
from tests.sim.processes.client import OPTIONS, Killed, SimClient
from tests.sim.processes.node import SimNode
from tests.sim.troubles.ambush import MOMENTS, OPENING, Ambush, MessageTroubles
from tests.sim.troubles.clocks import ClockTroubles
from tests.sim.troubles.damage import DamageTroubles
from tests.sim.troubles.nodes import FORGETTING, NodeTroubles
from tests.sim.troubles.stale_owner import Ghost
from tests.sim.troubles.swarm import Shape, weights_of
from tests.sim.troubles.tails import TailTroubles
from tests.sim.troubles.troubles import ClientTroubles, Kind, ManagerTroubles, MetaTroubles, NetworkTroubles
from tests.sim.troubles.victim import VictimTroubles
from tests.sim.uses.streams import Users
from tests.sim.worlds import World

DEFAULT_WORLD = "streams"
WORLDS: dict[str, type[World]] = {DEFAULT_WORLD: World, "partitions": PartitionWorld}

PAUSE_S_MEAN = 0.6
SCRUB_INTERVAL_S = 10.0
TROUBLE_S = (0.05, 0.5, 2.0, 5.0, 12.0, 20.0)  # about as long as a retry, a call, a lease, a death

# So short that the collector acts in a story, and at its end leaves nothing over.
COLLECTING = Collecting(grace_s=10.0, extra_replica_grace_s=5.0, interval_s=2.0)
EAGER_JOURNAL = {"journal_extents_min": 1, "in_place_bytes_min": 1500}
FOCUS_SHARE = 0.8
HAUNTED = 0.7  # nodes that start
PROMISED = 4.0  # how much rather trouble befalls what a node has just answered for
AT_ONCE = (1, 1, 1, 2, 3)  # troubles that coincide
GIST_CHARS = 80  # of an error, that tell what it is
EXTRA_EVENTS_MAX = 30  # for kinds that a story has to come to, and could not before

Say = Callable[[str], None]
T = TypeVar("T")


class Part(Protocol):
    """Something in a story's world that trouble may befall."""

    def kinds(self) -> Sequence[Kind]: ...


class Story:
    def __init__(
        self,
        cluster: SimCluster,
        seed: int,
        shape: Shape,
        say: Say,
        coverage: Coverage,
        *,
        events_max: int | None,
        world: type[World] = World,
    ) -> None:
        self.cluster = cluster
        self.shape = shape
        self.rng = random.Random(f"story {seed}")
        cluster.synced = shape.sync
        self.victim = self.rng.choice(list(cluster.nodes))
        cluster.let_explain(self._explains)
        cluster.on_refused = lambda owner, error: self.told(owner, error)
        self._far_host = self.rng.choice(list(cluster.nodes.values())).host
        self.drained: set[int] = set()
        self.users = Users(self)
        self._ghost = Ghost(self)
        self.world = world(self, seed)
        self.parts: list[Part] = [
            NodeTroubles(self),
            VictimTroubles(self),
            DamageTroubles(self),
            TailTroubles(self),
            ManagerTroubles(self),
            ClockTroubles(self),
            NetworkTroubles(self),
            MetaTroubles(self),
            ClientTroubles(self),
            MessageTroubles(self),
            self._ghost,
            self.users,
            self.world,
        ]
        self.moments = (*MOMENTS, *self.world.moments)
        self.ambush = Ambush(cluster.wire, self.rng, self.rng.sample(self.moments, self.rng.randint(3, 8)))
        self.focus: frozenset[str] = frozenset()  # hosts that the next trouble rather befalls
        self._seed = seed
        self._say = say
        self._coverage = coverage
        self._events_max = shape.events if events_max is None else min(events_max, shape.events)
        self._begun_s = asyncio.get_running_loop().time()
        self._work: list[asyncio.Task[None]] = []
        self._undoing: list[asyncio.Task[None]] = []
        self._names = 0
        self._begun: set[str] = set()  # kinds of trouble
        cluster.readings.troubles = self._begun
        self._options = dataclasses.replace(OPTIONS, append_timeout_s=shape.append_timeout_s)

    # --- for troubles and users ------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        current().note(line)
        self._say(f"{asyncio.get_running_loop().time() - self._begun_s:8.3f} {line}")

    def told(self, user: str, error: BaseException) -> None:
        self.say(f"{user} is told: {type(error).__name__} {error}")
        asked_by = self.cluster.clients.get(user)
        if isinstance(error, NeveError) and (asked_by is None or asked_by.running):  # a killed process is told nothing
            self._coverage.told[f"{role_of(user)} {type(error).__name__}"] += 1
            if wrong := wrong_to_tell(user, error, troubles=self._begun, ledger=self.cluster.ledger):
                self.cluster.violations.append(f"{user} is told, and {wrong}: {type(error).__name__} {error}")

    def pick(self, candidates: Sequence[T], host: Callable[[T], str]) -> T:
        near = [each for each in candidates if host(each) in self.focus]
        if near and self.rng.random() < FOCUS_SHARE:
            candidates = near
        return self.rng.choice(candidates)

    def other_hosts(self) -> list[str]:
        return self.world.hosts()

    def other_meta_users(self) -> list[Any]:
        return self.world.meta_users()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.append(asyncio.get_running_loop().create_task(work))

    def on_started(self, node: SimNode) -> None:
        if self.rng.random() < HAUNTED:
            self._ghost.haunt(node)

    def _explains(self, event: str, host: str) -> bool:
        victim = self.cluster.nodes[self.victim].host
        return is_explained(event, host, troubles=self._begun, victim=victim)

    def reopen(self, stream_id: int, *, patient: bool = False) -> None:
        if patient:
            self.users.wait_for(stream_id)
        else:
            self._begun.add("stream taken over")  # from whoever has it by now, who may be deaf
            self.users.take_over(stream_id)

    def for_a_while(
        self, undo: Callable[[], Coroutine[Any, Any, None] | None], *, lengths_s: Sequence[float] = ()
    ) -> float:
        """How long a trouble lasts, and its end."""
        length_s = self.rng.choice(lengths_s or TROUBLE_S) * self.rng.uniform(0.5, 1.0)

        async def later() -> None:
            await asyncio.sleep(length_s)
            work = undo()
            if work is not None:
                await work

        self._undoing.append(asyncio.get_running_loop().create_task(later()))
        return length_s

    async def new_client(self, role: str) -> SimClient | None:
        """A new process of that kind; None if it could not connect."""
        self._names += 1
        name = f"{role}{self._names}"
        self.set_far(name)
        try:
            return await self.cluster.client(name, options=self._options)
        except (NeveError, Killed) as error:
            self.told(name, error)
            self.cluster.clients[name].kill()
            return None

    # --- the story -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self.say(str(self.shape))
        kinds = [kind for part in self.parts for kind in part.kinds()]
        weights = weights_of(self._seed, [kind.name for kind in kinds])
        for kind in self.world.kinds():
            weights[kind.name] *= self.world.emphasis
        self.say("troubles: " + ", ".join(name for name, weight in weights.items() if weight))
        sharp = [kind for kind in kinds if kind.sharp and weights[kind.name]]
        for manager in self.cluster.managers.values():
            self.set_far(manager.host)
        await self.world.begin()
        await self.users.begin()
        dealt = self.world.dealt(self._seed)
        due = {kind.name: kind for kind in kinds if kind.name in dealt}
        for _ in range(self._events_max):
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S_MEAN))
            self._cause_due(due)
            if self.rng.random() < self.shape.ambushes:
                self._undoing.append(asyncio.get_running_loop().create_task(self._lie_in_wait(sharp, weights)))
            else:
                if self.rng.random() < 0.5:
                    self.focus = self._cast()
                self._cause_some(kinds, weights)
            self.check()
        for _ in range(EXTRA_EVENTS_MAX if self._events_max == self.shape.events else 0):
            if not due:
                break
            await asyncio.sleep(self.rng.expovariate(1 / PAUSE_S_MEAN))
            self._cause_due(due)
            self.check()
        await asyncio.sleep(self.rng.uniform(0.0, self.world.rest_s))
        self.say("all trouble ends")
        await self._end_trouble()
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.users.over = True
        self.world.end()
        await self.cluster.until(lambda: all(task.done() for task in self._work), "writers and readers end")
        self.check()
        for node_id in sorted(self.drained):
            await self._end_drain(node_id)
        acknowledged = len(self.cluster.ledger.acknowledged())
        self.say(f"{acknowledged} records acknowledged in {len(self.cluster.ledger.sessions)} sessions")
        await self.world.finish()
        await self.cluster.settle()
        await stop_and_look(self.cluster)
        self.say("all is well")

    def set_far(self, host: str) -> None:
        """One node is far away from everybody: what it answers comes when others have answered long ago. Or clients
        are: managers and nodes talk to each other while an append is on its way."""
        delay = exponential_delay(min_s=self.shape.far_s / 2, mean_s=self.shape.far_s / 2)
        for other in self._far_from(host):
            self.cluster.network.set_link(host, other, delay=delay)
            self.cluster.network.set_link(other, host, delay=delay)

    def _far_from(self, host: str) -> list[str]:
        if self.shape.far == "node":
            return [self._far_host]
        if self.shape.far == "clients" and not host.startswith(("manager", "node")):
            return [node.host for node in self.cluster.nodes.values()]
        return []

    def _cause_some(self, kinds: Sequence[Kind], weights: Mapping[str, float]) -> None:
        for _ in range(self.rng.choice(AT_ONCE)):
            self._cause(self.rng.choices(kinds, [weights[each.name] for each in kinds])[0])
        self.focus = frozenset()

    def _cause_due(self, due: dict[str, Kind]) -> None:
        """One of the kinds that this story has to come to, and can at this moment."""
        for name in [*due]:
            kind = due.pop(name)
            if self._coverage.faults[name]:
                continue
            caused = self._cause(kind)
            if kind.armed or not caused:
                due[name] = kind  # behind the others: it may not have hit, or not yet
            if caused:
                return

    def hit(self, kind: str) -> None:
        self._coverage.faults[kind] += 1

    def _cause(self, kind: Kind) -> bool:
        known = kind.name in self._begun
        self._begun.add(kind.name)  # before it: what it causes may be logged at once
        caused = kind.cause()
        if caused:
            self._coverage.faults[kind.name] += not kind.armed
        elif not known:
            self._begun.discard(kind.name)  # nothing came of it, and it explains nothing
        return caused

    async def _lie_in_wait(self, kinds: Sequence[Kind], weights: Mapping[str, float]) -> None:
        """Trouble when a certain message is seen, rather for those whom it concerns."""
        wanted = self.ambush.choose()
        if wanted[0] in OPENING and self.rng.random() < 0.5:
            self._begun.add("stream taken over")
            self.users.take_over()
        self.world.provoke(wanted[0])
        moment = await self.ambush.wait(wanted)
        self.say(f"{moment.source} > {moment.target}: {moment.kind} of {moment.method}")
        self._coverage.moments[f"{moment.method} {moment.kind}"] += 1
        self.focus = frozenset((moment.source, moment.target))
        if self.rng.random() < 0.4:
            self.focus |= self._cast()
        if moment.kind == "reply" and moment.source.startswith("node"):
            weights = {name: weight * (PROMISED if name in FORGETTING else 1.0) for name, weight in weights.items()}
        if kinds:
            self._cause_some(kinds, weights)

    def _cast(self) -> frozenset[str]:
        """Who is concerned with one of the streams: its owner, the nodes of its tail, and the leader."""
        cluster = self.cluster
        if cast := self.world.cast():
            return cast
        leader = next((each for each in cluster.managers.values() if each.term is not None), None)
        if leader is None:
            return frozenset()
        state = leader.manager.term.state if leader.manager.term is not None else None
        known = [each for each in cluster.ledger.streams if state is not None and each in state.streams]
        if state is None or not known:
            return frozenset((leader.host,))
        stream_id = self.rng.choice(known)
        tail_id = state.streams[stream_id].tail_id
        nodes = state.extents[tail_id].node_ids if tail_id is not None else ()
        opened = [session for session in cluster.ledger.sessions_of(stream_id) if session.token]
        owners = [max(opened, key=lambda session: session.token).owner] if opened else []
        return frozenset((leader.host, *owners, *(f"node{node_id}" for node_id in nodes)))

    def check(self) -> None:
        """What can be known to be wrong before the end."""
        self.cluster.check_no_bugs()
        for task in [*self._work, *self._undoing]:
            if task.done() and not task.cancelled():
                task.result()

    async def _end_trouble(self) -> None:
        for task in self._undoing:
            task.cancel()
        for outcome in await asyncio.gather(*self._undoing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        self.cluster.wire.listeners.clear()
        await self.cluster.heal()
        await self.world.heal()

    async def _end_drain(self, node_id: int) -> None:
        """Whoever was to do it may have failed to."""
        operator = await self.cluster.client(f"end{len(self.cluster.clients)}")
        await operator.run(operator.neve.admin.set_node_mode(node_id, sm.NODE_MODE_NORMAL))
        await operator.close()


@dataclass(slots=True)
class Outcome:
    """What became of a seed."""

    seed: int
    trace_hash: str = ""
    error: str = ""  # "" if all is well
    where: str = ""
    cpu_s: float = 0.0
    story: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


def play(
    seed: int,
    *,
    short: bool = False,
    events_max: int | None = None,
    say: Say | None = None,
    world: str = DEFAULT_WORLD,
) -> Outcome:
    """Run the story of a seed. A failure is in the outcome, not raised: each seed is judged for itself."""
    outcome = Outcome(seed)
    kind = WORLDS[world]
    shape = kind.shape(seed, short=short)

    def tell(line: str) -> None:
        outcome.story.append(line)
        if say is not None:
            say(line)

    async def story(cluster: SimCluster) -> None:
        told = Story(cluster, seed, shape, tell, outcome.coverage, events_max=events_max, world=kind)
        try:
            await told.run()
        finally:
            outcome.trace_hash = current().trace_hash()  # of a story that fails, too: is a replay the same?
            told.world.stop()

    options = {
        "disks": shape.disks,
        "scrub_interval_s": SCRUB_INTERVAL_S if shape.loses == "damage" else 0.0,
        **(EAGER_JOURNAL if shape.eager_journal else {}),
    }
    begun_s = time.process_time()
    try:
        with wire(scaled=shape.ragged), outcome.coverage.watching():
            outcome.trace_hash = run_story(
                story,
                seed=seed,
                managers=shape.managers,
                nodes=shape.nodes,
                node_options=options,
                network_options=network_options(seed, ragged=shape.ragged, far=bool(shape.far)),
                collecting=COLLECTING,
                **kind.cluster_options(seed),
            )
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it was, it is what the story found
        frames = traceback.extract_tb(error.__traceback__)
        outcome.error = f"{type(error).__name__}: {error}"
        outcome.where = "".join(traceback.format_list(frames[-3:]))
    outcome.cpu_s = time.process_time() - begun_s
    return outcome


def same_error(one: str, other: str) -> bool:
    """But for its numbers: the same thing may go wrong for another record, at another time."""
    return _gist(one) == _gist(other)


def _gist(error: str) -> str:
    line = next(iter(error.splitlines()), "")
    return re.sub(r"\d+", "#", line)[:GIST_CHARS]


def shortest_failing(
    seed: int, *, short: bool = False, say: Say = lambda _: None, world: str = DEFAULT_WORLD, like: str = ""
) -> Outcome | None:
    """The story with the fewest of its troubles that still fails, with an error `like` that one if there is any such;
    None if it does not fail at all."""
    found: Outcome | None = None
    for count in range(WORLDS[world].shape(seed, short=short).events + 1):
        outcome = play(seed, short=short, events_max=count, world=world)
        say(f"with {count} troubles: {outcome.error.splitlines()[0] if outcome.error else 'all is well'}")
        if outcome.error:
            found = found or outcome
            if not like or same_error(outcome.error, like):
                return outcome
    return found
