"""Continuous batching: each execution is one step of the generations in the batch, which joins new prompts."""

import json

import torch
import triton_python_backend_utils as pb_utils

from .generation import Generation, end, load, refuse, send

#: A generation that got no step for so many steps of others has lost its client.
FORGOTTEN = 1000


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        config = json.loads(args["model_config"])
        self.slots = load(config["sequence_batching"]["oldest"]["max_candidate_sequences"])
        self.generations = {}

    @torch.inference_mode()
    def execute(self, requests):
        running = []
        for request in requests:
            key = request.correlation_id()
            if key not in self.generations:
                # One sender for all steps: Triton deletes what a sender needs together with it.
                sender = request.get_response_sender()
                try:
                    self.generations[key] = Generation(request, sender)
                except ValueError as error:
                    refuse(sender, error)
                    continue
            running.append((request, key, self.generations[key]))
        self.slots.advance([generation for request, key, generation in running if not request.is_cancelled()])
        for request, key, generation in running:
            cancelled = request.is_cancelled()
            ended = cancelled or generation.finish_reason
            if not ended:
                # Before the response is sent: Triton 2.51 crashes if the request is used after it.
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            if cancelled:
                end(generation)
            else:
                send(generation)
            if ended:
                self.slots.release(self.generations.pop(key))
        self.forget()

    def forget(self):
        """Forget the generations that were cancelled between two steps: the model does not learn of their end."""
        last = max((generation.step for generation in self.generations.values()), default=0)
        for key, generation in list(self.generations.items()):
            if generation.step < last - FORGOTTEN:
                self.slots.release(self.generations.pop(key))
