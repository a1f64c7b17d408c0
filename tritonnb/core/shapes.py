"""Shapes as text, and whether they fit dims."""

from __future__ import annotations

from collections.abc import Sequence


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as Triton writes it: ``[-1,3]``."""
    return f"[{','.join(map(str, shape))}]"


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return whether a shape has these dims; -1 in ``dims`` stands for any size."""
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
