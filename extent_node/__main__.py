"""`python -m neve.extent_node` runs an extent node."""

from __future__ import annotations

import sys

from neve.extent_node.server import main

sys.exit(main())
