"""How many examples a law tries: `make laws` as many as are written beside it, other runs a part of them.

Hypothesis draws new examples for each run, so that the next runs try what one run leaves out.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

#: Percent in `make test`, `make test-fast` and `make laws`.
_PROFILES = {"tritonnb": 20, "fast": 10, "laws": int(os.environ.get("EXAMPLES", "100"))}


def register() -> None:
    """Register the profiles; no example fails because the machine is slow.

    Hypothesis itself chooses the same examples in each run of continuous integration.
    """
    for name, percent in _PROFILES.items():
        settings.register_profile(
            name,
            max_examples=percent,  # of the 100 of a law without settings
            derandomize=False,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("tritonnb")


def law(examples: int, **options: Any) -> settings:
    """The settings of a law that tries a number of examples in `make laws`, and part of them in other runs."""
    return settings(max_examples=max(5, examples * settings.default.max_examples // 100), **options)
