"""The flags of a request that belongs to a sequence: TRITONSERVER_RequestFlag in tritonserver.h."""

from __future__ import annotations

from typing import Final

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2
