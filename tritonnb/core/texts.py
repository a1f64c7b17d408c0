"""Texts of models and other user code, as the server keeps them: every endpoint can encode them.

What a model says (errors, log lines, labels, names, parameters) may be anything that Python calls a ``str``: with lone
surrogates, which ``os.fsdecode`` and ``json.loads`` return and UTF-8 cannot express, of a subclass, or of any length.
It enters through `printable` where it is a message to people, and through `find_text_error` where it is data, which
nothing may change. So no writer of an endpoint, which has other requests to answer, can fail on it later.

Texts of *requests* do not pass here: over HTTP their bytes that are not UTF-8 are surrogate escapes, which the
responses contain as they were, as on Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The longest error text that is kept, in characters; gRPC clients refuse trailers of a few KiB anyway.
LONGEST_ERROR = 1 << 16


#: The names that a message has of a list, which may have thousands.
_MOST_NAMES = 5


def listed(names: Sequence[str]) -> str:
    """Return the names of a list with commas, the first of many.

    Examples
    --------
    >>> listed(["a", "b"]), listed([f"m{number}" for number in range(7)])
    ('a, b', 'm0, m1, m2, m3, m4 and 2 others')
    """
    more = len(names) - _MOST_NAMES
    others = f" and {more} other{'s' * (more > 1)}" if more > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + others


def encodable(text: str) -> str:
    r"""Return a plain ``str`` that UTF-8 can express: lone surrogates are escaped.

    Parameters
    ----------
    text : str
        Possibly of a subclass, such as ``numpy.str_``, which not every encoder accepts.

    Returns
    -------
    str

    Examples
    --------
    >>> encodable("caf\udce9")
    'caf\\udce9'
    """
    plain = str.__str__(text)  # a subclass may have its own `encode`
    return plain if plain.isascii() else plain.encode("utf-8", "backslashreplace").decode()


def printable(value: object, longest: int = LONGEST_ERROR) -> str:
    r"""Return the text of any object of user code, such as an exception; never raises.

    Parameters
    ----------
    value : object
        Text, UTF-8 bytes, or an object that ``str()`` is called for.
    longest : int, optional
        The number of characters after which the text is cut, and says so.

    Returns
    -------
    str

    Examples
    --------
    >>> printable(ValueError("caf\ud83d")), printable(b"caf\xe9"), printable("x" * 9, longest=4)
    ('caf\\ud83d', 'caf\\xe9', 'xxxx... (9 characters)')
    """
    try:
        if isinstance(value, bytes):
            text = value.decode("utf-8", "backslashreplace")
        else:
            text = value if isinstance(value, str) else str(value)
    except BaseException as error:  # even SystemExit: this runs where an error is reported, and nothing catches another
        text = f"<{type(value).__name__}, whose text is not available: str() raised {type(error).__name__}>"
    return encodable(text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)")


def find_text_error(what: str, value: object) -> str:
    r"""Return what is wrong with a text that is data and must not be changed; empty if nothing is.

    Parameters
    ----------
    what : str
        The place of the text, for the message.
    value : object

    Returns
    -------
    str

    Examples
    --------
    >>> find_text_error("label 'gpu'", 0)
    "label 'gpu': expected a str, got 0 (int)"
    >>> find_text_error("label 'gpu'", "caf\udce9")
    "label 'gpu': expected text that UTF-8 can express, got 'caf\\udce9'"
    """
    if not isinstance(value, str):
        return f"{what}: expected a str, got {shown(value)} ({type(value).__name__})"
    if encodable(value) != value:
        return f"{what}: expected text that UTF-8 can express, got {shown(value)}"
    return ""


def shown(value: object) -> str:
    """Return the ``repr()`` of a value of user code for an error message; cut if it is long, and never raises.

    Examples
    --------
    >>> shown("x" * 200)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (202 characters)"
    """
    try:
        text = repr(value)
    except BaseException:
        text = f"<{type(value).__name__}, whose repr() raises>"
    return printable(text, longest=80)
