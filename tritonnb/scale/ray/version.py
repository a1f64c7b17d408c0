"""The Ray that is installed."""

from __future__ import annotations

import re
from importlib import metadata

from tritonnb.core.errors import UnavailableError

#: The first release with the request routers that sequences need.
NEEDED = (2, 56)
_INSTALL = 'pip install "tritonnb[ray]"'


def require_ray() -> None:
    """Check that Ray Serve is installed, and new enough.

    Raises
    ------
    UnavailableError
        If it is not.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"Ray Serve is not installed: {_INSTALL}") from None
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise UnavailableError(f"expected Ray {needed} or later, got {version}: {_INSTALL}")
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"Ray {version} is installed without Serve ({error}): {_INSTALL}") from None
