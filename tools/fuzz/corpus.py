"""The corpus: one directory for each target, with seeds (``seed-*``) and inputs of defects (``found-*``)."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def directory_of(target: str) -> Path:
    """Return the directory of a target's inputs."""
    return CORPUS / target


def inputs_of(target: str) -> dict[str, bytes]:
    """Return the inputs of a target, by file name."""
    return {path.name: path.read_bytes() for path in sorted(directory_of(target).iterdir())}
