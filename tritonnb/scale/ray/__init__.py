"""A model repository on Ray Serve: the same models, clients and sequences, on several machines.

Needs the extra ``ray``. `app` makes the application, `tritonnb.scale` runs it from a notebook, and
``tritonnb serve --ray`` from a shell.
"""

from __future__ import annotations

from tritonnb.scale.ray.application import app, build

__all__ = ["app", "build"]
