"""`python -m neve.partition_manager` runs a partition manager."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("neve-partition-manager", "neve.partition_manager.server"))
