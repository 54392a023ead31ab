"""`python -m neve.partition_server` runs a partition server."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("neve-partition-server", "neve.partition_server.server"))
