"""Makes `python -m crossbow` run the command `crossbow`."""

from crossbow.cli import main

raise SystemExit(main())
