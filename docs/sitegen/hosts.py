"""Where the views work: the hosts and views of `tests/notebook/test_browser_real_hosts.py`, and a table of them.

The tests open each view in each host, so the table says what they have seen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
#: The hosts with a kernel by the package that has them.
LIVE_HOSTS = {
    "JupyterLab": "jupyterlab",
    "JupyterLab, windowing mode `full`": "jupyterlab",
    "Notebook": "notebook",
    "Voila": "voila",
    "marimo": "marimo",
}
#: Pages of nbconvert, and what they show of each view.
PAGES = {
    "nbconvert, with the state of widgets": "last state",
    "nbconvert, without it": "picture or table",
}
#: What `VIEWS` show: a server and its client, and a recording.
PRELUDE = """
import tritonnb as tnb
server = tnb.serve({repository!r}, port={port})
@server.model(max_batch_size=8, dynamic_batching={{}})
def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    return X * 2
remote = tnb.connect(server.url)
"""
RECORDING = "rec = tnb.load(server['double'], clients=4, requests=400).wait().recording"
#: By what a user calls it: a cell.
VIEWS = {
    "live view": "server['double'].watch()",
    "dashboard": "server.dashboard('double')",
    "traffic panel": "server['double'].traffic()",
    "configuration editor": "server['double'].edit()",
    "view of a recording": "rec.view()",
    "comparison": "rec.what_if(max_batch_size=4).view()",
    "debugger": "rec.debug()",
    "worksheet": "tnb.worksheet(seed=3)",
    "ensemble": "server['twice'].watch()",
    "model of another server": "remote['double'].watch()",
    "dashboard of another server": "remote.dashboard()",
}
#: The view that has no click that the kernel answers.
READ_ONLY = ("model of another server",)


def versions() -> dict[str, str]:
    """Return the versions of the packages that the tests are run with."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    pinned = [Requirement(text) for text in groups["hosts"] if isinstance(text, str)]
    constraints = map(Requirement, (ROOT / "binder" / "constraints.txt").read_text("utf-8").splitlines())
    return {one.name: str(one.specifier).removeprefix("==") for one in (*constraints, *pinned)}


def write_table(path: Path) -> None:
    """Write the table of views and hosts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table(), "utf-8")


def table() -> str:
    """Return a row for each view, with a column for each host.

    Examples
    --------
    >>> print(table().splitlines()[3].partition(" | ")[0])
    | dashboard
    """
    known = versions()
    live = [f"{host} ({known[package]})" for host, package in LIVE_HOSTS.items()]
    rows = [[name, *["live, no input" if name in READ_ONLY else "live"] * len(live), *PAGES.values()] for name in VIEWS]
    return "".join(map(_line, [["view", *live, *PAGES], ["---"] * (1 + len(live) + len(PAGES)), *rows]))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
