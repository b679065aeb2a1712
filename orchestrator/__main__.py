"""`python -m orchestrator` is `ctvr`."""

import sys

from orchestrator.cli.main import main

sys.exit(main())
