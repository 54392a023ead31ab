"""Run stories: one with all of its events, or many and what they came to.

    python -m tests.sim --seed 17                  one story, told; if it fails, the fewest troubles it fails with
    python -m tests.sim --seeds 1000 --jobs 2      seeds 1 to 1000, and which troubles, events and errors they had
    python -m tests.sim --seeds 5000-5999 --short  short stories
    python -m tests.sim --seed 17 --world partitions   the larger world: key-value clients, partitions, streams
    python -m tests.sim --bugs                     deliberate bugs: each must be found (tests/sim/bugs)

The exit code is 1 if a story fails or, with 150 and more of them, if a kind of trouble never happened (16 in the larger
world) or a method never answered; fewer stories say that they do not judge this.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from tests.sim.runs import chosen_seeds, run_many
from tests.sim.stories import DEFAULT_WORLD, WORLDS, play, same_error, shortest_failing


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="one story, told")
    parser.add_argument("--seeds", default="", help="how many, or first-last")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--short", action="store_true", help="short stories")
    parser.add_argument("--world", choices=list(WORLDS), default=DEFAULT_WORLD, help="what there is: %(default)s alone")
    parser.add_argument("--events", type=int, help="the first troubles of the story alone")
    parser.add_argument("--log", action="store_true", help="with --seed: what the processes log")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="deliberate bugs, all or these")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs: {options.jobs} are too few")
    if options.seed is not None and options.seeds:
        parser.error("--seed is one story, --seeds are many: choose")
    if options.bugs is not None and (options.seed is not None or options.seeds):
        parser.error("--bugs chooses its own stories: without --seed and --seeds")
    if options.bugs is not None and (options.short or options.world != DEFAULT_WORLD):
        parser.error("--bugs: each has its own world, and short stories: without --world and --short")
    if options.log and options.seed is None:
        parser.error("--log: it is of one story: which --seed?")
    if options.events is not None and options.seed is None:
        parser.error("--events: it is a part of one story: which --seed?")
    for name in ("seed", "events"):
        if (getattr(options, name) or 0) < 0:
            parser.error(f"--{name}: {getattr(options, name)} is below 0")
    if options.bugs is not None:
        from tests.sim.bugs.hunt import hunt_all  # the bugs change modules: nobody else shall load them

        return hunt_all(options.bugs, jobs=options.jobs)
    if options.seed is not None:
        return tell(options.seed, short=options.short, events_max=options.events, log=options.log, world=options.world)
    try:
        seeds = chosen_seeds(options.seeds, 100)
    except ValueError as error:
        parser.error(f"--seeds: {error}")
    return run_many(seeds, jobs=options.jobs, short=options.short, world=options.world)


def tell(seed: int, *, short: bool, events_max: int | None, log: bool, world: str) -> int:
    if log:
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="         %(name)s %(message)s")
    outcome = play(seed, short=short, events_max=events_max, say=print, world=world)
    if not outcome.error:
        print(f"trace {outcome.trace_hash}")
        return 0
    print(outcome.error, outcome.where, f"trace {outcome.trace_hash}", sep="\n")
    if events_max is None:
        print("\nthe fewest of its troubles with which it fails:")
        shortest = shortest_failing(seed, short=short, say=print, world=world, like=outcome.error)
        if shortest is not None:
            print(*shortest.story, shortest.error, sep="\n")
            if not same_error(shortest.error, outcome.error):
                print("this is another error than that of the whole story: --events tries other numbers of troubles")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
