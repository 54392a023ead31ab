"""The table of unsound releases of etcd. Pure.

Invariants: a release that is known to lose or corrupt data is never used without a warning.
"""

from __future__ import annotations

import re

BUILT_VERSION = "3.6.16"  # built by `neve etcd install`; tools/etcd_build/go.mod names the same release
INSTALL_COMMAND = "neve etcd install"

# For each minor release: the patch that fixed a defect, and the defect's effect. A sound release has all the fixes.
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
# (etcd issue 15247). `EtcdStore.keep_alive` does not rely on such renewals; a wrong revocation costs a lease, but no
# data.
OLDEST = (3, 4)  # before that, hasleader, fragments and reads at a revision differ from what Neve needs


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The first `a.b.c` in `text`; None if there is none."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def version_warning(text: str) -> str | None:
    """Why this release of etcd must not store data that matters; None for a sound release."""
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
