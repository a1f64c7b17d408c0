"""Shapes as text."""

from __future__ import annotations

from collections.abc import Sequence


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Triton writes it: ``[-1,3]``."""
    return f"[{','.join(map(str, shape))}]"
