"""`python -m neve.partition_manager` runs a partition manager."""

from __future__ import annotations

import sys

from neve.partition_manager.server import main

sys.exit(main())
