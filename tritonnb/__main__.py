"""``python -m tritonnb``."""

import sys

from tritonnb.cli.main import main

sys.exit(main())
