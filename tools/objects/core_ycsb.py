"""The mixes of the Yahoo Cloud Serving Benchmark, and which key comes next. Pure: chance is given, from 0 to 1.

    A  half reads, half updates          D  reads of what was inserted last, 5 % inserts
    B  95 % reads, 5 % updates           E  95 % scans of 1 to 100 objects, 5 % inserts
    C  reads                             F  half reads, half read-modify-writes

Invariants: a key is `user` and twenty digits that spread neighbours over the whole range, as YCSB hashes them: popular
            objects are not next to each other;
            the n-th most popular of N has a share of 1/n^theta (0.99, as YCSB has it), by Gray and others' formula.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

THETA = 0.99
SCAN_OBJECTS_MAX = 100
_FNV_OFFSET, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1


class Action(enum.Enum):
    READ = "read"
    UPDATE = "update"
    INSERT = "insert"
    SCAN = "scan"
    MODIFY = "read-modify-write"


@dataclass(frozen=True, slots=True)
class Mix:
    """How much of what; `latest`: what was inserted last is the most popular."""

    shares: Mapping[Action, float]
    latest: bool = False

    def action(self, chance: float) -> Action:
        for action, share in self.shares.items():
            chance -= share
            if chance < 0:
                return action
        return next(iter(self.shares))


MIXES: dict[str, Mix] = {
    "A": Mix({Action.READ: 0.5, Action.UPDATE: 0.5}),
    "B": Mix({Action.READ: 0.95, Action.UPDATE: 0.05}),
    "C": Mix({Action.READ: 1.0}),
    "D": Mix({Action.READ: 0.95, Action.INSERT: 0.05}, latest=True),
    "E": Mix({Action.SCAN: 0.95, Action.INSERT: 0.05}),
    "F": Mix({Action.READ: 0.5, Action.MODIFY: 0.5}),
}


def hashed(number: int) -> int:
    """FNV-1a of the number's eight bytes: the same for every run."""
    value = _FNV_OFFSET
    for byte in number.to_bytes(8, "little"):
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def key_of(number: int) -> bytes:
    """The key of the n-th object."""
    return b"user%020d" % hashed(number)


class Zipfian:
    """Numbers from 0 to count - 1, small ones more often; `count` may grow."""

    def __init__(self, count: int, theta: float = THETA) -> None:
        assert count > 0
        assert 0 < theta < 1
        self._theta = theta
        self._count = 0
        self._zeta = 0.0
        self._zeta2 = 1.0 + 0.5**theta
        self._alpha = 1.0 / (1.0 - theta)
        self.grow(count)

    def grow(self, count: int) -> None:
        for number in range(self._count + 1, count + 1):
            self._zeta += number**-self._theta
        self._count = max(self._count, count)
        ratio = (2.0 / self._count) ** (1.0 - self._theta)
        self._eta = (1.0 - ratio) / (1.0 - self._zeta2 / self._zeta) if self._count > 2 else 0.0

    def next(self, chance: float) -> int:
        scaled = chance * self._zeta
        if scaled < 1.0 or self._count == 1:
            return 0
        if scaled < self._zeta2 or self._count == 2:
            return 1
        return min(self._count - 1, int(self._count * (self._eta * chance - self._eta + 1.0) ** self._alpha))


class Keys:
    """Which object is next. `count` objects are there; inserts add to them."""

    def __init__(self, count: int, *, latest: bool, theta: float = THETA) -> None:
        self.count = count
        self._latest = latest
        self._zipfian = Zipfian(count, theta)

    def choose(self, chance: float) -> int:
        """The number of an object that exists."""
        rank = self._zipfian.next(chance)
        if self._latest:
            return self.count - 1 - rank
        return hashed(rank) % self.count  # spread: the popular ones are anywhere in the order of insertion

    def insert(self) -> int:
        """The number of a new object."""
        self.count += 1
        if self._latest:
            self._zipfian.grow(self.count)
        return self.count - 1
