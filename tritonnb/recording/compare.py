"""`compare`: two recordings side by side."""

from __future__ import annotations

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.comparison import Comparison
from tritonnb.recording.recording import Recording


def compare(first: Recording, second: Recording, *, names: tuple[str, str] = ("first", "second")) -> Comparison:
    """Compare two recordings, live or simulated: in numbers, in words and as a figure.

    Parameters
    ----------
    first, second : Recording
        Batches are compared one by one where both have the same arrivals.
    names : tuple of str, optional
        What they are called.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidArgumentError
        If they are not recordings, or the names are not two different texts.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> two, four = (simulate(f"max_batch_size: {rows}", [(0, rows)] * 8, fixed(5)) for rows in (2, 4))
    >>> compare(two, four, names=("two rows", "four rows")).verdict()
    'four rows beside two rows: mean batch size 2.00 → 4.00.'
    """
    for each in (first, second):
        if not isinstance(each, Recording):
            raise InvalidArgumentError(f"compare needs two recordings, got {type(each).__name__}")
    if not isinstance(names, tuple | list) or len({*names}) != 2 or not all(isinstance(each, str) for each in names):
        raise InvalidArgumentError(f"names are two different texts, got {names!r}")
    return Comparison(first, second, names=(names[0], names[1]))
