"""A small character-level transformer, and its key-value cache for generations of different lengths.

The same `logits` trains and generates. To generate, the keys and values of all slots are in one tensor that is written
in place, and every step has the same shapes, whatever the number of running generations: a step costs the same for one
of them as for all, and the tokens of one do not depend on the others.
"""

import math

import torch
from torch.nn import functional

#: The characters that the model knows, then the token that separates documents. Others are read as "?".
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
END = len(CHARACTERS)
VOCABULARY = END + 1

LAYERS, HEADS, WIDTH = 4, 4, 128
#: Tokens that a slot of the key-value cache can hold.
CONTEXT = 512
#: Prompts are read in pieces of this many tokens.
CHUNK = 64
#: Each position adds embeddings of its last two and three characters: cheaper than more layers.
PAIRS, TRIPLES = VOCABULARY**2, 1 << 14
#: Candidates whose log probabilities a step returns.
CANDIDATES = 5

_NUMBERS = {character: number for number, character in enumerate(CHARACTERS)}


def encode(text):
    """The tokens of a text."""
    return [_NUMBERS.get(character, _NUMBERS["?"]) for character in text]


def initial_weights(seed):
    """Random weights, by name."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape, scale):
        return torch.randn(shape, generator=random) * scale

    weights = {
        "token": normal(VOCABULARY, WIDTH, scale=0.02),
        "pair": normal(PAIRS, WIDTH, scale=0.02),
        "triple": normal(TRIPLES, WIDTH, scale=0.02),
        "final": torch.ones(WIDTH),
    }
    for layer in range(LAYERS):
        weights[f"{layer}.before_attention"] = torch.ones(WIDTH)
        weights[f"{layer}.attention"] = normal(3 * WIDTH, WIDTH, scale=WIDTH**-0.5)
        weights[f"{layer}.project"] = normal(WIDTH, WIDTH, scale=(2 * LAYERS * WIDTH) ** -0.5)
        weights[f"{layer}.before_hidden"] = torch.ones(WIDTH)
        weights[f"{layer}.hidden"] = normal(4 * WIDTH, WIDTH, scale=WIDTH**-0.5)
        weights[f"{layer}.output"] = normal(WIDTH, 4 * WIDTH, scale=(8 * LAYERS * WIDTH) ** -0.5)
    return weights


def embeddings(weights, tokens):
    """``[batch, time, width]`` of ``[batch, 2 + time]`` tokens: the first two are only context."""
    before, last, token = tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]
    pairs = last * VOCABULARY + token
    triples = (before * PAIRS + pairs) * 40503 % 1000003 % TRIPLES
    summed = functional.embedding(token, weights["token"])
    return summed + functional.embedding(pairs, weights["pair"]) + functional.embedding(triples, weights["triple"])


def distance_penalty(queries, length):
    """``[batch, heads, time, length]``: what is added to attention; minus infinity for later positions (ALiBi).

    ``queries`` are the positions of the queries, ``[batch, time]``.
    """
    slopes = 2.0 ** (torch.arange(1, HEADS + 1) * (-8 / HEADS))
    distance = (queries[:, None, :, None] - torch.arange(length)).float()
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -math.inf)


def logits(weights, tokens, penalty, attended):
    """``[batch, time, vocabulary]``.

    ``attended(layer, keys, values)`` returns the keys and values to attend to, given those of the tokens,
    ``[batch, heads, time, width / heads]``.
    """
    x = embeddings(weights, tokens)
    batch, time, _ = x.shape
    for layer in range(LAYERS):
        normed = functional.rms_norm(x, (WIDTH,), weights[f"{layer}.before_attention"])
        projected = functional.linear(normed, weights[f"{layer}.attention"])
        query, key, value = projected.view(batch, time, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind()
        key, value = attended(layer, key, value)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=penalty)
        x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, time, WIDTH), weights[f"{layer}.project"])
        normed = functional.rms_norm(x, (WIDTH,), weights[f"{layer}.before_hidden"])
        hidden = functional.relu(functional.linear(normed, weights[f"{layer}.hidden"])).square()
        x = x + functional.linear(hidden, weights[f"{layer}.output"])
    return functional.linear(functional.rms_norm(x, (WIDTH,), weights["final"]), weights["token"])


def sample(scores, temperature, top_k, top_p, drawn, banned):
    """Choose a token for each row, by the numbers ``drawn`` from 0 to 1.

    Returns the tokens ``[rows]``, their log probabilities, and the most probable `CANDIDATES` with theirs.
    """
    scores = scores.clone()
    scores[:, END] -= banned * 1e9
    log_probabilities = functional.log_softmax(scores, 1)
    ordered, tokens = torch.sort(log_probabilities, stable=True, dim=1, descending=True)
    probabilities = functional.softmax(ordered / temperature.clamp(min=1e-4)[:, None], 1)
    before = probabilities.cumsum(1) - probabilities
    kept = (before < top_p[:, None]) & (torch.arange(VOCABULARY) < top_k[:, None])
    cumulative = (probabilities * kept).cumsum(1)
    place = (cumulative <= drawn[:, None] * cumulative[:, -1:]).sum(1, keepdim=True)
    place = torch.minimum(place, kept.sum(1, keepdim=True) - 1)
    chosen, log_probability = tokens.gather(1, place)[:, 0], ordered.gather(1, place)[:, 0]
    return chosen, log_probability, tokens[:, :CANDIDATES], ordered[:, :CANDIDATES]


class Cache:
    """The key-value cache of ``slots`` generations, and the two functions that fill it.

    Both are traced: a call is one operation without the interpreter lock, so that the server can work meanwhile.
    """

    def __init__(self, weights, slots):
        self.keys_and_values = torch.zeros(2, LAYERS, slots, HEADS, CONTEXT, WIDTH // HEADS)
        self._weights = weights
        self._heads = torch.arange(HEADS)[None, :, None]
        self._all = torch.arange(slots)
        options = (torch.ones(1), torch.full((1,), VOCABULARY), torch.ones(1), torch.zeros(1), torch.zeros(1))
        piece = torch.full((1, 2 + CHUNK), END)
        zero = torch.zeros(1, dtype=torch.long)
        with torch.inference_mode():
            self.prefill = torch.jit.trace(
                self._prefill, (self.keys_and_values, piece, zero, zero, zero, *options), check_trace=False
            )
            self.decode = torch.jit.trace(
                self._decode,
                (
                    self.keys_and_values,
                    torch.full((slots, 3), END),
                    torch.zeros(slots, dtype=torch.long),
                    *(option.expand(slots).contiguous() for option in options),
                ),
                check_trace=False,
            )

    @property
    def bytes(self):
        """The size of the cache."""
        return self.keys_and_values.nbytes

    def _prefill(self, cache, tokens, slot, begin, last, *options):
        """Read `CHUNK` tokens of a prompt from position ``begin`` on, and sample after the ``last`` of them."""
        scores = self._scores(cache, tokens, slot, begin[:, None] + torch.arange(CHUNK), select=True)
        return sample(scores.index_select(1, last)[:, 0], *options)

    def _decode(self, cache, tokens, positions, *options):
        """The next token of every slot, given its last three."""
        return sample(self._scores(cache, tokens, self._all, positions[:, None], select=False)[:, 0], *options)

    def _scores(self, cache, tokens, slots, positions, select):
        def attended(layer, *computed):
            for stored, new in zip(cache[:, layer].unbind(), computed, strict=True):
                stored.index_put_((slots[:, None, None], self._heads, positions[:, None, :]), new)
            keys, values = cache[0, layer], cache[1, layer]
            return (keys.index_select(0, slots), values.index_select(0, slots)) if select else (keys, values)

        return logits(self._weights, tokens, distance_penalty(positions, CONTEXT), attended)
