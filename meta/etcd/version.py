"""Which releases of etcd are sound. Pure.

Invariants: a release that is known to lose or to corrupt data is never used without a warning.
"""

from __future__ import annotations

import re

BUILT_VERSION = "3.6.16"  # what `neve etcd install` builds: tools/etcd_build/go.mod names the same release
INSTALL_COMMAND = "neve etcd install"

# For each minor release: the patch that fixed a defect, and what the defect does. A sound release has all of the fixes.
DEFECTS: dict[tuple[int, int], tuple[tuple[int, str], ...]] = {
    (3, 4): (
        (21, "a single member that is killed may lose writes that it acknowledged (etcd issue 14370)"),
        (22, "a member that is killed while it defragments may differ from the others (etcd issue 14685)"),
    ),
    (3, 5): (
        (3, "a member that is killed may come back with wrong data (etcd issue 13766)"),
        (5, "a single member that is killed may lose writes that it acknowledged (etcd issue 14370)"),
        (6, "a member that is killed while it defragments may differ from the others (etcd issue 14685)"),
    ),
}
# Not in this table: before 3.4.31 and 3.5.13 a deposed leader renews leases, and may make its successor revoke them
# (issue 15247). `etcd.EtcdStore.keep_alive` does not rely on the first; the second costs a lease, and no data.
OLDEST = (3, 4)  # before that, hasleader, fragments and reads at a revision differ from what Neve needs


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The first `a.b.c` in `text`; None if there is none."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def version_warning(text: str) -> str | None:
    """Why this release of etcd is no place for data that matters; None for a sound one."""
    version = parse_version(text)
    if version is None:
        return f"cannot tell the version of etcd from {text!r}"
    if version[:2] < OLDEST:
        return f"etcd {text} is older than 3.4, the oldest release that Neve is tested with"
    minor = f"{version[0]}.{version[1]}"
    defects = [(fixed, what) for fixed, what in DEFECTS.get(version[:2], ()) if version[2] < fixed]
    if not defects:
        return None
    fixed, what = defects[0]
    return f"etcd {text} is unsound: in {minor}.0 to {minor}.{fixed - 1} {what}; use {minor}.{defects[-1][0]} or newer"
