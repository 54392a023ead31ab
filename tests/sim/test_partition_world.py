"""Seeded stories of the larger world: key-value clients on partitions on streams (T48 to T53). Some in every build,
more by NEVE_SIM_PARTITION_SEEDS, all of them repeatable.

NEVE_SIM_PARTITION_SEEDS=1-300 pytest -n0 -s tests/sim/test_partition_world.py
python -m tests.sim --world partitions --short --seed 17
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim import stories
from tests.sim.checks.coverage import Coverage
from tests.sim.cluster import SimCluster, simulated
from tests.sim.partition_world import PartitionWorld, Setup
from tests.sim.runs import KINDS_SEEDS_MIN, chosen_seeds, run_many
from tests.sim.troubles.kinds import KINDS
from tests.sim.troubles.swarm import LOSING, ROUND, dealt

WORLD = "partitions"
SHORT_SEEDS_DEFAULT = ROUND  # about twenty seconds of one core, and every kind of trouble once at least
FOUND = (31, 39, 40, 107, 356)  # beside those that every build tells anyway; see test_random.py
REPEATED_SEED = 7
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_t53_stories_by_chance_of_partitions_end_with_every_guarantee_kept_and_every_trouble_happens() -> None:
    assert KINDS_SEEDS_MIN[WORLD] <= SHORT_SEEDS_DEFAULT
    seeds = chosen_seeds(os.environ.get("NEVE_SIM_PARTITION_SEEDS", ""), SHORT_SEEDS_DEFAULT)
    assert run_many(seeds, jobs=2, short=True, world=WORLD) == 0


@pytest.mark.parametrize("seed", FOUND)
def test_t53_a_story_of_partitions_that_once_found_something_ends_with_every_guarantee_kept(seed: int) -> None:
    outcome = stories.play(seed, short=True, world=WORLD)
    assert not outcome.error, "\n".join([*outcome.story, outcome.error, outcome.where])


def test_t53_a_seed_is_a_story_of_the_larger_world_whatever_the_process() -> None:
    here = stories.play(REPEATED_SEED, short=True, world=WORLD)
    assert not here.error
    assert here.coverage.events["memtable_flushed"]
    assert here.coverage.events["partition_served"]
    command = [sys.executable, "-m", "tests.sim", "--short", "--world", WORLD, "--seed", str(REPEATED_SEED)]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    elsewhere = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip().endswith(f"trace {here.trace_hash}")


def test_fewer_events_are_the_beginning_of_the_same_story_of_partitions() -> None:
    begun = stories.play(REPEATED_SEED, short=True, world=WORLD, events_max=0)
    assert not begun.error
    assert not sum(begun.coverage.faults.values())
    assert begun.story[-1].endswith("all is well")


def test_setups_differ_by_seed_alone() -> None:
    setups = [Setup.of(seed) for seed in range(50)]
    assert setups == [Setup.of(seed) for seed in range(50)]
    assert {setup.servers for setup in setups} == {2, 3}
    assert len(set(setups)) > 45


@pytest.mark.parametrize("first", [1, 7, 1000])
def test_stories_in_a_row_are_dealt_all_kinds_and_each_can_come_to_its_own(first: int) -> None:
    shares = [dealt(seed, KINDS[WORLD]) for seed in range(first, first + ROUND)]
    assert sorted(kind for share in shares for kind in share) == sorted(KINDS[WORLD])
    for seed, share in enumerate(shares, start=first):
        shape = PartitionWorld.shape(seed, short=True)
        assert sum(kind in LOSING for kind in share) <= 1
        assert all(shape.loses == LOSING[kind] for kind in share if kind in LOSING)
        assert shape.sync or shape.loses not in ("wipe", "vanish")


@simulated()
async def test_the_list_of_kinds_is_what_stories_of_partitions_have(cluster: SimCluster) -> None:
    found: set[str] = set()
    for seed in range(60):
        shape = PartitionWorld.shape(seed)
        story = stories.Story(
            cluster, seed, shape, lambda _: None, Coverage(), events_max=0, world=stories.WORLDS[WORLD]
        )
        found |= {kind.name for part in story.parts for kind in part.kinds()}
    assert found == set(KINDS[WORLD])
