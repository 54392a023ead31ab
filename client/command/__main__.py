"""Runs stream-client: `python -m neve.client.command`."""

from __future__ import annotations

import sys

from neve.rpc.entry import enter

sys.exit(enter("stream-client", "neve.client.command.main"))
