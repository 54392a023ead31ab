"""`python -m neve.partition_server` runs a partition server."""

from __future__ import annotations

import sys

from neve.partition_server.server import main

sys.exit(main())
