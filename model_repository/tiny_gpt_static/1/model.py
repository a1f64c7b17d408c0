"""Static batching: an execution runs a batch of generations from their prompts to the last token of the longest."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import torch

#: The package of the model ``tiny_gpt``, in the same repository.
_package = ModuleType(f"{__package__}.tiny_gpt")
_package.__path__ = [str(Path(__file__).parents[2] / "tiny_gpt" / "1")]
sys.modules[_package.__name__] = _package
generation = importlib.import_module(f"{_package.__name__}.generation")


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        self.slots = generation.load(json.loads(args["model_config"])["max_batch_size"])

    @torch.inference_mode()
    def execute(self, requests):
        running = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                running.append((request, generation.Generation(request, sender)))
            except ValueError as error:
                generation.refuse(sender, error)
        while running:
            self.slots.advance([started for _, started in running])
            for _, started in running:
                generation.send(started)
            running = [pair for pair in running if self.goes_on(*pair)]

    def goes_on(self, request, started):
        """Return whether a generation needs another step; its slot stays unused until the batch ends."""
        # A request that has its last response must not be asked: Triton may have freed it.
        cancelled = not started.finish_reason and request.is_cancelled()
        if cancelled:
            generation.end(started)
        if cancelled or started.finish_reason:
            self.slots.release(started)
            return False
        return True
