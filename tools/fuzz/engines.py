"""Running a target: with coverage guidance (libFuzzer, in the package ``atheris``), or with random mutations.

``make fuzz`` installs atheris in its own environment. Compiled modules have no coverage, so that the sources are
imported even where there are compiled ones beside them.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

from tools.fuzz.corpus import directory_of, inputs_of
from tools.fuzz.targets import Try, open_target

_PACKAGE = str(Path(__file__).parents[2] / "tritonnb")
#: Seconds that one input may take.
_TIMEOUT = 20
#: The limit of the resident set, in MB: a target that exceeds it leaks.
_MEMORY = 2048


def has_coverage() -> bool:
    """Return whether atheris is installed."""
    return find_spec("atheris") is not None


def import_sources() -> None:
    """Make later imports read the sources of this package, not its compiled modules."""
    find_sources = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def finder(path: str) -> FileFinder:
        if path != _PACKAGE and not path.startswith(_PACKAGE + "/"):
            raise ImportError
        found = find_sources(path)
        assert isinstance(found, FileFinder)
        return found

    sys.path_hooks.insert(0, finder)


def fuzz_with_coverage(target: str, seconds: int, executions: int, work: Path) -> None:
    """Run libFuzzer, which ends the process; inputs that cause errors are written to ``work``.

    Parameters
    ----------
    target : str
    seconds, executions : int
        The limits; 0 executions for any number.
    work : pathlib.Path
        For the inputs that increase the coverage, which the next run continues with.
    """
    import atheris

    import_sources()
    with atheris.instrument_imports(include=["tritonnb", "httptools", "hpack"]), open_target(target) as run:
        corpus = work / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        arguments = [sys.argv[0], str(corpus), str(directory_of(target))]
        arguments += [f"-max_total_time={seconds}", f"-runs={executions or -1}", f"-artifact_prefix={work}/"]
        arguments += [f"-timeout={_TIMEOUT}", f"-rss_limit_mb={_MEMORY}", "-max_len=4096", "-print_final_stats=1"]
        atheris.Setup(arguments, run)
        atheris.Fuzz()


def fuzz_at_random(target: str, seconds: int, executions: int, seed: int) -> int:
    """Run a target with mutations of its corpus; returns the number of executions."""
    inputs = list(inputs_of(target).values())
    choice, count, end = random.Random(seed), 0, time.monotonic() + seconds
    with open_target(target) as run:
        while (not executions or count < executions) and time.monotonic() < end:
            try_input(run, mutate(inputs, choice))
            count += 1
    return count


def try_input(run: Try, data: bytes) -> None:
    """Run a target with one input; an error names the input."""
    try:
        run(data)
    except Exception as error:
        error.add_note(f"the input is {data!r}")
        raise


def mutate(inputs: Sequence[bytes], choice: random.Random) -> bytes:
    """Return a random change of an input: bytes replaced, removed, repeated, or taken from another input."""
    data = bytearray(choice.choice(inputs))
    for _ in range(choice.choice((1, 1, 2, 4, 8))):
        at = choice.randrange(len(data) + 1)
        size = choice.choice((1, 1, 2, 4, 16, 64))
        other = choice.choice(inputs)
        begin = choice.randrange(len(other) + 1)
        replacement = choice.choice(
            (b"", choice.randbytes(size), bytes([choice.choice(b"\x00\x01\x7f\x80\xff")]) * size, other[begin:][:size])
        )
        data[at : at + choice.choice((0, size))] = replacement
    return bytes(data)
