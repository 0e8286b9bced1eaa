"""`python -m sfsample` is the command line."""

import sys

from sfsample.cli import main

sys.exit(main())
