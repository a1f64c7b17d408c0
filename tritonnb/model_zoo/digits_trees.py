"""``digits_trees``: gradient-boosted trees for scikit-learn's handwritten digits, as an XGBoost file.

``python -m tritonnb.model_zoo.digits_trees PATH`` trains the trees again. They were not trained on the images of
`tritonnb.model_zoo.digits.held_out`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tritonnb.model_zoo.digits import split

ROUNDS = 20
OPTIONS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 3,
    "eta": 0.5,
    "tree_method": "hist",
    "nthread": 1,
    "seed": 1,
}


def train(path: Path) -> float:
    """Train the trees and write them to a file; return the accuracy on the held-out images.

    Raises
    ------
    ImportError
        If ``xgboost`` is not installed.
    """
    import xgboost

    (images, classes), (test_images, test_classes) = split()
    training = xgboost.DMatrix(images.reshape(len(images), -1), classes)
    booster = xgboost.train(OPTIONS, training, ROUNDS)
    booster.save_model(path)
    predicted = booster.inplace_predict(test_images.reshape(len(test_images), -1)).argmax(axis=1)
    return float((predicted == test_classes).mean())


if __name__ == "__main__":
    print(f"accuracy on held-out images: {train(Path(sys.argv[1])):.3f}")
