"""How much memory this process takes."""

from __future__ import annotations

import os
from pathlib import Path

_PAGES = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Bytes of the process that are in memory; 0 where the system does not tell."""
    try:
        return int(_PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0
