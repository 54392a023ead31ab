"""The names and descriptions of the placement policies, which decide where the replicas of an extent are placed.

A stream's policy names one of them, and so does a stream manager's setting `defaults.placement`. Commands show this
table in their help, and docs/operations.md repeats it. stream_manager/placement/policies.py implements each entry.
Tests check that all of these agree.
"""

from __future__ import annotations

DEFAULT_PLACEMENT = "rack"

PLACEMENT_POLICIES: dict[str, str] = {
    "rack": "on as many racks as there are, on two at least",
    # Here a region is a data centre.
    "region": "on as many regions as there are, on two at least; then on different racks in each",
    "weighted": "by chance, on two racks at least; more on nodes with free space and little load",
}


def placement_help() -> str:
    """The table in one line, for the help of a command."""
    return "; ".join(f"{name}: {text}" for name, text in PLACEMENT_POLICIES.items())
