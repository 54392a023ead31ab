"""How many files and sockets a server process may have open.

Shells and units start processes with a soft limit of 1,024, which old programs need; the hard limit is what the
operator allows. A server takes all of it.
"""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one; what may be open from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
