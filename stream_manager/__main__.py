"""`python -m neve.stream_manager` runs a stream manager."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("neve-stream-manager", "neve.stream_manager.server"))
