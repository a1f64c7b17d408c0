"""Requests made from the endpoint's description of itself: none may be answered with a fault of the server's own.

Schemathesis makes them, from ``/v2/openapi.json`` with the names of models, tensors and regions that there are; half
of them break the description. A fault is an exception that the server did not expect, or no answer. Models that fail
on purpose are left out. ``python -m benchmarks.schema_fuzz --cases 20000 --schemathesis PATH``, where the path is that
of its command ``st``, in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import subprocess
import tempfile
import urllib.request
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from benchmarks.servers import ROOT
from tritonnb.server.server import Server

MODELS = ["accumulate", "addsub", "classifier", "countdown", "echo_string", "echo_types", "parameters", "textgen"]
#: Checks of Schemathesis that hold for Triton's protocol, too: its own errors can have a status of 5xx.
CHECKS = "content_type_conformance,response_schema_conformance"
EXAMPLES = 300  # of each operation in one run


class Faults(logging.Handler):
    """Exceptions that somebody logged: nobody expected them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record that comes with an exception."""
        if record.exc_info:
            self.count += 1
            print(logging.Formatter().format(record), flush=True)


def main() -> None:
    """Run as many requests as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--schemathesis", default="st")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = Faults()
    logging.getLogger().addHandler(faults)
    region = shared_memory.SharedMemory(create=True, size=4096)
    failed = False
    try:
        with Server(ROOT / "tests" / "models", port=0, model_control_mode="explicit", load_models=MODELS) as server:
            done, seed = 0, options.seed
            while done < options.cases and not failed and not faults.count:
                count, failed = _run(server.url, region.name, options.schemathesis, seed)
                done, seed = done + count, seed + 1
                print(f"{done} requests", flush=True)
            _ask(server.url, "/v2/health/live")
    finally:
        region.close()
        region.unlink()
    if failed or faults.count:
        raise SystemExit("the server answered what it should not")


def _run(url: str, region: str, schemathesis: str, seed: int) -> tuple[int, bool]:
    """One run: how many requests it made, and whether a check failed."""
    for name in MODELS:
        urllib.request.urlopen(f"{url}/v2/repository/models/{name}/load", b"").close()
    with tempfile.TemporaryDirectory(prefix="tritonnb-fuzz-") as scratch:
        Path(scratch, "openapi.json").write_text(json.dumps(_narrowed(url, region)))
        command = [schemathesis, "run", "openapi.json", "--url", url, "--phases", "coverage,fuzzing"]
        command += ["--checks", CHECKS, "--seed", str(seed), "--request-timeout", "20", "--continue-on-failure"]
        command += ["--max-examples", str(EXAMPLES), "--suppress-health-check", "all", "--no-color"]
        result = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    counted = re.search(r"(\d+) generated", result.stdout)
    if result.returncode or counted is None:
        print(result.stdout, result.stderr)
    return int(counted.group(1)) if counted else 0, result.returncode != 0


def _narrowed(url: str, region: str) -> dict[str, Any]:
    """The description with names that exist, so that requests reach what is behind a wrong name's 404."""
    document: dict[str, Any] = _ask(url, "/v2/openapi.json")
    described = [_ask(url, f"/v2/models/{name}") for name in MODELS]
    names = {"model": [*MODELS, "nobody"], "version": ["1", "7"], "region": ["first", "second"]}
    for methods in document["paths"].values():
        for parameter in methods.get("parameters", []):
            parameter["schema"] = {"type": "string", "enum": names[parameter["name"]]}
    for direction in ("inputs", "outputs"):
        known = sorted({tensor["name"] for each in described for tensor in each[direction]})
        items = document["components"]["schemas"]["InferRequest"]["properties"][direction]["items"]["properties"]
        items["name"] = {"enum": known}
        items["parameters"]["properties"]["shared_memory_region"] = {"enum": names["region"]}
    register = document["paths"]["/v2/systemsharedmemory/region/{region}/register"]["post"]["requestBody"]
    register["content"]["application/json"]["schema"]["properties"]["key"] = {"enum": ["/" + region, "/nothing"]}
    return document


def _ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path) as answer:
        return json.loads(answer.read() or b"null")


if __name__ == "__main__":
    main()
