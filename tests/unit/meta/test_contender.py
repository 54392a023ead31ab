"""Whoever contends for the lead: one term at a time, and a word about who leads."""

from __future__ import annotations

import asyncio
import random

import pytest

from neve.meta.contender import Contender
from neve.meta.election import Leadership
from neve.meta.follower import Follower
from neve.meta.memory.client import MemoryStore
from neve.meta.store import MetaStore
from neve.meta.txn import KeyRange
from neve.proto.errors import NotLeader
from tests.unit.meta.test_follower import Numbers


class Term:
    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership

    def ensure_leading(self) -> None:
        self.leadership.ensure()


class One(Contender[Term]):
    def __init__(self, store: MetaStore) -> None:
        super().__init__(store, b"/leader", lease_ttl_s=5, rng=random.Random(0))
        keys = KeyRange.prefix(b"/a/")
        self.follower = Follower(store, Numbers, ranges=[keys], watched=keys)
        self.campaigns = 0

    async def _lead(self, leadership: Leadership) -> bool:
        self.term = Term(leadership)
        self.terms += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.term = None
        return True

    def _after_term(self) -> None:
        self.campaigns += 1


@pytest.mark.sim
async def test_one_leads_and_the_other_says_who_until_it_is_its_turn() -> None:
    etcd = MemoryStore()
    first, second = One(etcd.client()), One(etcd.client())
    with pytest.raises(NotLeader):
        first.leading()
    first.start("first:1")
    await asyncio.sleep(1)
    second.start("second:1")
    await asyncio.sleep(1)
    assert first.leading() is first.term
    with pytest.raises(NotLeader) as elsewhere:
        second.leading()
    assert elsewhere.value.leader == "first:1"
    assert second.follower.state is not None
    await first.stop()
    await asyncio.sleep(1)
    assert not first.term
    assert not first.follower.state
    assert first.campaigns == 1
    assert second.leading() is second.term
    assert (first.terms, second.terms) == (1, 1)
    await second.stop()


@pytest.mark.sim
async def test_a_term_that_is_over_is_not_handed_out() -> None:
    etcd = MemoryStore()
    one = One(etcd.client())
    one.start("one:1")
    await asyncio.sleep(1)
    term = one.leading()
    term.leadership._lose("as the story wants it")
    with pytest.raises(NotLeader):
        one.leading()
    await one.stop()
