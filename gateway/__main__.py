"""`python -m neve.gateway` runs a gateway."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("neve-gateway", "neve.gateway.server"))
