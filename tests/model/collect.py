"""Rule 24 as a model: one extent, one node that may hold a replica of it, two managers, and orders that come late.

The extent is made on the node, then linked, or never; a collector deletes what no stream has; recovery moves the
replica away, and later back. A delete order, once given, may arrive at any time. Time is counted in half grace periods:
a transaction takes less than one of them, since its call is bounded.

Must hold: whenever metadata lists the node as a holder of a linked extent, the node has the replica (G2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Step = tuple[str, "Place"]

GRACE = 2  # in halves
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectBounds:
    terms: int = 2
    ages: int = 4  # halves of a grace period that are looked at
    moves: int = 2  # away, and back


class Chief(NamedTuple):
    term: int = 0
    made: int = 0  # it has made the extent, and may link it
    linking: int = NONE  # the age at which it decided to; its transaction is on the way
    knows: int = 0  # that the extent is linked: what it loaded, and did itself; a deposed one hears of nothing else
    unknown: int = 0  # it saw the replica in a report, and knows no extent of that id


class Place(NamedTuple):
    chiefs: tuple[Chief, ...] = (Chief(), Chief())
    term: int = 0
    linked: int = 0
    holder: int = 0  # metadata lists the node
    eversion: int = 0  # of the extent
    replica: int = NONE  # the eversion of what the node has
    made_ever: int = 0
    age: int = 0
    moves: int = 0
    orders: tuple[int, ...] = ()  # eversions of delete orders


class CollectModel:
    def __init__(self, bounds: CollectBounds, *, without: str = "") -> None:
        self.bounds = bounds
        self.without = without

    def initial(self) -> Place:
        return self._elected(Place(moves=self.bounds.moves), 0)

    def canonical(self, state: Place) -> Place:
        return state

    def _elected(self, place: Place, number: int) -> Place:
        term = place.term + 1
        return self._with(place._replace(term=term), number, Chief(term=term, knows=place.linked))

    def _with(self, place: Place, number: int, chief: Chief) -> Place:
        chiefs = tuple(chief if at == number else each for at, each in enumerate(place.chiefs))
        return place._replace(chiefs=chiefs)

    def steps(self, place: Place) -> Iterator[Step]:
        if place.term < self.bounds.terms:
            for number in range(2):
                yield f"manager {number + 1} is elected", self._elected(place, number)
        if place.made_ever and place.age < self.bounds.ages and self._may_age(place):
            yield "half a grace period passes", place._replace(age=place.age + 1)
        for number, chief in enumerate(place.chiefs):
            if chief.term:
                yield from self._manages(place, number, chief)
        for eversion in place.orders:
            if place.replica != NONE and (place.replica <= eversion or self.without == "24-eversion"):
                yield f"the node obeys the order for eversion {eversion}", place._replace(replica=NONE)

    def _may_age(self, place: Place) -> bool:
        """A call is bounded: its transaction does not arrive more than half a grace period after it was decided."""
        return all(chief.linking == NONE or place.age <= chief.linking for chief in place.chiefs)

    def _manages(self, place: Place, number: int, chief: Chief) -> Iterator[Step]:
        name = f"manager {number + 1}"
        leads = chief.term == place.term
        if not place.made_ever:
            made = self._with(place, number, chief._replace(made=1))
            yield f"{name} makes the extent on the node", made._replace(made_ever=1, replica=1, eversion=1)
        young = place.age * 2 < GRACE or self.without == "24-young"
        if chief.made and not place.linked and chief.linking == NONE and young:
            yield f"{name} decides to link it", self._with(place, number, chief._replace(linking=place.age))
        if chief.linking != NONE:
            over = self._with(place, number, chief._replace(linking=NONE, made=0))
            if leads:
                knowing = over.chiefs[number]._replace(knows=1)
                yield f"{name} links it", self._with(over, number, knowing)._replace(linked=1, holder=1)
            else:
                yield f"{name} fails to link it", over
        yield from self._collects(place, number, chief)
        if leads and place.linked and place.moves:
            yield from self._moves(place, name)

    def _collects(self, place: Place, number: int, chief: Chief) -> Iterator[Step]:
        name = f"manager {number + 1}"
        old = place.age >= GRACE or self.without == "24-grace"
        if place.replica != NONE and not chief.knows and old and not chief.unknown:
            yield f"{name} sees a replica that no stream has", self._with(place, number, chief._replace(unknown=1))
        if chief.unknown:
            proved = chief.term == place.term and not place.linked
            seen = self._with(place, number, chief._replace(unknown=0))
            if proved or self.without == "24-proof":
                yield f"{name} orders it deleted", self._ordered(seen, 1)
            else:
                yield f"{name} gives no order", seen

    def _moves(self, place: Place, name: str) -> Iterator[Step]:
        eversion = place.eversion + 1
        moved = place._replace(eversion=eversion, moves=place.moves - 1)
        if place.holder:
            yield f"{name} moves the replica away", self._ordered(moved._replace(holder=0), place.eversion)
        else:  # a copy, made under the new eversion, and counted when it is there
            yield f"{name} moves a replica back", moved._replace(holder=1, replica=eversion)

    def _ordered(self, place: Place, eversion: int) -> Place:
        return place._replace(orders=tuple(sorted({*place.orders, eversion})))

    def broken(self, place: Place) -> str:
        if place.linked and place.holder and place.replica == NONE:
            return "G2: the node is listed as a holder, and the replica was deleted"
        return ""
