"""What holds for all tests: no example of hypothesis fails because the machine was slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tritonnb", deadline=None)
settings.load_profile("tritonnb")
