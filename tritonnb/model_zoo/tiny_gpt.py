"""``tiny_gpt``: a character-level transformer, trained where it is used.

It is trained on the docstrings of Python's standard library, which every installation has, as questions and answers. It
learns to spell such sentences, but hardly their meaning: with a few million parameters, most of them in tables of pairs
and triples of characters, and a minute of training, it is an example of serving, not of language modelling.

The weights are the same for the same seed, Python and PyTorch on the same machine.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import math
import os
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tritonnb.core.json_types import Json
from tritonnb.model_zoo.sources import bundled_repository

#: What `state_of` returns for weights that need not be trained again.
CURRENT = "current"

SEED = 20
STEPS = 450
#: The characters of the pieces that documents are cut into, and the pieces of a training step.
WINDOW, BATCH = 128, 16
LEARNING_RATE = 4e-3
#: Seconds between calls of `Progress`.
PROGRESS_INTERVAL_S = 1.0
#: Directories of the standard library whose documentation is not for readers.
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "ensurepip", "__pycache__"}
_LONGEST = 800


#: ``progress(step, steps, loss, remaining_s)``: called now and then while the network is trained, and at the end.
#: The loss is in bits per character, the remaining time in seconds.
Progress = Callable[[int, int, float, float], None]


def write(path: Path, progress: Progress | None = None) -> None:
    """Write the trained weights: those of an earlier run on this machine, or new ones.

    Parameters
    ----------
    path : pathlib.Path
    progress : callable, optional
        See `Progress`; by default a progress bar is printed.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    """
    import torch

    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cached = caches / "tritonnb" / f"tiny_gpt-{hashlib.sha256(recipe().encode()).hexdigest()[:16]}.pt"
    with contextlib.suppress(OSError, ValueError):
        if recipe_in(cached) == recipe():
            shutil.copyfile(cached, path)
            return
    torch.save({"recipe": recipe(), "weights": train(SEED, STEPS, progress or ProgressBar())}, path)
    with contextlib.suppress(OSError):  # a home directory that cannot be written to
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}.partial")
        shutil.copyfile(path, partial)
        partial.replace(cached)


def state_of(path: Path) -> str:
    """Return `CURRENT` if the weights in a file were trained as this module trains them, else their training.

    Raises
    ------
    ImportError, ValueError
        As for `recipe_in`.
    """
    trained = recipe_in(path)
    return CURRENT if trained == recipe() else trained


def recipe() -> str:
    """Return the inputs of the weights: the network, the training, and the library with the text."""
    parameters = (SEED, STEPS, WINDOW, BATCH, LEARNING_RATE, sorted(_SKIPPED), _LONGEST)
    training = [inspect.getsource(function) for function in (_train, documents, _documents_of, _tokens)]
    content = _network_path().read_text("utf-8") + "".join(training) + repr(parameters)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return f"tiny_gpt {digest}, Python {sys.version_info.major}.{sys.version_info.minor}"


def recipe_in(path: Path) -> str:
    """Return the recipe of the weights in a file: they differ between machines, so that no checksum can be expected.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    ValueError
        If it is not a file of weights.
    """
    import torch

    if not path.is_file():
        raise ValueError(f"{path}: expected a file of weights")
    try:
        return str(torch.load(path, weights_only=True)["recipe"])
    except Exception as error:  # whatever the bytes make `torch.load` raise
        raise ValueError(f"{path}: expected a file of weights") from error


def train(seed: int, steps: int, progress: Progress | None = None) -> Json:
    """Train the network, on one thread: several would wait for each other on a busy machine.

    Parameters
    ----------
    seed : int
        Of the initial weights and of the order of the text.
    steps : int
        Each of 2,048 characters; it takes 0.2 s on one core.
    progress : callable, optional
        See `Progress`.

    Returns
    -------
    dict of str to torch.Tensor
        The weights by name.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(seed, steps, progress)
    finally:
        torch.set_num_threads(threads)


def _train(seed: int, steps: int, progress: Progress | None) -> Json:
    import torch
    from torch.nn import functional

    network = network_module()
    tokens = torch.tensor(_tokens(network, seed))
    weights = {name: weight.requires_grad_() for name, weight in network.initial_weights(seed).items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.02)
    order = torch.Generator().manual_seed(seed)
    penalty = network.distance_penalty(torch.arange(WINDOW)[None], WINDOW).expand(BATCH, -1, -1, -1)
    span = torch.arange(WINDOW + 3)
    started_s = shown_s = time.monotonic()
    for step in range(steps):
        begins = torch.randint(len(tokens) - len(span), (BATCH, 1), generator=order)
        pieces = tokens[begins + span]
        scores = network.logits(weights, pieces[:, :-1], penalty, lambda layer, keys, values: (keys, values))
        loss = functional.cross_entropy(scores.flatten(0, 1), pieces[:, 3:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 30, 0.02 + (steps - step) / (0.6 * steps))
        optimizer.step()
        now_s = time.monotonic()
        if progress is not None and (now_s > shown_s + PROGRESS_INTERVAL_S or step == steps - 1):
            progress(step + 1, steps, loss.item() / math.log(2), (now_s - started_s) * (steps / (step + 1) - 1))
            shown_s = now_s
    return {name: weight.detach() for name, weight in weights.items()}


def network_module() -> Any:
    """Return the module of the model directory that defines the network."""
    spec = importlib.util.spec_from_file_location("tritonnb_tiny_gpt_network", _network_path())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _network_path() -> Path:
    return bundled_repository() / "tiny_gpt" / "1" / "network.py"


def documents() -> Iterator[str]:
    """Yield questions and answers from the docstrings of the standard library, always in the same order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        module = path.relative_to(library)
        if _SKIPPED.isdisjoint(module.parts) and not module.name.startswith("_"):
            yield from _documents_of(path, ".".join(module.with_suffix("").parts))


def _documents_of(path: Path, module: str) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            name = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
            answer = inspect.cleandoc(text)[:_LONGEST]
            if answer.isascii() and len(answer) > 20:
                yield f"Question: what is {name}?\nAnswer: {answer}"


def _tokens(network: Any, seed: int) -> list[int]:
    texts = list(documents())
    random.Random(seed).shuffle(texts)
    tokens: list[int] = []
    for text in texts:
        tokens += [network.END, *network.encode(text)]
    return tokens


class ProgressBar:
    """A progress bar on one line of a terminal or notebook; elsewhere a line every 20 seconds."""

    _WIDTH, _LINE_INTERVAL_S = 30, 20.0

    def __init__(self) -> None:
        in_notebook = type(sys.stdout).__module__.startswith("ipykernel")
        self._rewrites = sys.stdout.isatty() or in_notebook
        self._printed_s = time.monotonic()

    def __call__(self, step: int, steps: int, loss: float, remaining_s: float) -> None:
        """Print a `Progress`."""
        ended = step == steps
        if not self._rewrites and not ended and time.monotonic() < self._printed_s + self._LINE_INTERVAL_S:
            return
        self._printed_s = time.monotonic()
        bar = "#" * (self._WIDTH * step // steps)
        text = f"training tiny_gpt [{bar:<{self._WIDTH}}] {step / steps:4.0%}, {remaining_s:3.0f} s left"
        print(f"\r{text}" if self._rewrites else text, end="\n" if ended or not self._rewrites else "", flush=True)
