"""A repository with ``tiny_gpt`` and random weights, which need no training and answer the same for the same seed."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from tritonnb.model_zoo import tiny_gpt

EXAMPLES = Path(__file__).parents[2] / "model_repository"


def write_repository(directory: Path) -> Path:
    """Both models, in a directory."""
    for name in ("tiny_gpt", "tiny_gpt_static"):
        shutil.copytree(EXAMPLES / name, directory / name, ignore=shutil.ignore_patterns("weights.pt", "__pycache__"))
    weights = tiny_gpt.network_module().initial_weights(1)
    torch.save({"recipe": "random", "weights": weights}, directory / "tiny_gpt" / "1" / "weights.pt")
    return directory
