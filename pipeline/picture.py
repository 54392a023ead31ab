"""The picture of a usage report: live ratio of the largest streams, and capacity by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neve.client.command.failures import CommandFailed

GIB = 1 << 30
STREAMS_MAX = 20


def draw(report: dict[str, Any], output: Path) -> None:
    """Write it as PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CommandFailed("a picture needs matplotlib: pip install 'neve[plot]'") from error

    figure = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subplots(2, 1)
    groups = report.get("partitions") or report["streams"]
    shown = groups[:STREAMS_MAX]
    names = [str(row.get("name") or row.get("partition_id") or row.get("stream_id") or "none") for row in shown]
    live = [row["live_bytes"] / GIB for row in shown]
    dead = [(row["bytes"] - row["live_bytes"]) / GIB for row in shown]
    above.bar(names, live, color="C2", label="live")
    above.bar(names, dead, bottom=live, color="C3", label="not live")
    for at, row in enumerate(shown):
        if row["live_ratio"] is not None:
            above.annotate(f"{row['live_ratio']:.0%}", (at, row["bytes"] / GIB), ha="center", va="bottom")
    above.set_ylabel("GiB, one copy")
    above.set_title(f"live ratio, at revision {report['revision']}")
    above.tick_params(axis="x", rotation=30)
    above.legend()

    nodes = report["nodes"]
    labels = [f"{node['node_id']}\n{node['rack']}" for node in nodes]
    ours = [node["bytes"] / GIB for node in nodes]
    others = [max(0.0, (n["capacity_bytes"] - n["free_bytes"] - n["bytes"]) / GIB) for n in nodes]
    free = [node["free_bytes"] / GIB for node in nodes]
    below.bar(labels, ours, color="C0", label="replicas")
    below.bar(labels, others, bottom=ours, color="0.6", label="other use")
    below.bar(labels, free, bottom=[a + b for a, b in zip(ours, others, strict=True)], color="0.9", label="free")
    below.set_ylabel("GiB")
    below.set_title("capacity by node")
    below.legend()
    for axes in (above, below):
        axes.grid(visible=True, axis="y", alpha=0.3)
    figure.savefig(output, format="png", dpi=120)
