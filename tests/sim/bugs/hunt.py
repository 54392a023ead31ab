"""Does the simulation find each deliberate bug, and in how many stories?

    python -m tests.sim --bugs                            all of them
    python -m tests.sim --bugs "a late append cuts"       one

Invariants: stories are short ones; those that cannot come to a bug are passed over and not counted;
            a story that fails with the bug passes without it: otherwise it has found something else and does not count;
            nor does one that fails by something else than the check that there is for the bug, if any (`shows`);
            a bug that does not fit the code any more is an error, and not a find.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.sim.bugs import damage_bugs, leak_bugs, partition_bugs, read_bugs, wire_bugs  # noqa: F401 - they come into BUGS
from tests.sim.bugs.bugs import BUGS, Bug
from tests.sim.stories import WORLDS, play
from tests.sim.troubles.swarm import has_kind

SEEDS_MAX = 200
FIRST_SEED = 1
BROKEN = ("TypeError", "AttributeError", "NameError")


@dataclass(frozen=True, slots=True)
class Catch:
    """What it took to find a bug; `error` is "" if it was not found."""

    stories: int
    seed: int = 0
    error: str = ""
    cpu_s: float = 0.0
    by_others: tuple[str, ...] = ()  # what else it showed in before
    broken: str = ""  # why it could not be hunted: it does not fit the code any more


def seeds_for(bug: Bug) -> Iterator[int]:
    seed = FIRST_SEED
    while True:
        shape = WORLDS[bug.world].shape(seed, short=True)
        if bug.suits(shape) and (not bug.needs or any(has_kind(seed, kind) for kind in bug.needs)):
            yield seed
        seed += 1


def hunt(bug: Bug, *, seeds_max: int = SEEDS_MAX) -> Catch:
    begun_s = time.process_time()
    stories = 0
    by_others: list[str] = []
    for seed in seeds_for(bug):
        if stories >= seeds_max:
            break
        stories += 1
        with bug.planted():
            outcome = play(seed, short=True, world=bug.world)
        if any(word in outcome.error for word in BROKEN):
            raise AssertionError(f"the bug does not fit the code any more: {outcome.error}")
        if outcome.error and not play(seed, short=True, world=bug.world).error:
            if re.search(bug.shows, outcome.error, re.DOTALL):
                return Catch(stories, seed, outcome.error, time.process_time() - begun_s, tuple(by_others))
            by_others.append(f"{seed}: {outcome.error}")
    return Catch(stories, cpu_s=time.process_time() - begun_s, by_others=tuple(by_others))


def _first_line(error: str) -> str:
    return error.partition("\n")[0][:150]


def _hunt(name: str, seeds_max: int) -> Catch:
    try:
        return hunt(BUGS[name], seeds_max=seeds_max)
    except (AssertionError, AttributeError) as error:  # of this bug alone: the others are hunted all the same
        return Catch(0, broken=f"{type(error).__name__}: {error}")


def hunt_all(names: Sequence[str], *, seeds_max: int = SEEDS_MAX, jobs: int = 1) -> int:
    if unknown := [name for name in names if name not in BUGS]:
        print(f"there is no bug {', '.join(map(repr, unknown))}; there are: {', '.join(BUGS)}", file=sys.stderr)
        return 2
    chosen = [name for name in BUGS if name in names or not names]
    missed = 0
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for name, catch in zip(chosen, pool.map(_hunt, chosen, itertools.repeat(seeds_max)), strict=True):
            missed += not catch.error
            told = _first_line(catch.error) or _first_line(catch.broken) or "NOT FOUND"
            took = f"{catch.stories} | {catch.seed or ''}"
            print(f"| {name} | {BUGS[name].origin} | {took} | {told} |  ({catch.cpu_s:.0f} s)", flush=True)
            if catch.by_others:
                shown = _first_line(catch.by_others[0])
                print(f"    by something else in {len(catch.by_others)} stories, first {shown}", flush=True)
    return 1 if missed else 0
