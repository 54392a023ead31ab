"""python -m neve.gateway"""

from __future__ import annotations

from neve.gateway.server import main

if __name__ == "__main__":
    raise SystemExit(main())
