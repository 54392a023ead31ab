"""`python -m neve.client.command` is stream-client."""

from neve.client.command.main import main

raise SystemExit(main())
