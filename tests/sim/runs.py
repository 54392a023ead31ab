"""Many stories on several cores: what failed, how fast they were, and what they came to.

Invariants: the outcome of a seed does not depend on the process that plays it, nor on its neighbours.
"""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.sim.checks.coverage import Coverage, all_errors
from tests.sim.stories import DEFAULT_WORLD, Outcome, play
from tests.sim.troubles.kinds import KINDS, METHODS, RARE_KINDS
from tests.sim.troubles.swarm import ROUND

PROGRESS_S = 10.0
METHODS_SEEDS_MIN = 150
KINDS_SEEDS_MIN = {"streams": 150, "partitions": ROUND}  # there each story is dealt some
CHUNK = 4
GARBAGE_MAX = 50_000


def chosen_seeds(text: str, default: int = 0) -> list[int]:
    """`"500"`: so many from 1 on; `"7-9"`: these; `""`: the default."""
    first, dash, last = (text or str(default)).partition("-")
    if not text.isascii() or not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"{text!r} is neither how many nor first-last: 500, or 7-9")
    seeds = list(range(int(first), int(last) + 1) if dash else range(1, int(first) + 1))
    if not seeds:
        raise ValueError(f"{text} are no seeds")
    return seeds


def _play(seed: int, short: bool, world: str) -> Outcome:
    if gc.get_freeze_count() == 0:  # the first of this process: what is loaded stays, and rare collections are enough
        gc.freeze()
        gc.set_threshold(GARBAGE_MAX)
    outcome = play(seed, short=short, world=world)
    if not outcome.error:
        outcome.story = []  # nobody reads it, and it crosses processes
    return outcome


def outcomes(seeds: Iterable[int], *, jobs: int, short: bool, world: str = DEFAULT_WORLD) -> Iterator[Outcome]:
    """In the order in which they end."""
    if jobs == 1:
        for seed in seeds:
            yield _play(seed, short, world)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = iter(seeds)
        first = itertools.islice(waiting, jobs * CHUNK)
        running = {pool.submit(_play, seed, short, world) for seed in first}
        while running:
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                yield each.result()
                following = next(waiting, None)
                if following is not None:
                    running.add(pool.submit(_play, following, short, world))


def run_many(seeds: list[int], *, jobs: int, short: bool, world: str = DEFAULT_WORLD) -> int:
    coverage = Coverage()
    failed: list[int] = []
    begun_s = told_s = time.monotonic()
    cpu_s = 0.0
    for count, outcome in enumerate(outcomes(seeds, jobs=jobs, short=short, world=world), start=1):
        coverage.add(outcome.coverage)
        cpu_s += outcome.cpu_s
        if outcome.error:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed}: {outcome.error[:1000]}\n{outcome.where}", flush=True)
        if time.monotonic() - told_s >= PROGRESS_S:
            told_s = time.monotonic()
            rate = 60 * count / (told_s - begun_s)
            print(f"{count} of {len(seeds)}, {len(failed)} failed, {rate:.0f} a minute", flush=True)
    minutes = (time.monotonic() - begun_s) / 60
    print(
        f"{len(seeds)} stories in {minutes:.1f} min ({cpu_s / len(seeds):.2f} s of a core each), {len(failed)} failed"
    )
    missing, uncalled = show(coverage, world)
    if failed:
        how = " --short" * short + f" --world {world}" * (world != DEFAULT_WORLD)
        print("failed: " + " ".join(map(str, sorted(failed))) + "; replay one with --seed" + how)
    least = {"troubles never met": KINDS_SEEDS_MIN[world], "methods never answered": METHODS_SEEDS_MIN}
    for what, count in least.items():
        if len(seeds) < count:
            print(f"{what}: not judged, that takes {count} stories")
    if len(seeds) < METHODS_SEEDS_MIN:
        missing = [kind for kind in missing if kind not in RARE_KINDS]
    enough = [len(seeds) >= count for count in least.values()]
    return 1 if failed or (missing and enough[0]) or (uncalled and enough[1]) else 0


def show(coverage: Coverage, world: str = DEFAULT_WORLD) -> tuple[list[str], list[str]]:
    """Print what was reached; returns the kinds of trouble and the methods that were not."""
    missing = [kind for kind in KINDS[world] if not coverage.faults[kind]]
    print(f"troubles: {_counts(coverage.faults)}")
    print(f"events ({len(coverage.events)} kinds): {_counts(coverage.events)}")
    print(f"errors: {_counts(coverage.errors)}")
    print(f"errors that users were told: {_counts(coverage.told)}")
    print(f"moments: {_counts(coverage.moments)}")
    print(f"methods: {_counts(coverage.methods)}")
    print(f"lengths that an operator accepted: {coverage.events['length_accepted']}")
    never = [name for name in all_errors() if not coverage.errors[name]]
    print(f"errors never met: {', '.join(never) or 'none'}")
    print(f"troubles never met: {', '.join(missing) or 'none'}")
    uncalled = [name for name in METHODS[world] if not coverage.methods[name]]
    print(f"methods never answered: {', '.join(uncalled) or 'none'}")
    return missing, uncalled


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
