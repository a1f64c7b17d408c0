"""``digits``: a small network for scikit-learn's handwritten digits, as TorchScript.

``python -m tritonnb.model_zoo.digits PATH`` trains the network again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tritonnb.model_zoo.sources import bundled_repository

if TYPE_CHECKING:
    from torch import nn

_Examples = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def held_out() -> _Examples:
    """Return the images and classes that the network was not trained on.

    Returns
    -------
    images : numpy.ndarray
        FP32 of shape [360, 8, 8], values 0 to 1.
    classes : numpy.ndarray
        INT64 of shape [360].
    """
    return split()[1]


def train(path: Path) -> float:
    """Train the network and write it to a file; return the accuracy on the held-out images."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    (images, classes), (test_images, test_classes) = split()
    network = _new_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(classes)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(torch.log(network(inputs) + 1e-9), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.eval()
    torch.jit.script(network).save(str(path))  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        predicted = network(torch.from_numpy(test_images)).argmax(dim=1).numpy()
    return float((predicted == test_classes).mean())


def load_network() -> nn.Sequential:
    """Return the trained network, with the weights of the TorchScript file in this package.

    Raises
    ------
    ImportError
        If ``torch`` is not installed.
    """
    import torch

    trained = torch.jit.load(str(bundled_repository() / "digits" / "1" / "model.pt"))  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]):  # the weights before those of the file are random
        network = _new_network()
    network.load_state_dict(trained.state_dict())
    return network.eval()


def _new_network() -> nn.Sequential:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10), nn.Softmax(dim=1))


def split() -> tuple[_Examples, _Examples]:
    """Return the images and classes for training, and the held-out ones, as `held_out` returns them."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    classes = digits.target.astype(np.int64)
    train_images, test_images, train_classes, test_classes = train_test_split(
        images, classes, test_size=0.2, random_state=0
    )
    return (train_images, train_classes), (test_images, test_classes)


if __name__ == "__main__":
    print(f"accuracy on held-out images: {train(Path(sys.argv[1])):.3f}")
