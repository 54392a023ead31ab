"""Decides which server serves which partition, and when partitions are split, merged or moved. No I/O, no clock.

Invariants: a partition without a live server goes to the server with the smallest load, and no other partition moves
            because of that;
            every other step is taken only if its reason has stood for several rounds in a row, a few steps at a time,
            and not again for the same partition for a while: the effect of a step must show before the next one;
            a merge never creates a partition that would be split again: its bounds are far below those of a split;
            a load that stays on one side however often it is split is the load of few keys: it is left alone for a
            while;
            there are never fewer partitions than `regions_per_server_min` per server, so that they can be balanced.

Half of a partition's weight is its share of all operations, half its share of the partitions. Operations alone would
put hundreds of idle partitions on one server, and all would have to be loaded when it dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neve.proto import partition_manager_pb2 as pm

MIB = 1 << 20
MOVES_MAX = 2  # per round


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    """Table [balance]."""

    interval_s: float = 5.0  # between two rounds
    split_bytes: int = 8192 * MIB  # a partition of this size is still quick to replay and to compact
    split_ops_per_s: float = 20_000.0
    splits_in_vain_max: int = 4  # nested splits after which nearly all operations are still on one side
    in_vain_rest_s: float = 3600.0  # for this long a load alone is then no reason for a split
    merge_bytes_max: int = 512 * MIB  # of both together: a sixteenth of `split_bytes`
    merge_ops_per_s_max: float = 100.0
    regions_per_server_min: int = 4
    regions_per_server_max: int = 200
    imbalance_min: float = 0.4  # between the server with most and the one with least load, as a share of the mean
    rounds: int = 3  # for how many rounds the reason for a split or a move must stand
    merge_rounds: int = 60
    rest_s: float = 60.0  # before the same partition is moved, split or merged again

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if 2 * self.merge_bytes_max > self.split_bytes or 2 * self.merge_ops_per_s_max > self.split_ops_per_s:
            raise ValueError("the bounds of a merge must be below half of a split's, or partitions would alternate")


@dataclass(frozen=True, slots=True)
class Move:
    partition_id: int
    server_id: int


@dataclass(frozen=True, slots=True)
class Split:
    partition_id: int


@dataclass(frozen=True, slots=True)
class Merge:
    left_id: int
    right_id: int


Step = Move | Split | Merge


def touched_by(step: Step) -> list[int]:
    """The partitions that the step changes."""
    return [step.left_id, step.right_id] if isinstance(step, Merge) else [step.partition_id]


def weights(regions: Sequence[pm.RegionRecord], loads: Mapping[int, pm.PartitionLoad]) -> dict[int, float]:
    """The weight of each partition. All together weigh 1."""
    ops = {region.partition_id: ops_per_s(loads.get(region.partition_id)) for region in regions}
    total_ops = sum(ops.values())
    even = 1 / len(regions) if regions else 0.0
    if total_ops < 1.0:  # an idle cluster: so few operations mean nothing
        return dict.fromkeys(ops, even)
    return {partition_id: 0.5 * even + 0.5 * each / total_ops for partition_id, each in ops.items()}


def ops_per_s(load: pm.PartitionLoad | None) -> float:
    return load.reads_per_s + load.writes_per_s if load is not None else 0.0


def assign(
    regions: Sequence[pm.RegionRecord], servers: Iterable[int], loads: Mapping[int, pm.PartitionLoad]
) -> dict[int, int]:
    """Choose a server for each partition whose own is not among `servers`. The others stay where they are."""
    weight = weights(regions, loads)
    held = dict.fromkeys(sorted(servers), 0.0)
    if not held:
        return {}
    homeless = []
    for region in regions:
        if region.server_id in held:
            held[region.server_id] += weight[region.partition_id]
        else:
            homeless.append(region.partition_id)
    found: dict[int, int] = {}
    for partition_id in sorted(homeless, key=lambda each: (-weight[each], each)):
        server_id = min(held, key=lambda each: (held[each], each))
        found[partition_id] = server_id
        held[server_id] += weight[partition_id]
    return found


@dataclass(frozen=True, slots=True)
class _Cut:
    """A key range that was split for its load, and how many splits around it were in vain by then."""

    start: bytes
    end: bytes  # empty: no end
    ops_per_s: float
    in_vain: int
    at_s: float

    def has(self, region: pm.RegionRecord) -> bool:
        ends_within = not self.end or (region.end and region.end <= self.end)
        return self.start <= region.start and bool(ends_within)

    def is_narrowed_by(self, region: pm.RegionRecord) -> bool:
        return self.start != region.start or self.end != region.end


STAYED_SHARE = 0.8  # of the operations, on one side: the split was in vain


@dataclass(slots=True)
class Balance:
    """What one term remembers from round to round: the reasons that stand, and the partitions that must rest."""

    config: BalanceConfig
    _large: dict[int, int] = field(default_factory=dict)  # rounds in a row
    _cold: dict[tuple[int, int], int] = field(default_factory=dict)
    _cuts: list[_Cut] = field(default_factory=list)
    _uneven: int = 0
    _rests_until_s: dict[int, float] = field(default_factory=dict)

    def rest(self, partition_ids: Iterable[int], *, now_s: float) -> None:
        """Note that these partitions were changed: they rest for a while."""
        for partition_id in partition_ids:
            self._rests_until_s[partition_id] = now_s + self.config.rest_s

    def round(
        self,
        regions: Sequence[pm.RegionRecord],
        servers: Sequence[int],
        loads: Mapping[int, pm.PartitionLoad],
        *,
        now_s: float,
    ) -> list[Step]:
        """The steps to take now. The caller reports executed ones by `rest`. `regions` are ordered by start."""
        self._rests_until_s = {each: until for each, until in self._rests_until_s.items() if until > now_s}
        if not servers:
            return []
        steps: list[Step] = [*self._splits(regions, servers, loads, now_s=now_s)]
        if not steps:
            steps += self._merges(regions, servers, loads)
        steps += self._moves(regions, servers, loads, busy={each for step in steps for each in touched_by(step)})
        return steps

    def _splits(
        self,
        regions: Sequence[pm.RegionRecord],
        servers: Sequence[int],
        loads: Mapping[int, pm.PartitionLoad],
        *,
        now_s: float,
    ) -> list[Split]:
        config = self.config
        self._cuts = [cut for cut in self._cuts if now_s - cut.at_s < config.in_vain_rest_s]
        large: dict[int, int] = {}
        for region in regions:
            load = loads.get(region.partition_id)
            if load is None:
                continue
            if load.size_bytes > config.split_bytes or (
                ops_per_s(load) > config.split_ops_per_s
                and self._in_vain(region, ops_per_s(load)) < config.splits_in_vain_max
            ):
                large[region.partition_id] = self._large.get(region.partition_id, 0) + 1
        self._large = large
        if len(regions) >= config.regions_per_server_max * len(servers):
            return []
        due = [each for each, rounds in large.items() if rounds >= config.rounds and each not in self._rests_until_s]
        due.sort(key=lambda each: (-loads[each].size_bytes, each))
        chosen = due[:1]  # one at a time, because each stops writes for a moment
        for region in regions:
            if region.partition_id in chosen:
                ops = ops_per_s(loads[region.partition_id])
                self._cuts.append(_Cut(region.start, region.end, ops, self._in_vain(region, ops), now_s))
        return [Split(each) for each in chosen]

    def _in_vain(self, region: pm.RegionRecord, ops: float) -> int:
        """How many nested splits, the last one around this region, have left it with nearly all operations."""
        for cut in reversed(self._cuts):
            if cut.has(region):
                if ops < STAYED_SHARE * cut.ops_per_s:
                    return 0
                return cut.in_vain + cut.is_narrowed_by(region)  # a split that failed has narrowed nothing
        return 0

    def _merges(
        self, regions: Sequence[pm.RegionRecord], servers: Sequence[int], loads: Mapping[int, pm.PartitionLoad]
    ) -> list[Merge]:
        config = self.config
        cold: dict[tuple[int, int], int] = {}
        for left, right in itertools.pairwise(regions):
            one, two = loads.get(left.partition_id), loads.get(right.partition_id)
            if one is None or two is None:  # a load that was not reported is not a small one
                continue
            if one.size_bytes + two.size_bytes > config.merge_bytes_max:
                continue
            if ops_per_s(one) + ops_per_s(two) <= config.merge_ops_per_s_max:
                pair = (left.partition_id, right.partition_id)
                cold[pair] = self._cold.get(pair, 0) + 1
        self._cold = cold
        if len(regions) <= config.regions_per_server_min * len(servers):
            return []
        for pair, rounds in cold.items():
            if rounds >= config.merge_rounds and not any(each in self._rests_until_s for each in pair):
                return [Merge(*pair)]
        return []

    def _moves(
        self,
        regions: Sequence[pm.RegionRecord],
        servers: Sequence[int],
        loads: Mapping[int, pm.PartitionLoad],
        *,
        busy: Collection[int],
    ) -> list[Move]:
        """Choose moves. `busy` partitions stay where they are."""
        weight = weights(regions, loads)
        held = dict.fromkeys(sorted(servers), 0.0)
        homes: dict[int, int] = {}
        for region in regions:
            if region.server_id in held:
                held[region.server_id] += weight[region.partition_id]
                homes[region.partition_id] = region.server_id
        fair = 1 / len(held)
        if max(held.values()) - min(held.values()) < self.config.imbalance_min * fair:
            self._uneven = 0
            return []
        moves: list[Move] = []
        for _ in range(MOVES_MAX):
            step = self._best_move(weight, held, homes, busy)
            if step is None:
                break
            held[homes[step.partition_id]] -= weight[step.partition_id]
            held[step.server_id] += weight[step.partition_id]
            homes[step.partition_id] = step.server_id
            moves.append(step)
        self._uneven = self._uneven + 1 if moves else 0  # if one partition outweighs all others, no move is due
        if self._uneven < self.config.rounds:
            return []
        self._uneven = 0  # the effect of these moves must show first, so the reason must stand anew
        return moves

    def _best_move(
        self, weight: Mapping[int, float], held: Mapping[int, float], homes: Mapping[int, int], busy: Collection[int]
    ) -> Move | None:
        """The move from the most to the least loaded server that makes them most alike; None if none helps enough."""
        fullest = max(held, key=lambda each: (held[each], -each))
        emptiest = min(held, key=lambda each: (held[each], each))
        gap = held[fullest] - held[emptiest]
        if gap < self.config.imbalance_min / len(held):
            return None
        best: tuple[float, int] | None = None
        for partition_id, home in homes.items():
            if home != fullest or partition_id in self._rests_until_s or partition_id in busy:
                continue
            gap_after = abs(gap - 2 * weight[partition_id])
            if gap_after < 0.9 * gap and (best is None or (gap_after, partition_id) < best):
                best = (gap_after, partition_id)
        return Move(best[1], emptiest) if best is not None else None
