"""A plugin of pytest (``-p tests.interpreted``): the sources are tested instead of the compiled modules."""

from __future__ import annotations

from tritonnb import compiled

compiled.interpret()
