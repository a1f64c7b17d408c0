"""Recorded responses that later releases of Triton changed.

The recordings are of Triton 2.51; *newer_release.json* has the responses of release 26.11 where they differ, as its
sources show, and the change that made the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_CHANGES: dict[str, dict[str, Any]] = {
    change["id"]: change for change in json.loads((HERE / "newer_release.json").read_text())
}


def recordings(name: str) -> list[dict[str, Any]]:
    """The exchanges of a file, each with the response of release 26.11.

    Shared memory objects have names of this process, since other processes may run the same exchanges.
    """
    text = (HERE / name).read_text().replace("/replay_", f"/replay_{os.getpid()}_")
    exchanges: list[dict[str, Any]] = json.loads(text)
    return [exchange | _CHANGES.get(exchange["id"], {}) for exchange in exchanges]


def unused_changes(*names: str) -> set[str]:
    """The ids of changes that belong to no exchange of these files."""
    return _CHANGES.keys() - {exchange["id"] for name in names for exchange in json.loads((HERE / name).read_text())}
