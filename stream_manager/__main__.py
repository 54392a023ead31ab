"""`python -m neve.stream_manager` runs a stream manager."""

from __future__ import annotations

import sys

from neve.stream_manager.server import main

sys.exit(main())
