"""`python -m orchestrator` is `ctvr`."""

import sys

from orchestrator.cli import main

sys.exit(main())
