"""The text of lines, from the probability of each character at each column."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        lines = (Path(__file__).parent / "characters.txt").read_text(encoding="utf-8").split("\n")
        # The first stands for the gap between two equal characters.
        self.characters = np.array(["", *lines[:-1], " "])

    def execute(self, requests):
        return [self.read(request) for request in requests]

    def read(self, request):
        probabilities = pb_utils.get_input_tensor_by_name(request, "PROBABILITIES").as_numpy()
        boxes = pb_utils.get_input_tensor_by_name(request, "BOXES").as_numpy()
        texts, scores = zip(*map(self.decode, probabilities), strict=True)
        said = [bool(text.strip()) for text in texts]
        encoded = np.array([text.encode("utf-8") for text in texts], dtype=np.object_)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("TEXT", encoded[said]),
                pb_utils.Tensor("SCORE", np.array(scores, np.float32)[said]),
                pb_utils.Tensor("TEXT_BOXES", boxes[said]),
            ]
        )

    def decode(self, columns):
        """A character that goes on over several columns is one; the score is the mean of theirs."""
        best = columns.argmax(axis=1)
        counts = (best != 0) & np.append(True, best[1:] != best[:-1])
        if not counts.any():
            return "", 0.0
        return "".join(self.characters[best[counts]]), columns.max(axis=1)[counts].mean()
