"""Which etcd versions are sound, as plain code.

Invariants: a version that is known to corrupt data is never passed over in silence.
"""

from __future__ import annotations

import re

# 3.5.0 to 3.5.5 may leave members with different data after a crash, or after a defragmentation that was
# interrupted (etcd's postmortem "v3.5 data inconsistency", its issues 13766 and 14685); 3.4.22 has those fixes.
SOUND_SINCE = {(3, 4): 22, (3, 5): 6}
# Not in this table: before 3.4.31 and 3.5.13 a deposed leader renews leases, and may make its successor revoke them
# (issue 15247). `etcd.EtcdStore.keep_alive` does not believe the first; the second costs a lease, and no safety.
OLDEST = (3, 4)  # before that, hasleader, fragments and reads at a revision differ from what we rely on


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The first `a.b.c` in `text`; None if there is none."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def version_warning(text: str) -> str | None:
    """What is wrong with this version of etcd; None for a sound one."""
    version = parse_version(text)
    if version is None:
        return f"cannot tell the version of etcd from {text!r}"
    if version[:2] < OLDEST:
        return f"etcd {text} is older than 3.4, the oldest that Neve is tested with"
    patch_min = SOUND_SINCE.get(version[:2], 0)
    if version[2] < patch_min:
        return (
            f"etcd {text} is known to corrupt data after a crash or to let members differ: "
            f"use {version[0]}.{version[1]}.{patch_min} or newer"
        )
    return None
