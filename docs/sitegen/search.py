"""Checks the search of the built site: ``python -m docs.sitegen.search build/site``.

It needs Node.js, which runs the search as a browser does.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from docs.sitegen.error_messages import MESSAGES

#: Triton's terms, and the pages that explain them.
TERMS = {
    "dynamic batcher": "explanation/batching",
    "queue delay": "explanation/batching",
    "correlation id": "glossary",
    "instance group": "glossary",
}
_ERRORS = "generated/error-messages"
#: The page has to be among so many.
_FIRST = 3


def queries() -> dict[str, str]:
    """Return the page to find for each query: Triton's terms, and each error message with values in it."""
    texts = (text for messages in MESSAGES.values() for text in messages)
    return TERMS | {with_values(text): _ERRORS for text in texts}


def with_values(text: str) -> str:
    """Return an error message as a client gets it.

    Examples
    --------
    >>> with_values("expected shape … for input '…', got […]")
    "expected shape 8 for input 'my_model', got ['my_model']"
    """
    text = text.replace("'…'", "'my_model'").replace("[…]", "['my_model']")
    return re.sub("…+", "8", re.sub(r"…+(?=\w)", "", text))


def find_pages(node: str, site: Path, texts: Iterable[str]) -> list[list[str]]:
    """Return the pages that the search finds for each text, the best first.

    Parameters
    ----------
    node : str
        The program.
    site : Path
    texts : iterable of str
    """
    command = [node, str(Path(__file__).with_suffix(".mjs")), str(site)]
    output = subprocess.run(command, input=json.dumps(list(texts)), capture_output=True, text=True, check=True).stdout
    pages: list[list[str]] = json.loads(output)
    return [list(dict.fromkeys(found)) for found in pages]


def main() -> int:
    """Check the site named on the command line; the exit status."""
    node = shutil.which("node")
    if node is None:
        print("the search was not checked, which needs Node.js")
        return 0
    expected = queries()
    found = dict(zip(expected, find_pages(node, Path(sys.argv[1]).resolve(), expected), strict=True))
    problems = [
        f"search for {text!r}: expected {page} among the first {_FIRST} pages, got {', '.join(found[text][:_FIRST])}"
        for text, page in expected.items()
        if page not in found[text][:_FIRST]
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(expected)} searches checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
