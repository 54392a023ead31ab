"""Run the models: `python -m tests.model`, `--large`, `--without 16-settle`, `--table`.

python -m tests.model                       all configurations, then every rule switched off
python -m tests.model --large               the large ones: minutes, gigabytes
python -m tests.model --without 16-settle   the counterexample, step by step
python -m tests.model --table               the tables of docs/protocol.md
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.configurations import CONFIGURATIONS, LARGE, Configuration
from tests.model.explore import explore
from tests.model.rules import SWITCHES, Switch


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--large", action="store_true", help="the large configurations")
    parser.add_argument("--without", metavar="SWITCH", help="one rule switched off, and what happens then")
    parser.add_argument("--table", action="store_true", help="as Markdown")
    options = parser.parse_args(arguments)
    if options.without is not None:
        switches = [switch for switch in SWITCHES if switch.name == options.without]
        if not switches:
            names = ", ".join(switch.name for switch in SWITCHES)
            parser.error(f"--without: there is no switch {options.without!r}; there are: {names}")
        return _tell(switches)
    if options.table:
        print(*configuration_rows(), "", *switch_rows(), sep="\n")
        return 0
    failed = sum(not _run(name, each) for name, each in (LARGE if options.large else CONFIGURATIONS).items())
    if not options.large:
        failed += sum(not _try(switch) for switch in SWITCHES)
    return 1 if failed else 0


def _run(name: str, configuration: Configuration) -> bool:
    begun_s = time.perf_counter()
    outcome = explore(configuration.model(), witnesses=configuration.witnesses)
    missed = set(configuration.witnesses) - outcome.reached
    verdict = outcome.broken or (f"never reached: {missed}" if missed else "all holds")
    print(
        f"{name:24} {outcome.states:>9,} states, depth {outcome.depth:>2}, {time.perf_counter() - begun_s:6.1f} s:"
        f" {verdict}",
        flush=True,
    )
    print(*(f"    {line}" for line in outcome.trace), sep="\n", end="\n" if outcome.trace else "")
    return not outcome.broken and not missed


def _try(switch: Switch) -> bool:
    outcome = explore(CONFIGURATIONS[switch.where].model(switch.name))
    told = f"{outcome.broken} in {len(outcome.trace)} steps" if outcome.broken else "nothing breaks"
    print(f"without {switch.name:20} in {switch.where:22}: {told}", flush=True)
    return outcome.broken.startswith(switch.found) if switch.found else not outcome.broken


def _tell(switches: list[Switch]) -> int:
    for switch in switches:
        print(f"{switch.name}: {switch.off}; {CONFIGURATIONS[switch.where].what}")
        outcome = explore(CONFIGURATIONS[switch.where].model(switch.name))
        print(*(f"{number:4} {line}" for number, line in enumerate(outcome.trace, start=1)), sep="\n")
        print(outcome.broken or f"nothing breaks: {switch.why}")
    return 0


def configuration_rows() -> list[str]:
    rows = ["| configuration | what may happen | states |", "|---|---|---|"]
    for name, configuration in CONFIGURATIONS.items():
        rows.append(f"| {name} | {configuration.what} | {explore(configuration.model()).states:,} |")
    return rows


def switch_rows() -> list[str]:
    rows = ["| switch | without it | configuration | breaks | steps |", "|---|---|---|---|---|"]
    outcomes = [explore(CONFIGURATIONS[switch.where].model(switch.name)) for switch in SWITCHES]
    return rows + [switch_row(switch, len(each.trace)) for switch, each in zip(SWITCHES, outcomes, strict=True)]


def switch_row(switch: Switch, steps: int) -> str:
    outcome = f"{switch.found} | {steps}" if switch.found else f"nothing: {switch.why} |"
    return f"| {switch.name} | {switch.off} | {switch.where} | {outcome} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
