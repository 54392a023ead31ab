"""Plants faults in the files of sealed replicas, under the feet of running nodes."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from neve.proto import stream_manager_pb2 as sm
from tests.cluster.stream_cluster import StreamCluster


class ReplicaFile(NamedTuple):
    extent_id: int
    node_id: int
    path: Path
    length: int


def replica_files(cluster: StreamCluster, infos: Sequence[sm.ExtentInfo]) -> list[ReplicaFile]:
    """The files of all sealed replicas."""
    folders = {cluster.node_id(server): cluster.disk_folder(server) for server in cluster.nodes}
    return [
        ReplicaFile(
            info.extent_id,
            each.replica.node_id,
            folders[each.replica.node_id] / "extents" / f"{info.extent_id & 0xFF:02x}" / f"{info.extent_id:016x}.ext",
            info.seal.length,
        )
        for info in infos
        if info.HasField("seal") and info.seal.length
        for each in info.replicas
    ]


def _flip_a_bit(rng: random.Random, file: ReplicaFile) -> None:
    with file.path.open("r+b") as opened:
        at = rng.randrange(file.length)
        opened.seek(at)
        [byte] = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))


def _truncate(rng: random.Random, file: ReplicaFile) -> None:
    os.truncate(file.path, rng.choice([0, file.length - 1, rng.randrange(file.length)]))


def _zero_a_page(rng: random.Random, file: ReplicaFile) -> None:
    with file.path.open("r+b") as opened:
        opened.seek(rng.randrange(max(1, file.length - 512)))
        opened.write(bytes(512)[: file.length - opened.tell()])


ALONE: tuple[Callable[[random.Random, ReplicaFile], None], ...] = (_flip_a_bit, _truncate, _zero_a_page)


def _swap_names(one: ReplicaFile, other: ReplicaFile) -> None:
    """The files change places, attributes and all."""
    aside = one.path.with_suffix(".aside")
    one.path.rename(aside)
    other.path.rename(one.path)
    aside.rename(other.path)


def _swap_bytes(one: ReplicaFile, other: ReplicaFile) -> None:
    """Sound blocks of another extent under the right attributes."""
    first, second = one.path.read_bytes(), other.path.read_bytes()
    for file, content in ((one, second), (other, first)):
        with file.path.open("r+b") as opened:
            opened.write(content)
            opened.truncate(len(content))


def plant(rng: random.Random, files: Sequence[ReplicaFile], count: int) -> dict[tuple[int, int], str]:
    """Spoil `count` replicas, and leave each extent one that is sound: (extent, node) → what was done."""
    spoilt: dict[tuple[int, int], str] = {}
    left: dict[int, int] = defaultdict(int)
    for file in files:
        left[file.extent_id] += 1
    order = list(files)
    rng.shuffle(order)

    def free(file: ReplicaFile) -> bool:
        return (file.extent_id, file.node_id) not in spoilt and left[file.extent_id] > 1

    def note(file: ReplicaFile, what: str) -> None:
        spoilt[file.extent_id, file.node_id] = what
        left[file.extent_id] -= 1

    for file in order:
        if len(spoilt) >= count:
            break
        if not free(file):
            continue
        pair = next((e for e in order if e.node_id == file.node_id and e.extent_id != file.extent_id and free(e)), None)
        if pair is not None and rng.random() < 0.3 and len(spoilt) + 2 <= count:
            swap = rng.choice([_swap_names, _swap_bytes])
            swap(file, pair)
            note(file, swap.__name__)
            note(pair, swap.__name__)
            continue
        alone = rng.choice(ALONE)
        alone(rng, file)
        note(file, alone.__name__)
    assert len(spoilt) == count, f"{len(files)} replicas are too few for {count} faults"
    return spoilt
