"""A network in one process: the wire's own client and server, connected by simulated byte streams with TCP's faults.

    network = SimNetwork(random.Random(seed), trace=loop.note)
    server = network.serve("node1:7000", [Service(EXTENT_NODE, servicer)], cluster="test")
    channel = network.channel("client", "node1:7000", cluster="test")

It models TCP, not datagrams. A channel is a connection; within it bytes arrive late but in order. Therefore nothing is
duplicated or reordered by the network itself: duplicates come from callers that repeat a call after a cut, while the
first one is still on its way, and reordering from different connections.

    set_link, slow       delays of one direction between two hosts
    set_link, drop_next  a lost segment: all that follows is stuck behind it, until the peer is given up
    partition, heal      one way or both ways: what is sent waits; healed before the peer is given up, all of it arrives
    cut                  the client gets ConnectionLost at once; the server may receive what was on the way, later
    pause, resume        of a host: its processes read and write nothing, while its kernel receives, or does not
    crash                of a host: its servers die, its connections end

Whether a peer is alive is for the wire to find out: by beats and by the time since it was last heard.

Invariants: same rng state and same calls, same trace: nothing here reads a clock but the loop's, iterates over a set,
            or depends on the hash of a string;
            nothing crosses but bytes.
Note:       It needs no special loop, but only a virtual clock makes it repeatable.
Not here:   processes. A paused or crashed host stops its messages and handlers; its other tasks are the user's to stop.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from neve.rpc.auth import Authenticator
from neve.rpc.limits import DEFAULT_LIMITS, MIB, Limits
from neve.rpc.service import Service
from neve.rpc.wire.network import Incoming
from neve.rpc.wire.server import WireServer
from neve.rpc.wire.sockets import join_address
from tests.sim.network.channel import SimChannel
from tests.sim.network.connection import Connection, host_of
from tests.sim.network.frames import Methods
from tests.sim.network.link import Delay, Link, exponential_delay
from tests.sim.network.pipe import Watcher

P = TypeVar("P", bound=asyncio.BufferedProtocol)
T = TypeVar("T")

# Two machines in a rack.
DEFAULT_DELAY = exponential_delay(min_s=50e-6, mean_s=100e-6)

# How much later a segment arrives that outlives its connection: above common timeouts often enough to matter.
DEFAULT_LATE_S_MEAN = 1.0

WINDOW_BYTES = 256 << 10

# Servers send beats often enough for clients that give a silent server up after 6 s.
SERVER_LIMITS = Limits(keepalive_s=4.0)


class SimNetwork:
    """Hosts are names; the host of an address is what stands before its port.

    `ragged`: reads end anywhere, also in the middle of a frame. `window_bytes` and `write_buffer_bytes_max`: what the
    kernel takes that is not read yet, and what a transport holds beyond that before it pauses its protocol.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        trace: Callable[[str], None] | None = None,
        delay: Delay = DEFAULT_DELAY,
        late_s_mean: float = DEFAULT_LATE_S_MEAN,
        ragged: bool = False,
        window_bytes: int = WINDOW_BYTES,
        write_buffer_bytes_max: int = MIB,
    ) -> None:
        self.rng = rng
        self.late_s_mean = late_s_mean
        self.ragged = ragged
        self.window_bytes = window_bytes
        self.write_buffer_bytes_max = write_buffer_bytes_max
        self.watcher: Watcher | None = None
        self.methods: Methods = {}  # that anybody serves, by id
        self._trace = trace
        self._delay = delay
        self._links: dict[tuple[str, str], Link] = {}
        self.violations: list[str] = []  # of what the wire promises: none, unless there is a bug
        self._paused: dict[str, bool] = {}  # whether buffered
        self._resumed_s: dict[str, float] = {}
        self._lives: dict[str, int] = {}  # how often the processes of a host were lost with it
        self._listeners: dict[str, SimListener] = {}
        self._connections: dict[Connection, None] = {}  # in the order in which they were made
        self._connections_made = 0

    def serve(
        self,
        address: str,
        services: Sequence[Service],
        *,
        cluster: str,
        limits: Limits = SERVER_LIMITS,
        authenticator: Authenticator | None = None,
    ) -> SimServer:
        """Listen from now on. After `stop` or `crash` the address is free for a new server."""
        host = host_of(address)
        network = HostNetwork(self, host)
        wire = WireServer(services, cluster=cluster, limits=limits, authenticator=authenticator, network=network)
        for method_id, route in wire.routes.items():
            self.methods[method_id] = route.method
        _run_at_once(wire.start(host, int(address.rpartition(":")[2])))
        return SimServer(self, address, wire)

    def channel(
        self,
        from_host: str,
        address: str,
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        token: str = "",
    ) -> SimChannel:
        host_of(address)
        return SimChannel(
            address,
            cluster=cluster,
            limits=limits,
            token=token,
            rng=random.Random(self.rng.getrandbits(64)),
            network=HostNetwork(self, from_host),
        )

    # --- trouble, and its end --------------------------------------------------------------------------------

    def set_link(
        self,
        source: str,
        target: str,
        *,
        delay: Delay | None = None,
        drop_probability: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Conditions from `source` to `target`, this way only; what is not given stays as it is. `on_lost` belongs to
        the probability: it is called for each segment that chance loses."""
        link = self.link(source, target)
        if delay is not None:
            link.delay = delay
        if drop_probability is not None:
            link.drop_probability, link.on_chance = drop_probability, on_lost
        self.note(f"set_link {source}>{target} drop={link.drop_probability}")

    def slow(self, source: str, target: str, *, factor: float) -> None:
        """Multiply every delay from `source` to `target`; 1 is back to normal."""
        self.link(source, target).slow_factor = factor
        self.note(f"slow {source}>{target} factor={factor}")

    def drop_next(
        self, source: str, target: str, *, count: int = 1, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        """Lose the next segment from `source` to `target`, on as many connections as `count` says; `on_lost` is called
        for each."""
        self.link(source, target).drops_due.extend([on_lost] * count)
        self.note(f"drop_next {source}>{target} count={count}")

    def partition_one_way(self, source: str, target: str, *, on_blocked: Callable[[], None] = lambda: None) -> None:
        """`on_blocked` is called when something is sent that does not arrive before the end."""
        self._set_blocked(source, target, blocked=True)
        self.link(source, target).on_blocked = on_blocked

    def partition(self, one: str, other: str, *, on_blocked: Callable[[], None] = lambda: None) -> None:
        self.partition_one_way(one, other, on_blocked=on_blocked)
        self.partition_one_way(other, one, on_blocked=on_blocked)

    def heal(self, one: str, other: str) -> None:
        """End the partition between two hosts, both ways."""
        self._set_blocked(one, other, blocked=False)
        self._set_blocked(other, one, blocked=False)

    def heal_all(self) -> None:
        """End all partitions, losses and slowness. Paused hosts stay paused."""
        for (source, target), link in [*self._links.items()]:
            link.slow_factor = 1.0
            link.drop_probability = 0.0
            link.drops_due.clear()
            self._set_blocked(source, target, blocked=False)

    def cut(self, one: str, other: str) -> int:
        """Cut every connection between two hosts: how many there were."""
        between = [each for each in self._connections if each.touches(one) and each.touches(other)]
        for connection in between:
            connection.cut()
        return len(between)

    def connected(self) -> list[tuple[str, str]]:
        """Who has a connection to whom, the oldest first; each pair once."""
        return list(dict.fromkeys((each.client_host, host_of(each.address)) for each in self._connections))

    def held_by(self, host: str) -> list[str]:
        """The addresses to which this host has connections, as a client, that it has not closed."""
        return [each.address for each in self._connections if each.client_host == host and each.is_held]

    def pause(self, host: str, *, buffered: bool = False) -> None:
        """The host's processes read nothing, and nothing that they write leaves.

        `buffered`: as SIGSTOP does, the host goes on receiving, and its processes find all of it at once when they run
        again. Otherwise the machine stands still: what is sent to it waits on the way, and arrives bit by bit.
        Handlers that have begun run on, since they are coroutines of this process; their replies wait.
        """
        self._paused[host] = buffered
        self.note(f"pause {host} buffered={buffered}")

    def resume(self, host: str) -> None:
        buffered = self._paused.pop(host, None)
        self._resumed_s[host] = asyncio.get_running_loop().time()
        self.note(f"resume {host}")
        for connection in self._connections_of(host):
            connection.resume(host, late=buffered is False)

    def crash(self, host: str, *, gone: bool = False) -> None:
        """The host's servers crash, and the connections that it made as a client end. It is not paused any more.
        `gone`: so are the processes that used these connections: whatever is left of them makes no others."""
        self.note(f"crash {host}")
        if gone:
            self._lives[host] = self.life_of(host) + 1
        for address, listener in [*self._listeners.items()]:
            if host_of(address) == host:
                listener.close()
        for connection in self._connections_of(host):
            if host_of(connection.address) == host:
                connection.crash_server()
            else:
                connection.cut()
        if self.is_paused(host):
            self.resume(host)

    # --- asked by links, connections and hosts ---------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self._delay)
        return link

    def is_paused(self, host: str) -> bool:
        return host in self._paused

    def is_frozen(self, host: str) -> bool:
        """Paused, and nothing arrives there either."""
        return self._paused.get(host) is False

    def runs_since_s(self, host: str) -> float:
        """When it was last paused and ran again."""
        return self._resumed_s.get(host, 0.0)

    def wrong(self, what: str) -> None:
        self.violations.append(f"{asyncio.get_running_loop().time():.3f} {what}")

    def life_of(self, host: str) -> int:
        return self._lives.get(host, 0)

    def note(self, line: str) -> None:
        if self._trace is not None:
            self._trace(line)

    def listener(self, address: str) -> SimListener | None:
        return self._listeners.get(address)

    def listen(self, address: str) -> SimListener:
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        listener = self._listeners[address] = SimListener(self, address)
        return listener

    def unlisten(self, address: str) -> None:
        del self._listeners[address]

    def connect(self, client_host: str, address: str) -> Connection:
        self._connections_made += 1
        connection = Connection(self, self._connections_made, client_host=client_host, address=address)
        self._connections[connection] = None
        return connection

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    # --- inside ----------------------------------------------------------------------------------------------

    def connections_to(self, address: str) -> list[Connection]:
        return [connection for connection in self._connections if connection.address == address]

    def _connections_of(self, host: str) -> list[Connection]:
        return [connection for connection in self._connections if connection.touches(host)]

    def _set_blocked(self, source: str, target: str, *, blocked: bool) -> None:
        link = self.link(source, target)
        if link.blocked == blocked:
            return
        link.blocked, link.on_blocked = blocked, lambda: None
        self.note(f"{'partition' if blocked else 'heal'} {source}>{target}")
        if not blocked:
            for connection in self._connections_of(source):
                if connection.touches(target):
                    connection.heal()


class HostNetwork:
    """The network as the processes of one host see it, until they are gone with it: `neve.rpc.wire.network.Network`."""

    busy_polling = False  # time stands still while a loop has something to do

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host
        self._life = network.life_of(host)

    async def connect(
        self, make_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None, tls_name: str | None
    ) -> P:
        assert tls is None, "there is no TLS here"
        self._check_alive()
        connection = self._network.connect(self._host, join_address(host, port))
        try:
            await connection.accepted
            self._check_alive()
        except BaseException:
            connection.client.abort()
            raise
        protocol = make_protocol()
        connection.client.attach(protocol)
        return protocol

    def listen(self, host: str, port: int) -> SimListener:
        self._check_alive()
        return self._network.listen(join_address(host, port))

    def _check_alive(self) -> None:
        if self._network.life_of(self._host) != self._life:
            raise ConnectionAbortedError(f"this process of {self._host} is gone")


class SimListener:
    """An address on which a server listens: `neve.rpc.wire.network.Listener`."""

    def __init__(self, network: SimNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._backlog: deque[Connection] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    async def accept(self) -> Incoming:
        while not self._backlog:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return SimIncoming(self._backlog.popleft())

    def arrived(self, connection: Connection) -> None:
        self._backlog.append(connection)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.unlisten(self.address)
        for connection in self._backlog:
            connection.crash_server()
        self._backlog.clear()


class SimIncoming:
    """A connection that was accepted: `neve.rpc.wire.network.Incoming`."""

    def __init__(self, connection: Connection) -> None:
        self.peer = connection.peer
        self._connection = connection

    async def attach(
        self, protocol: asyncio.BufferedProtocol, *, tls: ssl.SSLContext | None, tls_timeout_s: float
    ) -> None:
        assert tls is None, "there is no TLS here"
        if self._connection.server.over:
            raise ConnectionResetError("the connection was reset before it was accepted")
        self._connection.server.attach(protocol)

    def close(self) -> None:
        self._connection.server.abort()


class SimServer:
    """A server at one simulated address until it is stopped or crashes."""

    def __init__(self, network: SimNetwork, address: str, wire: WireServer) -> None:
        self.address = address
        self.wire = wire
        self._network = network

    async def stop(self, grace_s: float) -> None:
        await self.wire.stop(grace_s)

    def crash(self) -> None:
        """The process dies: handlers are cancelled, connections end, and what was not sent never will be."""
        for acceptor in self.wire._acceptors:
            acceptor.cancel()
        listener = self._network.listener(self.address)
        if listener is not None:
            listener.close()
        for connection in self._network.connections_to(self.address):
            connection.crash_server()

    def pause(self) -> None:
        """Pause the server's host: see `SimNetwork.pause`."""
        self._network.pause(host_of(self.address))

    def resume(self) -> None:
        self._network.resume(host_of(self.address))


def _run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("it waits for something")
