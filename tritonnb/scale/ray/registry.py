"""The routers of this process.

Ray copies the module of a request router, and the values that it refers to, into every process, so what is stored there
is not shared with the rest of the program. This module is imported.
"""

from __future__ import annotations

from typing import Any

#: By application and deployment, each a `TargetRouter`. Ray makes a router for the first request to a deployment.
ROUTERS: dict[tuple[str, str], Any] = {}
