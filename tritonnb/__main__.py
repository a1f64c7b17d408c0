"""``python -m tritonnb``."""

import sys

from tritonnb.cli import main

sys.exit(main())
