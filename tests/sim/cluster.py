"""A whole stream layer on virtual time: managers, nodes, clients and their metadata store, all real but for the world.

    @simulated(seed=1)
    async def test_something(cluster: SimCluster) -> None:
        stream = await cluster.create_stream(replicas=3)
        writer = await (await cluster.client("writer")).writer(stream.id)
        await writer.append()
        cluster.nodes[1].kill()
        ...

A story ends with `cluster.settle()`: all trouble ends, everything runs again, the cluster is given time to repair
itself, and everything that must hold is checked (checkers.py).

Invariants: one seed, one story: all chance comes from the loop's and the network's rng, in the order of the calls;
            what breaks a guarantee of metadata is found when it is written, whatever becomes of it later.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from neve.client.streams.options import ClientOptions
from neve.client.streams.types import Position, Stream
from neve.proto import extent_node_pb2 as en
from neve.proto.blocks import HEADER_BYTES, split_record, verify
from neve.proto.errors import INT64_MAX, NeveError
from neve.stream_manager.config import Collecting, Limits, ManagerConfig, Placing, Recovery, Timeouts
from neve.stream_manager.metadata.records import Extent, root_of
from neve.stream_manager.metadata.state import State
from neve.stream_manager.nodes.core.health import HealthConfig
from neve.stream_manager.term.leader import Term
from tests.sim.checks.ledger import Attempt, Ledger
from tests.sim.checks.memory import held_by_modules
from tests.sim.checks.reads import Readings
from tests.sim.checks.watched_store import WatchedStore
from tests.sim.checks.wire_watch import WireWatch
from tests.sim.disks.faults import SimulatedCrash
from tests.sim.loop import current
from tests.sim.network.network import SimNetwork
from tests.sim.processes import processes
from tests.sim.processes.client import OPTIONS, SimClient, SimWriter
from tests.sim.processes.manager import PORT, SimManager
from tests.sim.processes.node import CLUSTER, SimNode
from tests.sim.processes.processes import Clock

ROOT = root_of(CLUSTER)
REAL_LIMIT_S = 240.0
EXTENT_BYTES = 4000
UNTIL_S = 300.0  # virtual: far above what any repair takes
LEASE_TTL_S = 3


def sim_config(**changes: Any) -> ManagerConfig:
    """Short delays: virtual time is free, but each heartbeat is real work."""
    tables: dict[str, Any] = {
        "health": HealthConfig(
            heartbeat_s=1.0, suspect_after_s=3.0, dead_after_s=8.0, stabilise_s=3.0, leader_grace_s=4.0
        ),
        "placing": Placing(free_bytes_min=1),
        "limits": Limits(extent_bytes_min=1),
        "recovery": Recovery(delay_s=4.0, retry_delay_s=1.0, retry_delay_s_max=4.0),
        "collecting": Collecting(grace_s=120.0, extra_replica_grace_s=30.0, interval_s=5.0),
        "timeouts": Timeouts(node_call_s=2.0, node_seal_s=10.0, wait_confirmed_s=10.0),
        **changes,
    }
    return ManagerConfig(cluster=CLUSTER, lease_ttl_s=LEASE_TTL_S, **tables)


class _ErrorLog(logging.Handler):
    """What was logged as an error, a bug unless a scenario names its event or what makes trouble explains it. So is a
    violation of the wire's protocol: all peers of a story are ours, and no network changes bytes."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.logged: list[tuple[str, str, str]] = []  # event, host, line
        self.explains: Callable[[str, str], bool] | None = None  # of an event and its host

    def emit(self, record: logging.LogRecord) -> None:
        if processes.owner_is_killed():
            return
        message, host = record.getMessage(), processes.owner()
        event = message.partition(" ")[0]
        if record.levelno < logging.ERROR and event != "connection_violated":
            return
        if self.explains is not None and self.explains(event, host):  # asked at once: later trouble explains nothing
            return
        line = f"{record.name}: {message}"
        if record.exc_info is not None:
            line += "\n" + logging.Formatter().formatException(record.exc_info)
        self.logged.append((event, host, line))


class SimCluster:
    """Made inside of the loop that it runs on. `start` brings all up; `settle` ends a story; `stop` ends everything."""

    def __init__(
        self,
        seed: int = 0,
        *,
        managers: int = 2,
        nodes: int = 4,
        node_options: dict[str, Any] | None = None,
        network_options: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.rng = random.Random(f"cluster {seed}")
        self.network = SimNetwork(
            random.Random(self.rng.getrandbits(64)), trace=current().note, **(network_options or {})
        )
        self.etcd = WatchedStore(ROOT)
        self.wire = WireWatch(
            self.etcd, {f"manager{number}": f"manager{number}:{PORT}" for number in range(1, managers + 1)}
        )
        self.wire.length_on = self._length_on
        self.network.watcher = self.wire
        self.config = sim_config(**config)
        self.ledger = Ledger()
        self.managers = {
            number: SimManager(self.network, self.etcd, number=number, config=self.config)
            for number in range(1, managers + 1)
        }
        self.clocks: dict[str, Clock] = {manager.host: manager.clock for manager in self.managers.values()}  # by host
        self.nodes: dict[int, SimNode] = {}
        self._node_options = node_options or {}
        for node_id in range(1, nodes + 1):
            self.add_node(node_id)
        self.clients: dict[str, SimClient] = {}
        self.violations: list[str] = []
        self.held_before = held_by_modules()
        self.synced = True  # its streams sync: a node that loses power loses nothing that it has answered for
        self.on_refused: Callable[[str, NeveError], None] = lambda _, __: None  # an append, by its owner
        self.unreliable: set[int] = set()  # nodes whose disks were lost or damaged by the story
        self._weak: dict[int, list[tuple[int, Attempt]]] = {}  # by extent id, what was acknowledged without sync
        self.readings = Readings(self)
        self.etcd.on_sealed = self._on_sealed
        self.wire.lost_bytes = lambda host: any(self.nodes[node_id].host == host for node_id in self.unreliable)
        self.etcd.on_over = self.ledger.holding_over
        self.ledger.on_made = self._watch_acknowledgement
        self.expected_errors: tuple[str, ...] = ()  # events of ERRORs that this story makes: a person is to look
        self._errors = _ErrorLog()
        self._unhandled: list[str] = []

    async def __aenter__(self) -> Self:
        logging.getLogger("neve").addHandler(self._errors)
        asyncio.get_running_loop().set_exception_handler(self._on_unhandled)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        logging.getLogger("neve").removeHandler(self._errors)
        self.stop()

    async def start(self) -> None:
        for manager in self.managers.values():
            manager.start()
        await self.leader()
        for node in self.nodes.values():
            await node.start()
        await self.until(lambda: all(n in self.state.nodes for n in self.nodes), "all nodes are registered")

    def stop(self) -> None:
        for client in self.clients.values():
            client.kill()
        for manager in self.managers.values():
            manager.kill()
        for node in self.nodes.values():
            node.kill()

    def add_node(self, node_id: int, **how: Any) -> SimNode:
        addresses = [manager.address for manager in self.managers.values()]
        options = {**self._node_options, **how}
        self.nodes[node_id] = SimNode(self.network, node_id=node_id, managers=addresses, **options)
        self.clocks[self.nodes[node_id].host] = self.nodes[node_id].clock
        return self.nodes[node_id]

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that nobody has looked at, of whichever kind: a caller has lost sight of what it asked for."""
        error = context.get("exception")
        future = context.get("future") or context.get("task")
        if not isinstance(error, SimulatedCrash) and not processes.was_cut_off(future):
            self._unhandled.append(f"{context.get('message')}: {error!r} {future!r}")

    # --- who leads -------------------------------------------------------------------------------------------

    @property
    def term(self) -> Term:
        terms = [manager.term for manager in self.managers.values() if manager.term is not None]
        assert terms, "nobody leads"
        return terms[0]

    @property
    def state(self) -> State:
        """What the leader has in memory."""
        return self.term.state

    async def leader(self) -> SimManager:
        """Wait until one leads."""
        await self.until(lambda: any(m.term is not None for m in self.managers.values()), "a manager leads")
        return next(manager for manager in self.managers.values() if manager.term is not None)

    def stored_state(self) -> State:
        """What the metadata store has, as a manager would load it."""
        state = State(ROOT)
        state.load(self.etcd.all_keys(), self.etcd.key_space.revision)
        return state

    # --- clients ---------------------------------------------------------------------------------------------

    async def client(self, name: str, *, options: ClientOptions = OPTIONS) -> SimClient:
        """A new process, connected."""
        assert name not in self.clients, f"{name} was there before"
        client = self.clients[name] = self._make_client(name, options)
        self.clocks[name] = client.process.clock
        await client.open()
        return client

    def _make_client(self, name: str, options: ClientOptions) -> SimClient:
        addresses = [manager.address for manager in self.managers.values()]
        return SimClient(self.network, self.etcd, self.ledger, name=name, managers=addresses, options=options)

    async def create_stream(self, **how: Any) -> Stream:
        """By an operator, whose process ends then."""
        operator = await self.client(f"operator{len(self.clients)}")
        stream = await operator.run(operator.neve.create_stream(**{"extent_bytes_max": EXTENT_BYTES, **how}))
        await operator.close()
        self.ledger.streams[stream.id] = None
        return stream

    async def take_over(self, name: str, stream_id: int, *, limit_s: float = UNTIL_S) -> SimWriter:
        """A new process that opens the stream, and tries again while the cluster is not able to."""
        client = await self.client(name)
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while True:
            try:
                return await client.writer(stream_id, takeover=True)
            except NeveError:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise
                await asyncio.sleep(0.5)

    # --- looking on ------------------------------------------------------------------------------------------

    def tail(self, stream_id: int) -> Extent:
        """The last extent of a stream, as the leader knows it."""
        tail_id = self.state.streams[stream_id].tail_id
        assert tail_id is not None
        return self.state.extents[tail_id]

    def _length_on(self, host: str, extent_id: int) -> int | None:
        """As the node knows it, while it answers."""
        found = self.nodes[int(host.removeprefix("node"))].store.state.replicas.get(extent_id)
        return None if found is None else found.state.length

    def bytes_on(self, node_id: int, extent_id: int) -> bytes | None:
        """The file of a replica, whether or not its node runs, and what one that runs has not written there yet; None
        if there is none."""
        node = self.nodes[node_id]
        for disk in range(node.disks):
            path = node.extent_path(extent_id, disk)
            if node.fs.stat(path) is not None:
                return node.fs.content(path) + node.deferred_bytes(extent_id)
        return None

    async def until(
        self, happened: Callable[[], bool], what: str, *, limit_s: float = UNTIL_S, step_s: float = 0.1
    ) -> None:
        """Virtual seconds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not happened():
            self.check_no_bugs()
            assert loop.time() < deadline_s, f"not within {limit_s:g} virtual seconds: {what}"
            await asyncio.sleep(step_s)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lacking(self) -> list[str]:
        """What keeps the cluster from being in order, in words: nobody leads, a node is missing, a replica is."""
        if not any(manager.term is not None for manager in self.managers.values()):
            return ["nobody leads"]
        state = self.state
        dead = state.dead_nodes()
        found = [f"node {node_id} is declared dead" for node_id in sorted(dead) if self.nodes[node_id].running]
        found += [f"a task for extent {extent_id}" for extent_id in state.tasks]
        found += self._disks_not_writable()
        for extent in state.extents.values():
            wanted = max(state.streams[stream_id].policy.replicas for stream_id in state.streams_of(extent.extent_id))
            if extent.seal is not None and not extent.all_confirmed:
                found.append(f"extent {extent.extent_id}: {extent.confirmed} of {extent.node_ids} have confirmed")
            elif not dead.isdisjoint(extent.node_ids):
                found.append(f"extent {extent.extent_id} is on dead nodes")
            elif len(extent.replicas) != wanted:
                found.append(f"extent {extent.extent_id} has {len(extent.replicas)} replicas of {wanted}")
            elif extent.seal is not None:
                for node_id in extent.node_ids:
                    data = self.bytes_on(node_id, extent.extent_id)
                    if data is not None and (problem := verify(data)) is not None:
                        found.append(f"extent {extent.extent_id} on node {node_id}: {problem}")
                    elif data is None or len(data) != extent.seal.length:
                        held = "no file" if data is None else f"{len(data)} bytes"
                        found.append(f"extent {extent.extent_id} on node {node_id}: {held}")
        return found

    def _disks_not_writable(self) -> list[str]:
        """Of nodes that run, as the leader has heard it from them: those that are full no more are used again, and
        none is missing."""
        found = []
        part = self.term.ctx.cluster_nodes
        for node in self.nodes.values():
            if node.running:
                heard = part.registry._statuses.get(node.node_id)
                told = heard.disks if heard is not None else ()
                writable = sum(disk.state == en.DiskInfo.WRITABLE for disk in told)
                if writable != node.disks:
                    found.append(f"{node.host} tells of {writable} writable disks, and has {node.disks}")
        return found

    async def until_in_order(self, *, limit_s: float = UNTIL_S) -> None:
        """Under-replicated is 0: every sealed extent is confirmed by, and is on, as many nodes as it should be."""
        try:
            await self.until(lambda: not self.lacking(), "the cluster is in order", limit_s=limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {'; '.join(self.lacking())}") from None

    def check_no_bugs(self) -> None:
        """Nothing has gone wrong so far that goes wrong only by a bug."""
        assert not self.etcd.violations, self.etcd.violations
        assert not self.violations, self.violations
        assert not self.wire.violations, self.wire.violations
        assert not self.network.violations, self.network.violations
        assert not self._unhandled, self._unhandled
        found = [f"{host} {line}" for event, host, line in self._errors.logged if event not in self.expected_errors]
        assert not found, "nothing explains: " + "\n".join(found)

    def let_explain(self, explains: Callable[[str, str], bool]) -> None:
        """Whoever makes trouble says which errors it explains, by event and host: any other one is a bug."""
        self._errors.explains = explains

    def _watch_acknowledgement(self, attempt: Attempt) -> None:
        assert attempt.future is not None
        attempt.made_s = asyncio.get_running_loop().time()
        attempt.future.add_done_callback(lambda _: self._check_everywhere(attempt))

    def _check_everywhere(self, attempt: Attempt) -> None:
        """G1: what was acknowledged is on every replica, at that moment, with all of its blocks. A node that does not
        serve may have it in its journal alone; what it says when it is back is compared with what it has said
        (wire_watch.py)."""
        position = attempt.position
        if position is None:
            self._tell_refused(attempt)
            return
        newer = self.ledger.outruns(attempt, position, self.etcd.linked)
        if newer is not None:
            told = f"{attempt.payload[:40]!r} is acknowledged at {position}, {newer.owner} had found {newer.found} (G5)"
            self.violations.append(told)
        state = next((each.term.state for each in self.managers.values() if each.term is not None), None)
        extents = (state or self.stored_state()).extents
        session = self.ledger.sessions[attempt.session - 1]
        weak = session.weak or not self.synced
        blocks = [*self._blocks_of(attempt.payload, position)]
        attempt.ends = tuple((each, offset + HEADER_BYTES + len(payload)) for each, offset, payload in blocks)
        attempt.acknowledged_s = asyncio.get_running_loop().time()
        for extent_id, offset, payload in blocks:
            extent = extents.get(extent_id)
            if extent is None:
                continue
            if session.weak:
                self._note_weak(extent_id, offset + HEADER_BYTES + len(payload), attempt)
            else:
                self.note_acknowledged(extent_id, offset + HEADER_BYTES + len(payload))
            for node_id in extent.node_ids:
                node = self.nodes[node_id]
                if node_id in self.unreliable or node.repairs or not node.serving:
                    continue
                if weak and node.has_lost_cache(extent_id, since_s=attempt.made_s):
                    continue
                if node.stored(extent_id, offset + HEADER_BYTES, len(payload)) != payload:
                    told = f"{attempt.payload[:40]!r} is acknowledged at {position}, and its {len(payload)} bytes"
                    self.violations.append(f"{told} at {extent_id}:{offset} are not on node {node_id} (G1)")

    def _tell_refused(self, attempt: Attempt) -> None:
        session, future = self.ledger.sessions[attempt.session - 1], attempt.future
        error = future.exception() if future is not None and not future.cancelled() else None
        if isinstance(error, NeveError) and session.lives():
            self.on_refused(session.owner, error)

    def _blocks_of(self, payload: bytes, position: Position) -> Iterator[tuple[int, int, bytes]]:
        """Extent, offset and payload of each block of a record: it goes over the end of an extent that is sealed."""
        extent_id, offset = position
        for _, block in split_record(payload, payload_bytes_max=OPTIONS.block_payload_bytes_max):
            while offset >= self.etcd.seals.get(extent_id, INT64_MAX) and extent_id in self.etcd.behind:
                extent_id, offset = self.etcd.behind[extent_id], 0
            yield extent_id, offset, bytes(block)
            offset += HEADER_BYTES + len(block)

    def may_be_lost(self, attempt: Attempt | None, position: Position | None = None) -> bool:
        """It was not synced, and every replica of an extent that it is in has lost its cache since it was appended and
        before that was sealed: one that has not still has it, and a seal does not go below that (18). From its append
        on: a node may have answered for it, and lost it, before the others did. `position`: where it was seen, if it
        was not acknowledged."""
        if attempt is None or not self.ledger.sessions[attempt.session - 1].weak:
            return False
        extents = dict.fromkeys(extent_id for extent_id, _ in attempt.ends)
        if not extents and position is not None:
            blocks = self._blocks_of(attempt.payload, position)
            extents = dict.fromkeys((position.extent_id, *(extent_id for extent_id, _, _ in blocks)))
        return any(self._all_lost_cache(extent_id, since_s=attempt.made_s) for extent_id in extents)

    def _all_lost_cache(self, extent_id: int, *, since_s: float) -> bool:
        until_s = self.readings.sealed_s(extent_id)
        nodes = [self.nodes[node_id] for node_id in self.etcd.opened_on(extent_id)]
        return bool(nodes) and all(node.has_lost_cache(extent_id, since_s=since_s, until_s=until_s) for node in nodes)

    def _note_weak(self, extent_id: int, end: int, attempt: Attempt) -> None:
        """The same without sync: a seal is shorter only if what it cuts may be lost, at that moment."""
        self._weak.setdefault(extent_id, []).append((end, attempt))
        if extent_id in self.etcd.seals:
            self._check_weak(extent_id, self.etcd.seals[extent_id])

    def _check_weak(self, extent_id: int, length: int) -> None:
        for end, attempt in self._weak.get(extent_id, ()):
            if end > length and not self.may_be_lost(attempt):
                told = f"{attempt.payload[:40]!r} is acknowledged up to {end} in extent {extent_id}, sealed at {length}"
                self.violations.append(f"{told}, and not all of its replicas have lost their caches since (G2)")

    def _on_sealed(self, extent_id: int, length: int, revision: int) -> None:
        self.readings.note_sealed(extent_id, revision)
        self._check_weak(extent_id, length)

    def note_acknowledged(self, extent_id: int, end: int) -> None:
        """A writer was told that all before `end` is safe: no seal may be shorter (G2)."""
        known = self.etcd.acknowledged
        known[extent_id] = max(end, known.get(extent_id, 0))
        sealed = self.etcd.seals.get(extent_id)
        if sealed is not None and sealed < end:
            self.violations.append(f"acknowledged up to {end} in extent {extent_id}, which was sealed at {sealed} (G2)")

    # --- the end of a story ----------------------------------------------------------------------------------

    async def heal(self) -> None:
        """All trouble ends: whatever is down or stopped runs again."""
        self.network.heal_all()
        for clock in self.clocks.values():
            clock.set_rate(1.0)
        for manager in self.managers.values():
            if manager.paused:
                manager.resume()
            elif not manager.running:
                manager.start()
            calm(manager.store)
            manager.skew_ms = 0
        for node in self.nodes.values():
            await node.repair()
            node.skew_ms = 0
            node.fs.unfill_all()
            if node.process is not None and node.process.paused:
                node.resume()
            elif not node.running and not node.gone:
                await node.start()
            if node.process is not None:
                node.process.slow_factor = 1.0
        for client in self.clients.values():
            if client.running:
                if client.process.paused:
                    client.resume()
                calm(client.meta)

    def _followers_know(self) -> bool:
        """A watch that was down is back: what a manager that does not lead says is not old news any more."""
        stored = self.stored_state()
        states = [each.manager.follower.state for each in self.managers.values() if each.term is None]
        return all(state is not None and state.streams == stored.streams for state in states)

    async def settle(self) -> None:
        """End all trouble, wait until all is repaired, and check everything that must hold."""
        from tests.sim.checks import checkers  # it needs this module

        await self.heal()
        await self.leader()
        await self.until(self._followers_know, "all managers know what is stored")
        await checkers.finish_sessions(self)
        followers = await checkers.follow_streams(self)
        await checkers.reopen_streams(self)
        await self.until_in_order()
        await checkers.end_followers(self, followers)
        await checkers.check_everything(self)


def calm(store: Any) -> None:
    """The connection to the metadata store is as it should be, from now on."""
    plan = store.plan
    plan.scripted.clear()
    plan.unavailable_share = plan.lost_before_apply_share = plan.lost_after_apply_share = 0.0
    plan.delay_s_max = 0.002
    store.reconnect()
    store.resume()


async def ignoring(work: Coroutine[Any, Any, Any], *errors: type[BaseException]) -> None:
    """For what may fail in a story, and how is no matter."""
    with suppress(NeveError, *errors):
        await work


Story = Callable[..., Coroutine[Any, Any, None]]


def run_story(story: Story, *, seed: int = 0, arguments: Sequence[Any] = (), **how: Any) -> str:
    """Run a story on a cluster of its own; returns the fingerprint of the run."""

    async def main() -> str:
        async with SimCluster(seed, **how) as cluster:
            await story(cluster, *arguments)
            cluster.check_no_bugs()
        return current().trace_hash()

    return processes.run(main(), seed=seed, real_limit_s=REAL_LIMIT_S)


def simulated(*, seed: int = 0, **how: Any) -> Callable[[Story], Callable[..., None]]:
    """Turns a story into a test that pytest can run; further parameters of the story are pytest's."""

    def decorate(story: Story) -> Callable[..., None]:
        @functools.wraps(story)
        def test(**named: Any) -> None:
            run_story(functools.partial(story, **named), seed=seed, **how)

        signature = inspect.signature(story)
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return test

    return decorate
