"""Writes *docs/performance.md* from the newest results of each benchmark in *benchmarks/results*."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import pipelines, predictions, ratios, servers, sweeps
from benchmarks.http import INLINE
from benchmarks.stages import STAGES, THREAD_TIMES
from benchmarks.tables import table
from benchmarks.targets import TITLES, below_target

_BELOW = "Below the target"
PAGE = servers.ROOT / "docs" / "performance.md"
RESULTS = Path(__file__).parent / "results"
#: The share of the processor time that is mentioned if the host took it.
_NOTABLE = 0.02
#: The share of the instructions from which on a function is listed.
_PART = 0.03
#: The instructions of a request that are the aim, with so many connections or threads.
BUDGETS = {
    "HTTP binary": (8, 110_000),
    "HTTP JSON": (8, 150_000),
    "gRPC": (8, 171_000),
    "ensemble of two": (8, 343_000),
    "sequences": (1, 223_000),
    "in process": (8, 125_000),
}

_INTRODUCTION = """# Performance

`make bench-report` writes this page; below each table is its command. Servers and load generator share one machine;
the servers are measured in turn, in several rounds. Figures are medians, *ratio* that of the rounds' ratios. Rates
depend on the machine and its neighbours, ratios too, instructions do not. *Below the target* lists the missed targets.

Each request has its own ID and data. `tritonnb` is a Python model that declares nothing; with the parameter
`EXECUTE_ON_ANY_THREAD`, the event loop executes a model's quick batches.
"""


def write_report() -> Path:
    """Write the sections of the page that have results in this checkout; the other sections stay as they are."""
    newest = _newest()
    sections = {part.partition("\n")[0]: f"## {part}" for part in PAGE.read_text().split("\n## ")[1:]}
    for name, (run, figures) in newest.items():
        title, section = SECTIONS[name]
        command = f"python -m benchmarks {name} {run['options']}"
        stolen = run.get("stolen", {}).get(name, 0.0)
        host = f"; the host of the machine took {stolen:.0%} of its processor time" if stolen >= _NOTABLE else ""
        where = f"; on {run['machine']}, {run['state']}" if "machine" in run else ""
        sections[title] = (
            f"## {title}\n\n{section(figures)}\n\n`{command}`, {run['when']}, commit {run['commit']}{where}{host}\n"
        )
    # The list needs all of them; else the list of the page stays, which names the earlier figures.
    if all(name in newest for name in TITLES):
        rows, why = below_target({name: figures for name, (_, figures) in newest.items()})
        head = ("times Triton's, if no other is named", "connections", "target", "measured")
        sections[_BELOW] = f"## {_BELOW}\n\n{table(head, rows)}\n{why}\n"
    titles = [title for title, _ in SECTIONS.values()]
    ordered = [sections.pop(title) for title in [*titles, _BELOW] if title in sections]
    PAGE.write_text("\n".join(part.rstrip("\n") + "\n" for part in [_INTRODUCTION, *ordered, *sections.values()]))
    return PAGE


def commit() -> str:
    """Return the commit of the checkout; it ends in ``-dirty`` if files have changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=servers.ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    """Return the processor, the number of cores and the operating system of this machine."""
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _newest() -> dict[str, tuple[dict[str, Any], Any]]:
    """Return the newest figures of each benchmark, and the results that they are part of."""
    newest: dict[str, tuple[dict[str, Any], Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        results = json.loads(path.read_text())
        measured = {name: figures for name, figures in results.items() if isinstance(figures, dict) and figures}
        newest.update({name: (results, figures) for name, figures in measured.items() if name in SECTIONS})
    return newest


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cases(figures: dict[str, Any]) -> str:
    """The table of `benchmarks.http.measure_cases`: one row for each case and number of connections."""
    rows = [
        (f"{case}{label}", count, f"{own['rate']:,.0f}", f"{triton['rate']:,.0f}", f"{own['times_triton']:.2f}",
         f"{own['p99_ms']:.2f}", f"{triton['p99_ms']:.2f}")
        for case, measured in figures.items()
        for server, label in (("tritonnb", ""), (INLINE, ", EXECUTE_ON_ANY_THREAD"))
        for count, own, triton in _pairs(measured, server)
    ]  # fmt: skip
    repeated = "*Headers of tritonclient* repeats the first case: the difference is the scatter.\n\n"
    return (repeated if "headers of tritonclient" in figures else "") + table(
        ("requests", "connections", "requests/s", "Triton", "ratio", "p99 ms", "Triton"), rows
    )


def _pairs(measured: dict[str, Any], server: str) -> list[tuple[str, dict[str, float], dict[str, float]]]:
    """Numbers of connections, the figures of a server, and those of Triton."""
    counts = [key.removeprefix(f"{server} at ") for key in measured if key.startswith(f"{server} at ")]
    return [(count, measured[f"{server} at {count}"], measured[f"triton at {count}"]) for count in counts]


_COLUMNS = ("connections", "server", "requests/s", "p50 ms", "p99 ms", "tritonnb is faster by")


def _servers(figures: dict[str, Any]) -> str:
    """The table of `benchmarks.http.report`."""
    return table(_COLUMNS, _rows(figures))


def _rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key, values in figures.items():
        name, _, count = key.rpartition(" at ")
        ratio = "" if name == "tritonnb" else f"{values['ratio']:.2f}"
        rows.append((count, name, f"{values['rate']:.0f}", f"{values['p50_ms']:.2f}", f"{values['p99_ms']:.2f}", ratio))
    return rows


def _accumulator(figures: dict[str, Any]) -> str:
    rates, own = figures["rate"], figures["rate"]["tritonnb"]
    rows = [
        (name, f"{rate:.0f}", f"{figures['p99_ms'][name]:.2f}", "" if name == "tritonnb" else f"{own / rate:.2f}")
        for name, rate in rates.items()
    ]
    return table(("server", "requests/s", "p99 ms", "tritonnb is faster by"), rows)


def _inprocess(figures: dict[str, Any]) -> str:
    others: list[str] = []
    rows = []
    for callers, rates in figures.items():
        if "in process" in rates:
            own = rates["in process"]
            others = [name for name in rates if name != "in process"]
            ratios = [median(a / b for a, b in zip(own, rates[name], strict=True)) for name in others]
            rows.append((callers, f"{median(own):.0f}", *(f"{ratio:.2f}" for ratio in ratios)))
    return table(("callers", "calls/s", *(f"times {name}" for name in others)), rows)


def _tricks(figures: dict[str, Any]) -> str:
    rows = [
        (name, *(f"{values['ratios'][count]:.2f} ({_spread(values['rounds'][count])})" for count in ("1", "8", "32")))
        for name, values in figures.items()
    ]
    return (
        "Requests per second, divided by those without the optimisation (the lowest and the highest ratio of a "
        "round).\n\n" + table(("optimisation", "1 connection", "8", "32"), rows)
    )


def _instructions(figures: dict[str, Any]) -> str:
    names = dict.fromkeys(row.partition(",")[0] for row in figures)
    rows = [
        (
            name,
            *(f"{values['instructions']:,.0f}" for row, values in figures.items() if row.startswith(f"{name},")),
            f"{BUDGETS[name][1]:,} ({BUDGETS[name][0]})",
        )
        for name in names
    ]
    shares = [next(v["inclusive"] for row, v in figures.items() if row.startswith(f"{name}, 8 ")) for name in names]
    largest = {part: max(of.get(part, 0.0) for of in shares) for of in shares for part in of}
    parts = [
        (part, *(f"{of[part]:.0%}" if part in of else "" for of in shares))
        for part, share in largest.items()
        if share >= _PART
    ]
    return (
        "In user mode, per request, of all threads of the server, counted by callgrind: the same on any machine with "
        "this kind of processor, also while other programs run. `make check-budget` fails if one grows by more than "
        "3 %. In a row *in process*, the caller counts, too. How many slots of a batch of sequences are empty depends "
        "on when threads run, and changes these rows by ten percent.\n\n"
        + table(("request", "1 connection or thread", "8", "32", "budget (connections)"), rows)
        + "\nThe parts with 8 connections: the largest function of each compiled module, what it calls included.\n\n"
        + table(("function", *names), parts)
    )


def _ratios(figures: dict[str, Any]) -> str:
    """The rates divided by Triton's: the targets of the page."""
    rows = []
    for title, target in ratios.TARGETS.items():
        reached, latencies = {}, {}
        for count, own, triton in _pairs(figures[title], "tritonnb"):
            ratio, latency, limit = own["times_triton"], own["p99_ms"], triton["p99_ms"]
            reached[count] = _marked(ratio, ratio >= target)
            latencies[count] = f"{_marked(latency, latency <= limit)} ({limit:.2f})"
        cells = [column.get(count, "") for column in (reached, latencies) for count in ("1", "8", "32")]
        rows.append((title, f"{target:.1f}", *cells))
    head = ("requests", "target", "1 connection", "8", "32", "p99 ms: 1 connection", "8", "32")
    return (
        f"Requests per second, divided by those of Triton 2.51 (the binary of {servers.PACKAGE}) with its Python "
        "backend, and the p99 (Triton's in brackets), which should not be above Triton's. *Italics*: the target is "
        "missed.\n\n" + table(head, rows)
    )


def _marked(value: float, is_reached: bool) -> str:
    return f"{value:.2f}" if is_reached else f"*{value:.2f}*"


def _costs(figures: dict[str, Any]) -> str:
    whole = figures["nothing"]
    parts = ", ".join(
        f"{name} {count:,.0f} ({1 - count / whole:.1%} fewer)" for name, count in figures.items() if name != "nothing"
    )
    return (
        f"Instructions in user mode per HTTP request over eight connections, counted by callgrind: {whole:,.0f}; "
        f"without {parts}.\n"
    )


def _pythons(figures: dict[str, Any]) -> str:
    rows = [
        (version, *(f"{median(values):.2f} ({_spread(values)})" for values in ratios.values()))
        for version, ratios in figures.items()
    ]
    return (
        "HTTP requests per second, divided by those on the version above (lowest and highest ratio of a round).\n\n"
        + table(("Python", "1 connection", "8", "32"), rows)
    )


def _simulator(figures: dict[str, Any]) -> str:
    rows = [(*name.split(", "), f"{rate:,.0f}") for name, rate in figures.items() if name != "python"]
    introduction = (
        f"Python {figures['python']}. The fastest round of each row counts: rates follow the speed of one core, which "
        "varies by a factor of two where a machine is shared. A run that keeps everything spends up to half of its "
        "time in the garbage collector, which belongs to the whole process and stays on."
    )
    return f"{introduction}\n\n" + table(("scheduling", "kept of the run", "requests/s"), rows)


def _recordings(figures: dict[str, float]) -> str:
    rows = [(setup, f"{share:.1%}") for setup, share in figures.items()]
    return table(("recorded model (instances × largest batch) and load", "equally formed batches"), rows)


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}–{max(values):.2f}"


def _footprint(figures: dict[str, Any]) -> str:
    rows = [
        (name, f"{figures[name]['ready_s']:.2f}", f"{figures[name]['resident_mb']:.0f}")
        for name in ("tritonnb", "triton")
    ]
    return f"`import tritonnb` takes {median(figures['import_s']) * 1e3:.0f} ms.\n\n" + table(
        ("server", "seconds from start to ready", "memory in MB"), rows
    )


def _memory(figures: dict[str, Any]) -> str:
    collections_ms = figures["collections_ms"]
    return (
        f"Over {figures['requests']} requests after the warm-up, the resident set grew from {figures['first_mb']:.1f} "
        f"to at most {figures['largest_mb']:.1f} MB ({figures['growth']:+.1%}). A full garbage collection takes "
        f"{collections_ms['history']:.0f} ms with the {figures['events']} events that a server keeps as bytes, and "
        f"{collections_ms['objects']:.0f} ms with the same events as objects, too."
    )


def _isolation(figures: dict[str, Any]) -> str:
    rows = [
        (case, "; ".join(f"{name}: {ratio:.2f}" for name, ratio in ratios.items() if not isinstance(ratio, dict)))
        for case, ratios in figures.items()
    ]
    return (
        "Rates of an isolated model, divided by those of the comparison; rates of two instances, divided by those of "
        "one. Targets: two instances at least 1.80, identity 1.00 times Triton.\n\n" + table(("case", "ratios"), rows)
    )


def _chats(figures: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{figures[name]['tokens_per_second']:.0f}",
            str(figures[name]["chats"]),
            str(figures[name]["different"]),
        )
        for name in ("tiny_gpt", "tiny_gpt_static")
    ]
    return (
        table(("model", "tokens/s", "chats", "differ from the chat alone"), rows)
        + f"\nContinuous batching generates {figures['ratio']:.2f} times the tokens per second of static batches; "
        f"{figures['idle_steps']} steps had an unused slot while a prompt waited."
    )


def _stages(figures: dict[str, Any]) -> str:
    one = {case: by_count["1"] for case, by_count in figures.items() if STAGES[0] in by_count["1"]}
    chain = [(stage, *(f"{values[stage]:.1f}" for values in one.values())) for stage in STAGES]
    chain.append(("all, from the rate", *(f"{1e6 / values['rate']:.1f}" for values in one.values())))
    threads = [
        (case, count, f"{values['rate']:.0f}", *(f"{values[name]:.1f}" for name in THREAD_TIMES))
        for case, by_count in figures.items()
        for count, values in by_count.items()
    ]
    return (
        "The stages of a request over one connection (medians, µs). The first contains the work of the load "
        "generator; the way to the instance and back wakes a thread or a process, unless the event loop executes the "
        "batch.\n\n"
        + table(("stage", *one), chain)
        + "\nProcessor time of the server's threads per request (µs), in user mode and in the "
        "kernel.\n\n" + table(("model", "connections", "requests/s", *THREAD_TIMES), threads)
    )


def _watch(figures: dict[str, Any]) -> str:
    rows = [
        (
            state,
            *(
                f"{figures[state][key]:.{digits}f}"
                for key, digits in (("p50_ms", 2), ("p99_ms", 2), ("cpu_us", 0), ("rate", 0))
            ),
        )
        for state in ("unwatched", "watched")
    ]
    return table(("state", "p50 ms at 1,000/s", "p99 ms", "processor us per request", "requests/s at saturation"), rows)


def _models(figures: dict[str, Any]) -> str:
    rows = [
        (
            case,
            f"{values['served']:.0f}",
            f"{values['p99_ms']:.1f}",
            *(_shares(values, threads) for threads in ("1 threads", "2 threads")),
            *(
                f"{value:.0%}" if "share" in name else f"{value:.0f}"
                for name, value in values.items()
                if "processor" in name
            ),
        )
        for case, values in figures.items()
    ]
    return (
        "Shares of the rate of the framework alone, called by one and by two threads with batches of the size in "
        "brackets; then the processor time per row (µs), and the share possible with both cores always busy. The "
        "shares of PT2 are too high: PyTorch holds the interpreter lock during a PT2 program, and the served instances "
        "are processes ([two bare processes](decisions/0082-check-compiled-programs.md) are faster).\n\n"
        + table(_MODELS, rows)
    )


_MODELS = (
    "model, rows per request", "rows/s", "p99 ms", "of one thread", "of two threads", "server", "load generator",
    "framework", "at most",
)  # fmt: skip


def _shares(values: dict[str, float], threads: str) -> str:
    """The rate of a served model divided by those of its framework, with the sizes of the batches."""
    beginning = f"{threads}, batches of "
    shares = {name.removeprefix(beginning): ratio for name, ratio in values.items() if name.startswith(beginning)}
    return ", ".join(f"{ratio:.0%} ({size})" for size, ratio in shares.items())


#: By name of the benchmark: the title of its section, and the function that makes it.
SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "instructions": ("Instructions of a request", _instructions),
    "ratios": ("Ratios to Triton", _ratios),
    "http": ("HTTP: identity models in Python", _cases),
    "grpc": ("gRPC: identity models in Python", _cases),
    "ensemble": ("HTTP: an ensemble of two identity models", _servers),
    "accumulator": ("HTTP: sequences", _accumulator),
    "peers": ("Other servers of Python users: small JSON requests, batching on", _servers),
    "inprocess": ("In-process calls", _inprocess),
    "models": ("Compute-bound models, 32 clients", _models),
    "isolation": ("Models in their own processes", _isolation),
    "chats": ("Continuous batching", _chats),
    "watch": ("Cost of watching", _watch),
    "stages": ("Where a request's microseconds go", _stages),
    "tricks": ("What each optimisation is worth", _tricks),
    "costs": ("What is always on", _costs),
    "simulator": ("The simulator", _simulator),
    "predictions": ("Predictions of twins", predictions.describe),
    "pipelines": ("Predictions of pipelines", pipelines.describe),
    "sweeps": ("Live sweeps", sweeps.describe),
    "recordings": ("Recordings of a real Triton, replayed", _recordings),
    "pythons": ("Other versions of Python", _pythons),
    "footprint": ("Import, start and memory", _footprint),
    "memory": ("Memory under load", _memory),
}


if __name__ == "__main__":
    print(f"written to {write_report()}")
