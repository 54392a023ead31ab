"""`python -m neve.extent_node` runs an extent node."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("neve-extent-node", "neve.extent_node.server"))
