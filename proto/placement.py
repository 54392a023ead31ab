"""The names of the placement policies, and where each puts the replicas of an extent.

A stream's policy names one of them, and so does `defaults.placement` of a stream manager. The help of the commands and
docs/operations.md show this table; stream_manager/placement/policies.py implements each entry, and tests compare all of
them.
"""

from __future__ import annotations

DEFAULT_PLACEMENT = "rack"

PLACEMENT_POLICIES: dict[str, str] = {
    "rack": "on as many racks as there are, on two at least",
    "region": "on as many regions as there are, on two at least; then on different racks in each",
    "weighted": "by chance, on two racks at least; more on nodes with free space and little load",
}


def placement_help() -> str:
    """The table in one line, for the help of a command."""
    return "; ".join(f"{name}: {text}" for name, text in PLACEMENT_POLICIES.items())
