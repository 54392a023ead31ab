"""The limit of open files and sockets of a server process.

Shells and systemd start processes with a soft limit of 1,024, which old programs need. The hard limit is the
operator's. A server raises its soft limit to the hard one.
"""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
