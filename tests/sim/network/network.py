"""A network in one process: the third transport, deterministic, with every fault that TCP lets through.

    network = SimNetwork(random.Random(seed), trace=loop.note)
    server = network.serve("node1:7000", [Service(EXTENT_NODE, servicer)], cluster="test")
    channel = network.channel("client", "node1:7000", cluster="test")

It models TCP, not datagrams. A channel is a connection; within it frames arrive late but in order. Therefore nothing is
duplicated or reordered by the network itself: duplicates come from callers that repeat a call after a cut, while the
first one is still on its way, and reordering from different connections.

    set_link, slow       delays of one direction between two hosts
    set_link, drop_next  a lost frame: all that follows is stuck behind it, until the peer is given up (`dead_peer_s`)
    partition, heal      one way or both ways: what is sent waits; healed before the peer is given up, all of it arrives
    cut                  the client gets ConnectionLost at once; the server may receive what was on the way, later
    pause, resume        of a host: nothing is delivered to it or leaves it; then all of it, in order
    crash                of a host: its servers die, its connections end

Invariants: same rng state and same calls, same trace: nothing here reads a clock but the loop's, iterates over a set,
            or depends on the hash of a string;
            the sides share no object (`tests.sim.network.frame`).
Note:       It needs no special loop, but only a virtual clock makes it repeatable.
Not here:   processes. A paused or crashed host stops its messages and handlers; its other tasks are the user's to stop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from neve.rpc.auth import AllowAll, Authenticator
from neve.rpc.limits import DEFAULT_LIMITS, Limits
from neve.rpc.service import Service
from tests.sim.network.channel import SimChannel
from tests.sim.network.connection import Connection, End, Listener, host_of
from tests.sim.network.link import Delay, Link, Watcher, exponential_delay, fixed_delay
from tests.sim.network.server import SimServer

__all__ = ["Delay", "SimChannel", "SimNetwork", "SimServer", "exponential_delay", "fixed_delay"]

# Two machines in a rack.
DEFAULT_DELAY = exponential_delay(min_s=50e-6, mean_s=100e-6)

# How much later a frame arrives that outlives its connection: above common timeouts often enough to matter.
DEFAULT_LATE_S_MEAN = 1.0


class SimNetwork:
    """Hosts are names; the host of an address is what stands before its port."""

    def __init__(
        self,
        rng: random.Random,
        *,
        trace: Callable[[str], None] | None = None,
        delay: Delay = DEFAULT_DELAY,
        late_s_mean: float = DEFAULT_LATE_S_MEAN,
    ) -> None:
        self.rng = rng
        self.late_s_mean = late_s_mean
        self.watcher: Watcher | None = None
        self._trace = trace
        self._delay = delay
        self._links: dict[tuple[str, str], Link] = {}
        self._paused: dict[str, None] = {}
        self._gone: dict[str, None] = {}  # hosts whose processes are gone, and have left callbacks behind
        self._servers: dict[str, SimServer] = {}
        self._connections: dict[Connection, None] = {}  # in the order in which they were made
        self._connections_made = 0

    def serve(
        self,
        address: str,
        services: Sequence[Service],
        *,
        cluster: str,
        limits: Limits = DEFAULT_LIMITS,
        authenticator: Authenticator | None = None,
    ) -> SimServer:
        """Listen from now on. After `stop` or `crash` the address is free for a new server."""
        host_of(address)
        if address in self._servers:
            raise OSError(f"{address} is in use")
        self._gone.pop(host_of(address), None)
        server = SimServer(
            self,
            address,
            services,
            cluster=cluster,
            limits=limits,
            authenticator=authenticator or AllowAll(),
        )
        self._servers[address] = server
        return server

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
        self._gone.pop(from_host, None)
        return SimChannel(self, client_host=from_host, address=address, cluster=cluster, limits=limits, token=token)

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
        the probability: it is told of each frame that chance loses."""
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
        """Lose the next frame from `source` to `target`, on as many connections as `count` says, and tell of each."""
        self.link(source, target).drops_due.extend([on_lost] * count)
        self.note(f"drop_next {source}>{target} count={count}")

    def partition_one_way(self, source: str, target: str, *, on_blocked: Callable[[], None] = lambda: None) -> None:
        """`on_blocked` is told of each frame that is sent and does not arrive before the end."""
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
        for (source, target), link in [*self._links.items()]:  # what arrives now may use links that were not there
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

    def pause(self, host: str) -> None:
        """As SIGSTOP would: nothing is delivered to the host, and nothing that it sends leaves.

        Handlers that have begun run on, since they are coroutines of this process; their replies wait.
        """
        self._paused[host] = None
        self.note(f"pause {host}")
        for connection in self._connections_of(host):
            connection.update()

    def resume(self, host: str) -> None:
        self._paused.pop(host, None)
        self.note(f"resume {host}")
        for connection in self._connections_of(host):
            connection.update(resumed_host=host)

    def crash(self, host: str, *, gone: bool = False) -> None:
        """The host's servers crash, and the connections that it made as a client end. It is not paused any more.
        `gone`: so is who used these connections; whatever is left of it makes no others, until somebody serves there or
        makes a channel: a dead process has no last word."""
        self.note(f"crash {host}")
        if gone:
            self._gone[host] = None
        for server in [*self._servers.values()]:
            if host_of(server.address) == host:
                server.crash()
        for connection in self._connections_of(host):
            if connection.client_host == host:
                connection.cut()
        if self.is_paused(host):
            self.resume(host)

    # --- asked by links and connections ----------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self._delay)
        return link

    def is_paused(self, host: str) -> bool:
        return host in self._paused

    def note(self, line: str) -> None:
        if self._trace is not None:
            self._trace(line)

    def listener(self, address: str) -> Listener | None:
        return self._servers.get(address)

    def unlisten(self, address: str) -> None:
        del self._servers[address]

    def connect(self, client: End, *, client_host: str, address: str, limits: Limits) -> Connection:
        self._connections_made += 1
        connection = Connection(
            self,
            self._connections_made,
            client_host=client_host,
            address=address,
            client=client,
            dead_peer_s=limits.dead_peer_s,
        )
        self._connections[connection] = None
        if client_host in self._gone:
            connection.void()
        return connection

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    # --- inside ----------------------------------------------------------------------------------------------

    def _connections_of(self, host: str) -> list[Connection]:
        return [connection for connection in self._connections if connection.touches(host)]

    def _set_blocked(self, source: str, target: str, *, blocked: bool) -> None:
        link = self.link(source, target)
        if link.blocked == blocked:
            return
        link.blocked, link.on_blocked = blocked, lambda: None
        self.note(f"{'partition' if blocked else 'heal'} {source}>{target}")
        for connection in self._connections_of(source):
            if connection.touches(target):
                connection.update(healed=not blocked)
