"""Inputs whose cost is out of proportion to their size: ``python -m tools.fuzz.cost TARGET --seconds N``.

Two kinds of inputs are made from the corpus of a target:

- *Growing ones*: some bytes of an input, or a token of the format, are repeated 1, 2, 4, ... times. The time may grow
  with the size, but not faster, and the peak of the memory has a limit for each byte.
- *Crafted numbers*: a number in an input becomes another one, such as 2⁶³ - 1. The time has a limit for each byte.

The time is that of the processor, so that other programs on the machine hardly change it.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import re
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.fuzz.corpus import inputs_of
from tools.fuzz.targets import TARGETS, Try, open_target

#: Growth is judged from this time on, in seconds: shorter times consist of constant parts and noise.
JUDGED_SECONDS = 0.02
#: The largest factor of the time when the size doubles: 2 is linear, 4 is quadratic. Three judged sizes must exceed it
#: together, and two of them alone.
LARGEST_GROWTH, JUDGED_SIZES = 3.0, 3
#: The largest inputs in bytes.
LARGEST_INPUT = 1 << 18
#: The limits of the peak of the memory, and of the time of an input with a crafted number. Targets run an input up to
#: eight times, and keep the answers in order to compare them.
PEAK_BYTES, PEAK_BYTES_PER_BYTE = 16 << 20, 512
SECONDS, SECONDS_PER_BYTE = 0.5, 50e-6

_NUMBER = re.compile(rb"\d+(\.\d+)?([eE][+-]?\d+)?")
NUMBERS = (
    *(b"0", b"2147483647", b"2147483648", b"4294967295", b"9223372036854775807", b"9223372036854775808"),
    *(b"18446744073709551615", b"1000000000000000000", b"9" * 4000, b"9" * 5000, b"1e308", b"1e999999", b"1e-999999"),
)
TOKENS = (
    *(b"[", b"]", b"{", b'{"a":', b'"', b'\\"', b"\\", b"\\ud800", b"\\u0000", b"\xff", b"\xc3", b"\0", b" ", b"\t"),
    *(b"\n", b"\r\n", b"9", b"0", b"-", b".", b"1,", b"1.5,", b"1e9,", b"9223372036854775807,", b'"",', b'"a":1,'),
    *(
        b"[],",
        b"{},",
        b"null,",
        b"true,",
        b"Inf,",
        b"#\n",
        b"//",
        b"/*",
        b"a:1 ",
        b"a{",
        b"<",
        b"'",
        b"''",
        b"1\r\n1\r\n",
    ),
    *(b"X:1\r\n", b",", b":", b";", b"a", b"\x80", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x01\x00\x00\x00"),
)


class CostError(Exception):
    """An input costs more than its size allows."""


@dataclass(frozen=True)
class Growing:
    """An input with a part that is repeated.

    Examples
    --------
    >>> Growing(b"[", b"1,", b"1]").repeated(3)
    b'[1,1,1,1]'
    """

    before: bytes
    unit: bytes
    after: bytes = b""

    def repeated(self, times: int) -> bytes:
        """Return the input with its part repeated."""
        return b"".join((self.before, self.unit * times, self.after))

    def __repr__(self) -> str:
        parts = (part if len(part) < 200 else part[:90] + b" ... " + part[-90:] for part in (self.before, self.after))
        before, after = parts
        return f"{before!r} + {self.unit!r} * n + {after!r}"


def check_growth(run: Try, growing: Growing, largest: int = LARGEST_INPUT) -> None:
    """Repeat a part of an input until it takes a while, or is large.

    Raises
    ------
    CostError
        If the time grows faster than the size, or the memory exceeds its limit.
    """
    times, data = 1, growing.repeated(1)
    seconds = [_seconds(run, data)]
    # Beyond the largest size where the last ones grew too fast: the next size decides.
    while (2 * len(data) <= largest and seconds[-1] < 1) or _grew_too_fast(seconds):
        times *= 2
        data = growing.repeated(times)
        seconds.append(_seconds(run, data))
        if _grew_too_fast(seconds) == JUDGED_SIZES:
            before, after = seconds[-1 - JUDGED_SIZES], seconds[-1]
            raise CostError(
                f"{growing!r}: {times >> JUDGED_SIZES} repetitions take {before * 1e3:.0f} ms, "
                f"{times} {after * 1e3:.0f} ms"
            )
    if (peak := _peak(run, data)) > PEAK_BYTES + PEAK_BYTES_PER_BYTE * len(data):
        raise CostError(f"{growing!r}: {times} repetitions, {len(data)} bytes, need {peak >> 20} MiB")


def _grew_too_fast(seconds: Sequence[float]) -> int:
    """Return how many of the last judged sizes, each twice as large, grew too fast together, or 0."""
    judged = sum(time > JUDGED_SECONDS for time in seconds[-JUDGED_SIZES:])
    if judged == len(seconds):
        return 0
    factors = [after / before for before, after in pairwise(seconds[-1 - judged :])]
    # One factor may be any: memory beyond a cache or another way to read long inputs makes it large, noise small.
    grew = sum(factor > LARGEST_GROWTH for factor in factors) >= min(judged, JUDGED_SIZES - 1)
    return judged if grew and math.prod(factors) > LARGEST_GROWTH**judged else 0


def check_cost(run: Try, data: bytes) -> None:
    """Run an input.

    Raises
    ------
    CostError
        If it exceeds the limit of the time.
    """
    if (seconds := _seconds(run, data)) > SECONDS + SECONDS_PER_BYTE * len(data):
        raise CostError(f"{data[:4000]!r}: {len(data)} bytes take {seconds:.1f} s")


def _seconds(run: Try, data: bytes) -> float:
    """Return the processor time of an input: the smaller of two, unless the first is short or long."""
    first = _once(run, data)
    return min(first, _once(run, data)) if JUDGED_SECONDS / 8 < first < 0.5 else first


def _once(run: Try, data: bytes) -> float:
    gc.disable()
    try:
        begin = time.process_time()
        run(data)
        return time.process_time() - begin
    finally:
        gc.enable()


def _peak(run: Try, data: bytes) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run(data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def growing_inputs(inputs: Sequence[bytes], choice: random.Random) -> Iterator[Growing]:
    """Yield inputs at random, without an end: a part of an input or a token is repeated at some place.

    In one of four, the text before it is deep, since readers treat deep documents in another way.
    """
    while True:
        data = choice.choice(inputs)
        begin = choice.randrange(len(data) + 1)
        end = min(len(data), begin + choice.choice((0, 0, 1, 2, 4, 16, 64)))
        unit = data[begin:end] or choice.choice(TOKENS)
        before, after = data[:begin], data[end:]
        if choice.random() < 0.25:
            before += choice.choice(TOKENS) * choice.choice((1, 1, 300)) + choice.choice((b"", b'"', b"["))
        yield Growing(before, unit, choice.choice((after, b"")))


def crafted_numbers(data: bytes) -> Iterator[bytes]:
    """Yield an input with each of its numbers replaced by each of `NUMBERS`."""
    for match in _NUMBER.finditer(data):
        for number in NUMBERS:
            yield data[: match.start()] + number + data[match.end() :]


def search(target: str, seconds: float, seed: int) -> int:
    """Try the crafted numbers of a target's corpus, then growing inputs until the time is over; returns their number.

    Raises
    ------
    CostError
        For the first input that costs too much.
    """
    inputs = list(inputs_of(target).values())
    choice, count, end = random.Random(seed), 0, time.monotonic() + seconds
    with open_target(target) as run:
        run(inputs[0])  # imports and caches
        crafted = [data for known in inputs for data in crafted_numbers(known)]
        choice.shuffle(crafted)
        growing = growing_inputs(inputs, choice)
        while time.monotonic() < end:
            if crafted:
                check_cost(run, crafted.pop())
            check_growth(run, next(growing))
            count += 1
    return count


def main() -> None:
    """Read the arguments and search."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.cost", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count = search(options.target, options.seconds, options.seed)
    print(f"{options.target}: {count} growing inputs, each in proportion to its size")


if __name__ == "__main__":
    main()
