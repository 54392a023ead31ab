"""Replicas over regions first, then over the racks within each.

Invariants: no two replicas share a region while another region has a node that may take one, and then no rack;
            a replacement goes to the region that has fewest of the replicas which are left: a lost region's place is
            taken by another region, not by the survivors' own;
            fewer than `regions_min` regions are a warning, or in strict mode a refusal.
"""

from __future__ import annotations

from collections.abc import Hashable

from neve.stream_manager.placement import Candidate, register_policy
from neve.stream_manager.placement_rack import Level, SpreadPolicy, rack_of


def region_of(node: Candidate) -> Hashable:
    return node.region


class RegionAware(SpreadPolicy):
    def __init__(self, name: str = "region", *, regions_min: int = 2) -> None:
        super().__init__(name, [Level("region(s)", region_of, regions_min), Level("rack(s)", rack_of)])


register_policy(RegionAware())
