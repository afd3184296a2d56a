"""`python -m crossbow` is the command `crossbow`."""

from crossbow.cli import main

raise SystemExit(main())
