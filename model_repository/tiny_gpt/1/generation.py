"""Generations: the options of a request, its text so far, and the steps of all slots of the key-value cache."""

import contextlib
import fcntl
import json
import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from .network import CHARACTERS, CHUNK, CONTEXT, END, VOCABULARY, Cache, encode

#: The options of a generation, with the names of vLLM's ``SamplingParams``, and their defaults, which null means, too.
DEFAULTS = {
    "max_tokens": CONTEXT,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": None,
    "stop": [],
    "ignore_eos": False,
    "logprobs": None,
}
#: Seconds between messages about the training of missing weights.
LOG_INTERVAL_S = 15
_TYPES = {
    "max_tokens": int,
    "temperature": (int, float),
    "top_k": int,
    "top_p": (int, float),
    "seed": int,
    "stop": (list, str),
    "ignore_eos": bool,
    "logprobs": int,
}


class Generation:
    """One generation: its request's options, and its tokens and text so far."""

    def __init__(self, request, sender):
        self.sender = sender
        text = _value(request, "text_input").decode("utf-8", "replace")
        options = _options(request)
        self.stream = bool(_value(request, "stream", False))
        self.prompt = [END, *encode(text)]
        self.tokens = []
        self.slot = None
        self.step = 0
        self.finish_reason = ""
        self.logprobs = options["logprobs"]
        if options["max_tokens"] < 1:
            raise ValueError(f"sampling_parameters: expected max_tokens of at least 1, got {options['max_tokens']}")
        self.max_tokens = min(options["max_tokens"], CONTEXT - len(self.prompt))
        if self.max_tokens < 1:
            raise ValueError(
                f"text_input: expected fewer than {CONTEXT - 1} characters (the context of the model), got {len(text)}"
            )
        stop = options["stop"]
        self._stop = [stop] if isinstance(stop, str) else stop
        self._random = random.Random(options["seed"])
        echo = not _value(request, "exclude_input_in_output", True)
        self._pending = text if echo else ""
        self._candidates = []
        top_k = options["top_k"]
        self.sampling = (
            options["temperature"],
            top_k if 0 < top_k < VOCABULARY else VOCABULARY,
            options["top_p"],
            options["ignore_eos"],
        )

    def draw(self):
        """The number from 0 to 1 that chooses the next token."""
        return self._random.random()

    def add(self, token, candidates):
        """Add a token that was chosen; ``candidates`` are the log probabilities of it and the most probable ones."""
        self.tokens.append(token)
        if token == END:
            self.finish_reason = "stop"
            return
        self._pending += CHARACTERS[token]
        if self.logprobs is not None:
            self._candidates.append(_logprobs_entry(candidates[: 1 + self.logprobs]))
        ends = [self._pending.find(stop) for stop in self._stop if stop in self._pending]
        if ends:
            self._pending = self._pending[: min(ends)]
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.finish_reason = "length"

    def response(self):
        """The next response; None if text has to wait, since its end may begin a stop string."""
        if not self.finish_reason and not self.stream:
            return None
        held = 0 if self.finish_reason else max((_overlap(self._pending, stop) for stop in self._stop), default=0)
        text, self._pending = self._pending[: len(self._pending) - held], self._pending[len(self._pending) - held :]
        if not text and not self.finish_reason:
            return None
        outputs = [_strings("text_output", text)]
        if self._candidates:
            outputs.append(_strings("logprobs", json.dumps(self._candidates)))
            self._candidates = []
        if self.finish_reason:
            outputs.append(_strings("finish_reason", self.finish_reason))
            counts = {"num_input_tokens": len(self.prompt) - 1, "num_output_tokens": len(self.tokens)}
            outputs += [pb_utils.Tensor(name, np.array([[count]], np.uint32)) for name, count in counts.items()]
        return pb_utils.InferenceResponse(outputs)


class Slots:
    """The running generations, each in a slot of the key-value cache, and their steps."""

    def __init__(self, weights, count):
        self.cache = Cache(weights, count)
        self._owners = [None] * count
        self._step = 0
        # The arguments of a decode step, one row for each slot, as tensors that share memory with these arrays.
        self._tokens = np.full((count, 3), END)
        self._positions = np.zeros(count, np.int64)
        self._options = [np.ones(count, np.float32) for _ in range(5)]
        arrays = (self._tokens, self._positions, *self._options)
        self._arguments = [torch.from_numpy(array) for array in arrays]

    def advance(self, generations):
        """Add the next token of each generation: after its prompt if it has no slot, else by one decode step of all."""
        self._step += 1
        for generation in generations:
            generation.step = self._step
        running = [generation for generation in generations if generation.slot is not None]
        for generation in generations:
            if generation.slot is None:
                self._prefill(generation)
        if running:
            self._decode(running)

    def release(self, generation):
        """Let another generation use the slot."""
        if generation.slot is not None:
            self._owners[generation.slot] = None
            generation.slot = None

    def _prefill(self, generation):
        slot = self._take_slot(generation)
        tokens = generation.prompt + generation.tokens  # the latter if it had lost its slot
        temperature, top_k, top_p, banned = generation.sampling
        drawn = generation.draw()
        options = [torch.tensor([value], dtype=torch.float32) for value in (temperature, top_k, top_p, drawn, banned)]
        padded = [END, END, *tokens, *[END] * (-len(tokens) % CHUNK)]
        for begin in range(0, len(tokens), CHUNK):
            last = min(CHUNK, len(tokens) - begin) - 1
            piece = torch.tensor([padded[begin : begin + 2 + CHUNK]])
            place = [torch.tensor([number]) for number in (slot, begin, last)]
            sampled = self.cache.prefill(self.cache.keys_and_values, piece, *place, *options)
        for array, value in zip(self._options, (temperature, top_k, top_p, drawn, banned), strict=True):
            array[slot] = value
        self._tokens[slot] = [END, END, *tokens][-3:]
        self._positions[slot] = len(tokens) - 1
        self._add(generation, 0, *[part.numpy() for part in sampled])

    def _decode(self, running):
        for generation in running:
            self._options[3][generation.slot] = generation.draw()
        sampled = [part.numpy() for part in self.cache.decode(self.cache.keys_and_values, *self._arguments)]
        for generation in running:
            self._add(generation, generation.slot, *sampled)

    def _add(self, generation, row, tokens, log_probabilities, candidates, candidate_log_probabilities):
        token, slot = int(tokens[row]), generation.slot
        self._tokens[slot, :2] = self._tokens[slot, 1:]
        self._tokens[slot, 2] = token
        self._positions[slot] += 1
        most_probable = ()
        if generation.logprobs is not None:
            others = zip(candidates[row].tolist(), candidate_log_probabilities[row].tolist(), strict=True)
            most_probable = [(token, float(log_probabilities[row])), *others]
        generation.add(token, most_probable)

    def _take_slot(self, generation):
        """A free slot, or that of the generation whose last step is the longest ago: it continues from its tokens."""
        free = [slot for slot, owner in enumerate(self._owners) if owner is None]
        slot = free[0] if free else min(range(len(self._owners)), key=lambda slot: self._owners[slot].step)
        if not free:
            self._owners[slot].slot = None
        self._owners[slot] = generation
        generation.slot = slot
        return slot


def load(slots):
    """The slots of a model with the trained weights, which are trained first if they are missing."""
    path = Path(__file__).with_name("weights.pt")
    with _locked(path.parent):  # another model of this repository may train them
        if not path.exists():
            _train(path)
    weights = torch.load(path, weights_only=True)
    return Slots(weights["weights"], slots)


@contextlib.contextmanager
def _locked(directory):
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _train(path):
    """Train the weights with tritonnb, which the Python of another server may not have."""
    try:
        from tritonnb.model_zoo import tiny_gpt
    except ImportError:
        raise pb_utils.TritonModelException(
            f"{path}: expected trained weights, got no file; create it with: tritonnb models DIRECTORY tiny_gpt"
        ) from None

    logged_s = -math.inf

    def log(step, steps, loss, remaining_s):
        nonlocal logged_s
        if time.monotonic() > logged_s + LOG_INTERVAL_S:
            logged_s = time.monotonic()
            progress = f"step {step} of {steps}, {remaining_s:.0f} s left"
            pb_utils.Logger.log_warn(f"tiny_gpt has no weights yet and is trained, once: {progress}")

    partial = path.with_name(f"weights.{os.getpid()}.partial")
    tiny_gpt.write(partial, log)
    partial.replace(path)


def send(generation):
    """Send the next response of a generation, if there is one; the final flag with the last."""
    response = generation.response()
    if generation.finish_reason:
        generation.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    elif response is not None:
        generation.sender.send(response)


def end(generation):
    """End the responses to a request whose client is gone."""
    generation.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def refuse(sender, error):
    """Respond to a request whose options are invalid."""
    failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
    sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _value(request, name, default=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _options(request):
    """The options of a request: from its parameters, and from the JSON in ``sampling_parameters``."""
    parameters = json.loads(request.parameters() or "{}")
    options = {name: value for name, value in parameters.items() if name in DEFAULTS}
    try:
        sampling = json.loads(_value(request, "sampling_parameters", b"{}"))
    except ValueError:
        sampling = None
    if not isinstance(sampling, dict):
        raise ValueError("sampling_parameters: expected a JSON object")
    options.update(sampling)
    for name, value in options.items():
        if name not in DEFAULTS:
            raise ValueError(f"sampling_parameters: expected {', '.join(DEFAULTS)}, got '{name}'")
        if value is not None and not isinstance(value, _TYPES[name]):
            raise ValueError(f"sampling_parameters: unexpected value of '{name}': {value!r}")
    return {name: default if options.get(name) is None else options[name] for name, default in DEFAULTS.items()}


def _overlap(text, stop):
    """Count the characters at the end of text that may begin a stop string."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


def _strings(name, text):
    return pb_utils.Tensor(name, np.array([[text.encode()]], np.object_))


def _logprobs_entry(candidates):
    """One token as vLLM describes it; the chosen one first."""
    entry = {}
    for token, logprob in candidates:
        text = CHARACTERS[token] if token < END else ""
        entry.setdefault(str(token), {"logprob": logprob, "decoded_token": text})
    return entry
